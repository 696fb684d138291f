"""One conformance suite for every source, their known labels, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data.sources import SourceData, read_source
from hydragnn_flow.errors import InputError

ELEMENTS = ("Cu", "Ni", "Pd", "Ag", "Pt", "Au")


def config(source: dict[str, Any], path: Path | None = None) -> DataConfig:
    split = {"val": 0.1} if source.get("test") else {"val": 0.1, "test": 0.1}
    return DataConfig.model_validate({"source": source, "path": path, "split": split})


def frames(structure, n: int = 4) -> list[ase.Atoms]:
    atoms_list = []
    for seed in range(n):
        atoms = structure(seed)
        rng = np.random.default_rng(seed)
        atoms.calc = SinglePointCalculator(
            atoms, energy=rng.normal(), forces=rng.normal(size=(len(atoms), 3))
        )
        atoms_list.append(atoms)
    return atoms_list


def mlearn_entry(atoms: ase.Atoms) -> dict[str, Any]:
    return {
        "structure": {
            "lattice": {"matrix": atoms.cell.array.tolist()},
            "sites": [
                {"species": [{"element": symbol, "occu": 1}], "xyz": xyz.tolist()}
                for symbol, xyz in zip(atoms.symbols, atoms.positions, strict=True)
            ],
        },
        "outputs": {
            "energy": atoms.calc.results["energy"],
            "forces": atoms.calc.results["forces"].tolist(),
        },
    }


@pytest.fixture(params=["emt_alloys", "extxyz", "mlearn", "Si", "acac"])
def case(request, structure, tmp_path) -> DataConfig:
    """The configuration of each source, on files made here and on the public data sets."""
    if request.param == "emt_alloys":
        return config({"format": "emt_alloys", "structures": 5})
    if request.param == "extxyz":
        write(tmp_path / "a.xyz", frames(structure), format="extxyz")
        write(tmp_path / "b.xyz", frames(structure, 2), format="extxyz")
        return config({"format": "extxyz", "train": "a.xyz", "test": "b.xyz"}, tmp_path)
    if request.param == "mlearn":
        entries = [mlearn_entry(atoms) for atoms in frames(structure)]
        (tmp_path / "a.json").write_text(json.dumps(entries))
        return config({"format": "mlearn", "train": "a.json"}, tmp_path)
    data = request.getfixturevalue("shared_data")
    if request.param == "Si":
        return config(
            {"format": "mlearn", "train": "Si_test.json", "test": "Si_test.json"}, data / "mlearn"
        )
    return config({"format": "extxyz", "train": "train_300K.xyz"}, data / "acac")


def test_conformance(case):
    source = read_source(case, seed=3)
    assert source.train
    assert bool(source.test) == bool(getattr(case.source, "test", None))
    assert {name: (t.level, t.dim, t.unit) for name, t in source.targets.items()} == {
        "energy": ("graph", 1, "eV"),
        "forces": ("node", 3, "eV/Å"),
    }
    for structures in (source.train, source.test):
        assert [structure.index for structure in structures] == list(range(len(structures)))
        for structure in structures:
            n_atoms = len(structure.atoms)
            assert n_atoms >= 1
            assert np.isfinite(structure.atoms.positions).all()
            assert structure.targets["energy"].shape == (1,)
            assert structure.targets["forces"].shape == (n_atoms, 3)
            assert all(np.isfinite(label).all() for label in structure.targets.values())
            # A calculator left behind would be carried to every worker.
            assert structure.atoms.calc is None
    again = read_source(case, seed=3)
    for one, two in zip(source.train, again.train, strict=True):
        assert one.atoms == two.atoms
        assert all(np.array_equal(one.targets[name], two.targets[name]) for name in one.targets)


def test_files_keep_structures_and_labels(structure, tmp_path):
    expected = frames(structure)
    write(tmp_path / "a.xyz", expected, format="extxyz")
    (tmp_path / "a.json").write_text(json.dumps([mlearn_entry(atoms) for atoms in expected]))
    for source in ({"format": "extxyz", "train": "a.xyz"}, {"format": "mlearn", "train": "a.json"}):
        found = read_source(config(source, tmp_path), seed=0).train
        for got, atoms in zip(found, expected, strict=True):
            assert got.atoms.numbers.tolist() == atoms.numbers.tolist()
            assert got.atoms.positions == pytest.approx(atoms.positions, abs=1e-7)
            assert got.atoms.cell.array == pytest.approx(atoms.cell.array, abs=1e-7)
            if source["format"] == "extxyz":  # mlearn's are all periodic
                assert got.atoms.pbc.tolist() == atoms.pbc.tolist()
            results = atoms.calc.results
            assert got.targets["energy"] == pytest.approx([results["energy"]], abs=1e-7)
            assert got.targets["forces"] == pytest.approx(results["forces"], abs=1e-7)


def test_known_labels_of_silicon(shared_data):
    source = {"format": "mlearn", "train": "Si_training.json", "test": "Si_test.json"}
    found = read_source(config(source, shared_data / "mlearn"), seed=0)
    assert (len(found.train), len(found.test)) == (214, 25)
    first = found.train[0]
    assert len(first.atoms) == 63
    assert first.targets["energy"] == pytest.approx([-295.49753016])
    assert set(first.atoms.symbols) == {"Si"}
    assert first.atoms.pbc.all()
    per_atom = [s.targets["energy"][0] / len(s.atoms) for s in found.train]
    assert np.mean(per_atom) == pytest.approx(-5.1, abs=0.1)


def test_known_labels_of_acetylacetone(shared_data):
    source = {"format": "extxyz", "train": "train_300K.xyz", "test": "test_MD_300K.xyz"}
    found = read_source(config(source, shared_data / "acac"), seed=0)
    assert (len(found.train), len(found.test)) == (500, 650)
    first = found.train[0]
    assert first.atoms.get_chemical_formula() == "C5H8O2"
    assert not first.atoms.pbc.any()
    assert first.targets["energy"] == pytest.approx([-9391.45554428476], abs=1e-8)
    assert first.targets["forces"][0] == pytest.approx([1.47339228, 1.13796366, 0.06391102])
    assert first.atoms.positions[0] == pytest.approx([0.07874433, 1.40230941, 0.08237721])


def generated(seed: int = 0, **changes: Any) -> SourceData:
    return read_source(config({"format": "emt_alloys", **changes}), seed)


def test_generated_structures_follow_the_seed():
    five, three, other = (
        generated(structures=5),
        generated(structures=3),
        generated(1, structures=3),
    )
    for one, two in zip(five.train, three.train, strict=False):
        assert one.atoms == two.atoms
        assert one.targets["energy"] == two.targets["energy"]
    assert not any(a.atoms == b.atoms for a, b in zip(five.train, other.train, strict=False))


def test_generated_structures_are_as_asked():
    train = generated(structures=40, atoms=(12, 48)).train
    sizes = {len(structure.atoms) for structure in train}
    assert sizes <= {12, 16, 24, 32, 36, 48}
    assert len(sizes) >= 4
    species = [set(structure.atoms.symbols) for structure in train]
    assert set.union(*species) == set(ELEMENTS)
    assert min(map(len, species)) <= 2
    assert max(map(len, species)) >= 5
    assert set(generated(structures=3, elements=["Al"]).train[0].atoms.symbols) == {"Al"}


def test_generated_structures_are_strained_and_rattled():
    for structure in generated(structures=10).train:
        assert np.abs(structure.targets["forces"]).max() > 0.01
        angles = structure.atoms.cell.angles()
        assert np.abs(angles - 90).max() > 0.01
        assert np.abs(angles - 90).max() < 15


def test_no_supercell_of_that_size():
    with pytest.raises(InputError, match=r"data\.source\.atoms"):
        generated(structures=3, atoms=(9, 11))


def test_labels_are_those_of_an_extensive_energy():
    """EMT sees every periodic image: a doubled cell has twice the energy and the same forces."""
    small = min(generated(structures=20).train, key=lambda structure: len(structure.atoms))
    assert len(small.atoms) == 8
    doubled = small.atoms * (2, 1, 1)
    doubled.calc = EMT()
    assert doubled.get_potential_energy() == pytest.approx(2 * small.targets["energy"][0])
    assert doubled.get_forces()[8:] == pytest.approx(small.targets["forces"], abs=1e-9)


def test_forces_are_minus_the_gradient_of_the_energy():
    structure = generated(structures=3).train[0]
    atoms, step = structure.atoms.copy(), 1e-4
    atoms.calc = EMT()
    energies = []
    for sign in (1, -1):
        atoms.positions = structure.atoms.positions
        atoms.positions[2, 1] += sign * step
        energies.append(atoms.get_potential_energy())
    slope = (energies[0] - energies[1]) / (2 * step)
    assert -slope == pytest.approx(structure.targets["forces"][2, 1], rel=1e-4)


LINE = '1\n{comment} pbc="F F F"\nH 0 0 0 {force} 0 0\n'
COMMENT = "energy={energy} Properties=species:S:1:pos:R:3:forces:R:3"
GOOD = LINE.format(comment=COMMENT.format(energy=-1.5), force=0.5)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (LINE.format(comment=COMMENT.format(energy="nan"), force=0), "has NaN .* 'energy'"),
        (LINE.format(comment=COMMENT.format(energy=1), force="nan"), "has NaN .* 'forces'"),
        (LINE.format(comment=COMMENT.format(energy=1), force="inf"), "has NaN .* 'forces'"),
        (
            LINE.format(comment="Properties=species:S:1:pos:R:3:forces:R:3", force=0),
            r"no label 'energy' \(it has: forces\)",
        ),
        ('1\nenergy=1 Properties=species:S:1:pos:R:3 pbc="F F F"\nH 0 0 0\n', "no label 'forces'"),
        ("2\n" + GOOD[2:], "cannot be read"),
        (GOOD.replace("energy=-1.5", 'energy="1 2"'), "cannot be read|label 'energy' of shape"),
    ],
)
def test_bad_extxyz_names_file_and_structure(tmp_path, bad, complaint):
    (tmp_path / "a.xyz").write_text(GOOD + GOOD + bad)
    with pytest.raises(InputError, match=rf"a\.xyz: structure 2 .*({complaint})"):
        read_source(config({"format": "extxyz", "train": "a.xyz"}, tmp_path), seed=0)


def test_target_the_data_does_not_have(tmp_path):
    (tmp_path / "a.xyz").write_text(GOOD)
    source = {"format": "extxyz", "train": "a.xyz", "targets": {"gap": "eV"}}
    with pytest.raises(InputError, match=r"a\.xyz: structure 0 has no label 'gap'"):
        read_source(config(source, tmp_path), seed=0)


def test_other_extxyz_targets(tmp_path):
    """Targets from the comment line and from columns, scalars and vectors."""
    (tmp_path / "a.xyz").write_text(
        '2\nProperties=species:S:1:pos:R:3:spin:R:1:q:R:2 gap=0.5 mu="1 2 3" pbc="F F F"\n'
        "H 0 0 0 0.1 1 2\nH 0 0 1 0.2 3 4\n"
    )
    units = {"gap": "eV", "mu": "D", "spin": "", "q": "e"}
    source = {"format": "extxyz", "train": "a.xyz", "targets": units}
    found = read_source(config(source, tmp_path), seed=0)
    labels = {name: label.tolist() for name, label in found.train[0].targets.items()}
    assert labels == {
        "gap": [0.5],
        "mu": [1.0, 2.0, 3.0],
        "spin": [[0.1], [0.2]],
        "q": [[1.0, 2.0], [3.0, 4.0]],
    }
    assert {name: target.level for name, target in found.targets.items()} == {
        "gap": "graph",
        "mu": "graph",
        "spin": "node",
        "q": "node",
    }


def spoil_energy(entry):
    entry["outputs"]["energy"] = None


def spoil_forces(entry):
    entry["outputs"]["forces"] = entry["outputs"]["forces"][:-1]


def spoil_nan(entry):
    entry["outputs"]["forces"][0][1] = float("nan")


def spoil_site(entry):
    entry["structure"]["sites"][0]["species"][0]["occu"] = 0.5


def spoil_element(entry):
    entry["structure"]["sites"][0]["species"][0]["element"] = "Qq"


def spoil_outputs(entry):
    del entry["outputs"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (spoil_energy, "no label 'energy'"),
        (spoil_forces, "label 'forces' of shape"),
        (spoil_nan, "has NaN .* 'forces'"),
        (spoil_site, "partly empty"),
        (spoil_element, "cannot be read"),
        (spoil_outputs, "outputs"),
    ],
)
def test_bad_mlearn_names_file_and_structure(structure, tmp_path, spoil, complaint):
    entries = [mlearn_entry(atoms) for atoms in frames(structure)]
    spoil(entries[1])
    (tmp_path / "a.json").write_text(json.dumps(entries))
    with pytest.raises(InputError, match=rf"a\.json: structure 1 .*{complaint}"):
        read_source(config({"format": "mlearn", "train": "a.json"}, tmp_path), seed=0)


@pytest.mark.parametrize("content", ["", "{]", "{}", "[]"])
def test_files_that_are_no_mlearn_list(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json"):
        read_source(config({"format": "mlearn", "train": "a.json"}, tmp_path), seed=0)


def test_empty_and_missing_files(tmp_path):
    (tmp_path / "a.xyz").touch()
    with pytest.raises(InputError, match=r"a\.xyz holds no structures \(data\.source\.train\)"):
        read_source(config({"format": "extxyz", "train": "a.xyz"}, tmp_path), seed=0)
    (tmp_path / "a.xyz").write_text(GOOD)
    with pytest.raises(InputError, match=r"b\.xyz \(data\.source\.test\) .*--data"):
        read_source(config({"format": "extxyz", "train": "a.xyz", "test": "b.xyz"}, tmp_path), 0)
    with pytest.raises(InputError, match=r"nowhere\.xyz \(data\.source\.train\) .*--data"):
        read_source(config({"format": "extxyz", "train": "nowhere.xyz"}), seed=0)
