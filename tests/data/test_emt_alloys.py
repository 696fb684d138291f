"""Generated structures: what was asked for, from the seed, with the labels of EMT."""

import numpy as np
import pytest
from ase.calculators.emt import EMT
from source_cases import config, read_all

from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.errors import InputError

ELEMENTS = ("Cu", "Ni", "Pd", "Ag", "Pt", "Au")


def generated(seed=0, **changes):
    return read_all(open_source(config(format="emt_alloys", **changes), seed))["train"]


def test_generated_structures_follow_the_seed():
    five, three = generated(structures=5), generated(structures=3)
    other = generated(1, structures=3)
    for one, two in zip(five, three, strict=False):
        assert one.atoms == two.atoms
        assert one.targets["energy"] == two.targets["energy"]
    assert not any(a.atoms == b.atoms for a, b in zip(five, other, strict=False))


def test_generated_structures_are_as_asked():
    train = generated(structures=40, atoms=(12, 48))
    sizes = {len(structure.atoms) for structure in train}
    assert sizes <= {12, 16, 24, 32, 36, 48}
    assert len(sizes) >= 4
    species = [set(structure.atoms.symbols) for structure in train]
    assert set.union(*species) == set(ELEMENTS)
    assert min(map(len, species)) <= 2
    assert max(map(len, species)) >= 5
    assert set(generated(structures=3, elements=["Al"])[0].atoms.symbols) == {"Al"}
    with pytest.raises(InputError, match=r"data\.source\.atoms"):
        generated(structures=3, atoms=(9, 11))  # of which no supercell has as many
    for structure in train[:10]:  # strained and rattled
        assert np.abs(structure.targets["forces"]).max() > 0.01
        assert 0.01 < np.abs(structure.atoms.cell.angles() - 90).max() < 15


def test_labels_are_those_of_an_extensive_energy():
    """EMT sees every periodic image: a doubled cell has twice the energy and the same forces."""
    small = min(generated(structures=20), key=lambda structure: len(structure.atoms))
    assert len(small.atoms) == 8
    doubled = small.atoms * (2, 1, 1)
    doubled.calc = EMT()
    assert doubled.get_potential_energy() == pytest.approx(2 * small.targets["energy"][0])
    assert doubled.get_forces()[8:] == pytest.approx(small.targets["forces"], abs=1e-9)
