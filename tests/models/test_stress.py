"""Stress: what the energy says of strained cells, in ASE's order and sign, and units of slopes."""

import ase
import ase.build
import ase.io
import numpy as np
import pytest
import torch
from ase.calculators.emt import EMT

from hydragnn_flow.config import DataConfig
from hydragnn_flow.config.units import energy_unit, is_slope
from hydragnn_flow.data import Target, prepare_store
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model
from hydragnn_flow.testing.networks import CUTOFF, alloy, as_batch, lively, network
from hydragnn_flow.training.measures.losses import reference

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


@pytest.fixture
def stressed(manifest):
    """The store, with stresses."""
    key = manifest.keys["x"].model_copy(update={"node": False, "rows": 3, "shape": (3,)})
    statistics = manifest.statistics.model_copy(deep=True)
    statistics.targets["stress"] = statistics.targets["gap"].model_copy(
        update={"mean": [0.0] * 6, "std": [0.02] * 6}
    )
    return manifest.model_copy(
        update={
            "targets": {**manifest.targets, "stress": Target(level="graph", dim=6)},
            "keys": {**manifest.keys, "cell": key},
            "statistics": statistics,
        }
    )


def potential_of(manifest, mpnn_type="SchNet", **options):
    torch.manual_seed(0)
    return lively(build_model(network(mpnn_type, **options), manifest))


def strained(batch, strain):
    """All graphs of a batch under a strain, in float64."""
    change = torch.from_numpy(np.eye(3) + strain)
    after = batch.clone()
    for key in ("pos", "edge_shifts", "cell"):
        after[key] = batch[key].double() @ change.T
    return after


def test_stress_is_the_slope_of_the_energy_under_strain(potential_type, stressed):
    model = potential_of(stressed, potential_type)
    structures = [alloy(0), alloy(1).repeat((2, 1, 1))]
    batch = strained(as_batch(*structures), np.zeros((3, 3)))
    found = model(batch)["stress"]
    volumes = torch.linalg.det(batch.cell.view(-1, 3, 3)).abs()
    # Short, because the extremes of PNA have kinks that a long step would straddle.
    step = 1e-6
    for component, (a, b) in enumerate(VOIGT):
        for order in ((a, b), (b, a)):  # a rotation costs nothing, so both are the same
            strain = np.zeros((3, 3))
            strain[order] = step
            up, down = model(strained(batch, strain)), model(strained(batch, -strain))
            slope = (up["energy"] - down["energy"])[:, 0] / (2 * step)
            torch.testing.assert_close(
                found[:, component], slope / volumes, rtol=0, atol=1e-6 * float(found.abs().max())
            )


def in_units(manifest, **units):
    """The manifest with units of its targets."""
    targets = {
        name: target.model_copy(update={"unit": units.get(name, target.unit)})
        for name, target in manifest.targets.items()
    }
    return manifest.model_copy(update={"targets": targets})


def test_labels_in_other_units_are_not_compared_with(stressed):
    eV = {"energy": "eV", "forces": "eV/Å"}
    batch = as_batch(alloy())
    assert "stress" in potential_of(in_units(stressed, **eV, stress="eV/Å^3"))(batch)
    in_gpa = in_units(stressed, **eV, stress="GPa")
    assert "stress" not in potential_of(in_gpa)(batch)
    with pytest.raises(InputError, match=r"needs the stress in eV/Å³, but the store has it in GPa"):
        potential_of(in_gpa, stress_weight=1.0)
    atomic = in_units(stressed, energy="Hartree", forces="Hartree/Bohr")
    with pytest.raises(InputError, match=r"in Hartree/Å, but the store has them in Hartree/Bohr"):
        potential_of(atomic)


def test_a_cell_of_no_volume_has_none(stressed):
    """Molecules and slabs have NaN, whatever else is in the batch, and spoil no gradient."""
    molecule, slab = ase.Atoms("CuAu", [[0, 0, 0], [2.5, 0, 0]]), alloy(1)
    slab.pbc = (True, True, False)
    model = build_model(network("SchNet"), stressed)
    outputs = model(as_batch(molecule, alloy(0), slab))
    stress = outputs["stress"]
    assert stress.isnan().all(dim=1).tolist() == [True, False, True]
    alone = model(as_batch(alloy(0)))["stress"]
    torch.testing.assert_close(stress[1:2], alone, rtol=1e-4, atol=1e-6)
    residual = torch.where(stress.isnan(), 0.0, stress - 0.1)
    residual.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name


def test_forces_are_the_same_with_stress(manifest, stressed):
    with_stress, without = potential_of(stressed), potential_of(manifest)
    first, second = with_stress(as_batch(alloy())), without(as_batch(alloy()))
    assert set(first) - set(second) == {"stress"}
    for name in second:
        assert torch.equal(first[name], second[name])
    assert not first["stress"].requires_grad


def test_stress_needs_labels_and_cells(manifest, stressed):
    values = network("SchNet", stress_weight=1.0)
    assert build_model(values, stressed)
    no_cell = {key: value for key, value in stressed.keys.items() if key != "cell"}
    of_five = {**stressed.targets, "stress": Target(level="graph", dim=5)}
    for change in ({"keys": no_cell}, {"targets": of_five}, {"targets": manifest.targets}):
        store = stressed.model_copy(update=change)
        with pytest.raises(InputError, match="stress_weight"):
            build_model(values, store)
        assert "stress" not in build_model(network("SchNet"), store)(as_batch(alloy()))


def rattled(seed):
    """Copper under EMT, at 90 to 110 % of its lattice constant."""
    rng = np.random.default_rng(seed)
    atoms = ase.build.bulk("Cu", "fcc", a=3.6 * rng.uniform(0.95, 1.07), cubic=True)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + rng.normal(0, 0.02, (3, 3))), scale_atoms=True)
    atoms.positions += rng.normal(0, 0.05, (4, 3))
    atoms.calc = EMT()
    atoms.get_stress()
    return atoms


def test_labels_of_a_source_reach_the_loss(tmp_path):
    """Six numbers in Voigt's order with ASE's sign, as EMT gave them."""
    structures = [rattled(seed) for seed in range(10)]
    ase.io.write(tmp_path / "all.xyz", structures)
    targets = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"}
    source = {"format": "ase", "train": "all.xyz", "targets": targets}
    data = DataConfig.model_validate(
        {"source": source, "path": tmp_path, "split": {"val": 0.1, "test": 0.1}}
    )
    store = prepare_store(data, CUTOFF, None, 0, tmp_path / "store.gs")
    for split in (store[name] for name in store.splits):
        batch = split.batch(range(len(split)))
        found = reference(batch, "stress", torch.empty(len(split), 6))
        expected = np.stack([structures[number].get_stress() for number in split.graph_id])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


PER_LENGTH = (
    *("eV/Å", "eV/\N{ANGSTROM SIGN}", "eV / A", "eV/Ang", "eV/angstrom", "eV/Ångström", "ev/AA"),
    *("", "eV Å^-1", "eV Å**-1", "eV·Å^-1", "eV Å⁻¹"),  # an empty one is not judged
)
OF_OTHERS = [
    *(("kcal/mol/Å", "kcal/mol"), ("eV/Å", ""), ("Ha/Å", "Hartree")),
    *(("kcal/(mol·Å)", "kcal/mol"), ("kJ/mol/Å", "kJ mol^-1")),
    *(("epsilon/A", "epsilon"), ("epsilon/sigma", "epsilon")),
]
NOT_PER_LENGTH = ("meV/Å", "Hartree/Bohr", "eV/Bohr", "eV/a0", "eV/nm", "eV/Å³", "GPa")
NOT_PER_LENGTH += ("eV", "a.u.", "ticks/Å", "eV/tick", "N", "Ry/au", "hartree/Å")
PER_VOLUME = ("eV/Å³", "eV/Å^3", "eV/A**3", "eV/(Å^3)", "eV/Ang3", "")
NOT_PER_VOLUME = ("GPa", "kbar", "eV/Å", "eV/Ang", "meV/Å³", "Hartree/Bohr^3")
NOT_PER_VOLUME += ("eV", "kB", "kilobar", "N/m^2", "a.u.", "dyn/cm²", "eV/nm³")


@pytest.mark.parametrize("by_volume", [False, True])
def test_units_of_slopes_of_an_energy(by_volume):
    right, wrong = (PER_VOLUME, NOT_PER_VOLUME) if by_volume else (PER_LENGTH, NOT_PER_LENGTH)
    for unit in (*right, *wrong):
        assert is_slope(unit, "eV", by_volume=by_volume) == (unit in right), unit
    for unit, energy in OF_OTHERS if not by_volume else ():
        assert is_slope(unit, energy), unit


def test_units_of_energy():
    known = {"eV": "ev", "kcal / mol": "kcal/mol", "KJ/mol": "kj/mol", "Ha": "hartree"}
    known |= {"Eh": "hartree", "Ry": "rydberg"}
    for text in (*known, "", "eV/atom", "ticks"):
        assert energy_unit(text) == known.get(text)
