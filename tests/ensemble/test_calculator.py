"""An ensemble as ASE's calculator: what it gives, refuses, and what dynamics make of it."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, fcc111
from ase.calculators.calculator import CalculationFailed, PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.calculators.mixing import SumCalculator
from ase.md.verlet import VelocityVerlet
from ase.stress import full_3x3_to_voigt_6_stress, voigt_6_to_full_3x3_stress
from calibration_cases import plain
from ensemble_cases import property_ensemble
from scipy.spatial.transform import Rotation

from hydragnn_flow import EnsembleCalculator, InputError
from hydragnn_flow.data import Target
from hydragnn_flow.models.geometry import VOIGT
from hydragnn_flow.models.potential import PotentialModel


def rattled(seed=0, repeat=1):
    """A cell of copper and gold whose sides are shorter than the cutoff, or several of it."""
    atoms = bulk("Cu", cubic=True) * (repeat, 1, 1)
    atoms.symbols[::3] = "Au"
    atoms.rattle(0.1, seed=seed)
    return atoms


def slab():
    atoms = fcc111("Cu", (2, 2, 3), vacuum=6)
    atoms.rattle(0.05, seed=1)
    return atoms


STRUCTURES: dict[str, Callable[[], Atoms]] = {
    "crystal": rattled,
    "one atom, its images near": lambda: bulk("Cu"),
    "one atom alone": lambda: Atoms("Au"),
    "one atom in a large cell": lambda: Atoms("Au", cell=[9, 9, 9], pbc=True),
    "molecule": lambda: Atoms("Cu2", [[0, 0, 0], [0, 0, 2.3]]),
    "slab": slab,
    "wire": lambda: Atoms("CuAu", [[0, 0, 0], [2.4, 0.2, 0]], cell=[4.7, 0, 0], pbc=[1, 0, 0]),
}


def calculated(ensemble, atoms):
    """All results for a structure, by a calculator that has seen no other."""
    atoms = atoms.copy()
    atoms.calc = EnsembleCalculator(ensemble)
    atoms.get_potential_energy()
    return dict(atoms.calc.results)


def with_manifest(ensemble, **changes):
    return replace(ensemble, manifest=ensemble.manifest.model_copy(update=changes))


def with_stress(ensemble):
    """As trained on data that have stresses of nine components too."""
    stress = Target(level="graph", dim=9, unit="eV/Å^3")
    models = copy.deepcopy(ensemble.models)
    for model in models:
        model.stress = True
    calibrations = {**ensemble.calibrations, "stress": plain(1.5, 0.01, 1.6)}
    other = with_manifest(ensemble, targets={**ensemble.manifest.targets, "stress": stress})
    return replace(other, models=models, calibrations=calibrations)


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_it_says_what_predict_says(lively, structure):
    """The members' results by the names and in the shapes that MACE gives them."""
    ensemble, atoms = with_stress(lively), structure()
    tables = ensemble.predict(atoms, members=True)
    found = calculated(ensemble, atoms)
    assert found["free_energy"] == found["energy"]
    components = {
        "energy": (tables.graphs, [""], ()),
        "forces": (tables.nodes, [f"_{axis}" for axis in "xyz"], (len(atoms), 3)),
        "stress": (tables.graphs, [f"_{axes}" for axes in VOIGT], (3, 3)),
    }
    if not atoms.pbc.all():
        _, suffixes, _ = components.pop("stress")
        assert tables.graphs[[f"stress{suffix}_mean" for suffix in suffixes]].isna().all(axis=None)
        assert not [key for key in found if key.startswith("stress")]
        assert "no stress, as it is not" in tables.graphs["note"][0]
    for name, (table, suffixes, shape) in components.items():
        members = found[f"{name}_comm"]
        assert members.shape == (len(ensemble.models), *shape)
        np.testing.assert_allclose(found[f"{name}_var"], np.var(members, axis=0))
        if name == "stress":
            members = [full_3x3_to_voigt_6_stress(values) for values in members]
        told = {"mean": found[name], "std": found[f"{name}_std"]}
        told |= {f"member_{k}": values for k, values in enumerate(members)}
        for what, values in told.items():
            expected = table[[f"{name}{suffix}_{what}" for suffix in suffixes]].to_numpy()
            np.testing.assert_array_equal(np.reshape(values, expected.shape), expected)
    calculator = EnsembleCalculator(ensemble)
    assert calculator.get_property("energy_var", atoms) == found["energy_var"]
    if atoms.pbc.all():
        assert set(found) == set(calculator.implemented_properties)


def test_forces_and_stress_are_slopes_of_the_energy(lively):
    """Positions come in float32, so steps cannot be short."""
    atoms = rattled()
    atoms.calc = EnsembleCalculator(lively)
    forces, stress = atoms.get_forces(), atoms.get_stress()
    assert np.abs(forces).max() > 0.01 and np.abs(stress).max() > 1e-3
    numerical = calculate_numerical_forces(atoms, eps=4e-3, iatoms=[0, 1, 2])
    np.testing.assert_allclose(forces[:3], numerical, rtol=0, atol=3e-3 * np.abs(forces).max())
    strained = calculate_numerical_stress(atoms, eps=2e-3, force_consistent=False)
    np.testing.assert_allclose(stress, strained, rtol=0, atol=5e-3 * np.abs(stress).max())


@pytest.mark.parametrize("name", ["crystal", "molecule", "slab"])
def test_results_turn_with_the_frame(lively, name):
    """A structure turned and moved, its atoms in another order and wrapped into the cell."""
    turn = Rotation.from_rotvec([0.3, -0.8, 0.5]).as_matrix()
    atoms = STRUCTURES[name]()
    order = np.random.default_rng(0).permutation(len(atoms))
    moved = atoms[order]
    moved.set_cell(atoms.cell.array @ turn.T)
    moved.positions = moved.positions @ turn.T + [1.3, -20.7, 4.1]
    moved.wrap()
    here, there = calculated(lively, atoms), calculated(lively, moved)
    for key in ("energy", "energy_std", "energy_var", "energy_comm"):
        np.testing.assert_allclose(there[key], here[key], rtol=1e-6, err_msg=key)
    np.testing.assert_allclose(there["forces"], here["forces"][order] @ turn.T, atol=1e-5)
    lengths = [np.linalg.norm(found["forces_std"], axis=1) for found in (here, there)]
    np.testing.assert_allclose(lengths[1], lengths[0][order], rtol=1e-5)
    if "stress" in here:
        before, after = (voigt_6_to_full_3x3_stress(found["stress"]) for found in (here, there))
        np.testing.assert_allclose(after, turn @ before @ turn.T, atol=1e-6)


def test_every_change_is_seen(lively):
    """After each the results are those of a calculator that has seen nothing else."""
    atoms = rattled(repeat=2)
    atoms.calc = calculator = EnsembleCalculator(lively)

    def moved():
        atoms.positions[3] += [0.3, -0.2, 0.9]

    def exchanged():
        atoms.symbols[1] = "Ni"

    seen = []
    for change in (
        lambda: None,
        moved,
        lambda: atoms.set_cell(atoms.cell * 1.2, scale_atoms=True),  # neighbours go
        lambda: atoms.set_cell(atoms.cell * 0.8, scale_atoms=True),  # neighbours come
        lambda: atoms.set_cell(atoms.cell + 0.2 * np.eye(3)),  # the atoms stay
        exchanged,
        lambda: atoms.pop(2),
        lambda: atoms.set_pbc(False),
    ):
        change()
        expected = calculated(lively, atoms)
        forces = atoms.get_forces()
        assert atoms.get_potential_energy() == expected["energy"]
        np.testing.assert_array_equal(forces, expected["forces"])
        if atoms.pbc.all():
            np.testing.assert_array_equal(atoms.get_stress(), expected["stress"])
        seen.append(float(expected["energy"]))
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    assert len(set(np.round(seen, 6))) == len(seen)
    before = calculator.results
    atoms.set_initial_magnetic_moments([1.0] * len(atoms))  # which no network reads
    atoms.get_forces()
    assert calculator.results is before


def test_unknown_elements_are_refused_before_anything_is_computed(lively, monkeypatch):
    atoms = rattled()
    atoms.calc = calculator = EnsembleCalculator(lively)
    energy = atoms.get_potential_energy()

    with monkeypatch.context() as patch:
        patch.setattr(PotentialModel, "forward", Mock(side_effect=AssertionError("was called")))
        atoms.symbols[1] = "Al"
        for _ in range(2):  # the refusal leaves nothing that passes for a result
            with pytest.raises(InputError, match="the structure: has Al"):
                atoms.get_potential_energy()
        with pytest.raises(InputError, match="has Al"):
            calculator.calculate(atoms)  # as other programs call it
        atoms.positions[1] = atoms.positions[0]
        atoms.symbols[1] = "Cu"
        with pytest.raises(InputError, match="the structure: has the atoms 0 and 1 at one place"):
            atoms.get_forces()
    assert calculator.get_potential_energy(rattled()) == energy


def test_ase_copies_exports_sums_and_writes_it(lively, tmp_path):
    atoms = rattled()
    atoms.calc = EnsembleCalculator(lively)
    energy, forces, stress = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    for other in (copy.deepcopy(atoms), pickle.loads(pickle.dumps(atoms))):
        assert other.get_potential_energy() == energy
        other.positions[0] += 0.1
        assert other.get_potential_energy() != energy
    found = atoms.get_properties(["energy", "forces", "stress"])
    np.testing.assert_array_equal(found["forces"], forces)
    for name in ("frame.traj", "frame.extxyz"):
        ase.io.write(tmp_path / name, atoms)
        back = ase.io.read(tmp_path / name)
        assert back.get_potential_energy() == pytest.approx(energy)
        np.testing.assert_allclose(back.get_forces(), forces, atol=1e-7)
        np.testing.assert_allclose(back.get_stress(), stress, atol=1e-7)
    both = SumCalculator([EnsembleCalculator(lively), EMT()]).get_potential_energy(atoms)
    assert both == pytest.approx(energy + EMT().get_potential_energy(atoms))


def with_unit(ensemble, unit):
    targets = ensemble.manifest.targets
    energy = targets["energy"].model_copy(update={"unit": unit})
    return with_manifest(ensemble, targets={**targets, "energy": energy})


@pytest.mark.parametrize(
    ("change", "asked", "says"),
    [
        (property_ensemble, {}, "predicts energy and is no interatomic potential"),
        (
            lambda e: with_manifest(e, provenance={"own_edges": True}),
            {},
            "reads edges that the training data brought",
        ),
        (lambda e: with_unit(e, ""), {}, "in unknown units, .* energy_units_to_eV"),
        (lambda e: e, {"device": "cuda:99"}, "device cuda:99: cannot be used"),
        (lambda e: e, {"energy_units_to_eV": 0.0}, "energy_units_to_eV is 0"),
        (lambda e: e, {"energy_units_to_eV": np.nan}, "energy_units_to_eV is nan"),
    ],
)
def test_what_it_cannot_compute_with_is_refused_at_once(lively, change, asked, says):
    with pytest.raises(InputError, match=says):
        EnsembleCalculator(change(lively), **asked)


@pytest.mark.parametrize(
    ("unit", "asked", "in_ev"),
    [("kcal/mol", {}, 0.0433641), ("Hartree", {}, 27.2114), ("", {"energy_units_to_eV": 0.5}, 0.5)],
)
def test_energies_are_in_ev_whatever_the_training_data_have(lively, unit, asked, in_ev):
    plain = calculated(lively, rattled())
    calculator = EnsembleCalculator(with_unit(lively, unit), **asked)
    calculator.calculate(rattled())
    found = calculator.results
    assert found.keys() == plain.keys() == set(calculator.implemented_properties)
    for name in found.keys() - {"note", "flagged", "disagreement"}:
        power = 2 if name.endswith("_var") else 1
        expected = plain[name] * in_ev**power
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, err_msg=name)


def test_what_is_not_finite_is_no_result(lively):
    models = copy.deepcopy(lively.models)
    with torch.no_grad():
        next(iter(models[1].parameters())).fill_(np.nan)
    atoms = rattled()
    atoms.calc = EnsembleCalculator(replace(lively, models=models))
    with pytest.raises(CalculationFailed, match="energy of this structure is not finite"):
        atoms.get_forces()
    assert atoms.calc.results == {}


def test_dynamics_conserve_the_energy(lively):
    """Atoms pass the cutoff and the sides of the cell meanwhile."""
    atoms = rattled()
    atoms.rattle(0.3, seed=1)
    atoms.calc = EnsembleCalculator(lively, energy_units_to_eV=10)  # steeper
    momenta = np.random.default_rng(0).normal(0, 3, (len(atoms), 3))
    atoms.set_momenta(momenta - momenta.mean(axis=0))
    kinetic, total, edges = [], [], set()

    def watch():
        kinetic.append(atoms.get_kinetic_energy())
        total.append(atoms.get_total_energy())
        edges.add(int(lively.batch_of(atoms).num_edges))

    dynamics = VelocityVerlet(atoms, 2 * units.fs)
    dynamics.attach(watch)
    dynamics.run(40)
    assert len(edges) > 1
    assert np.ptp(kinetic) > 0.1  # what the potential took and gave
    assert np.ptp(total) < 0.01 * np.ptp(kinetic)
