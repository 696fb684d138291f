"""One suite every message-passing type passes, as a potential in float64."""

from __future__ import annotations

from collections.abc import Callable

import ase
import numpy as np
import pytest
import torch
from ase.geometry import minkowski_reduce
from model_cases import CUTOFF, GOLD, alloy, as_batch, energy_and_forces

from hydragnn_flow.models import PROPERTIES, HydraModel

Make = Callable[..., HydraModel]
# Graphs are stored in float32, so a structure that was moved is not quite the same.
STORED = {"rtol": 5e-6, "atol": 2e-5}


def test_structures_are_told_apart(potential: HydraModel) -> None:
    """The other tests would pass for a constant energy too."""
    energies, forces = energy_and_forces(potential, alloy(0), alloy(1))
    assert abs(energies[0] - energies[1]) > 1e-3
    assert np.abs(forces).max() > 1e-2


def test_batch_mates_do_not_matter(potential: HydraModel) -> None:
    structures = [alloy(0), alloy(1).repeat((2, 1, 1)), alloy(2, spacing=3.5)]
    together, forces_together = energy_and_forces(potential, *structures)
    alone = [energy_and_forces(potential, structure) for structure in structures]
    np.testing.assert_allclose(together, np.concatenate([e for e, _ in alone]), rtol=1e-12)
    np.testing.assert_allclose(forces_together, np.concatenate([f for _, f in alone]), atol=1e-12)


def test_atom_order_does_not_matter(potential: HydraModel) -> None:
    atoms = alloy().repeat((2, 1, 1))
    order = np.random.default_rng(1).permutation(len(atoms))
    energy, forces = energy_and_forces(potential, atoms)
    permuted_energy, permuted_forces = energy_and_forces(potential, atoms[order])
    np.testing.assert_allclose(permuted_energy, energy, rtol=1e-12)
    np.testing.assert_allclose(permuted_forces, forces[order], atol=1e-12)


def test_choice_of_periodic_image_does_not_matter(potential: HydraModel) -> None:
    atoms, moved = alloy(), alloy()
    images = np.random.default_rng(2).integers(-2, 3, (len(atoms), 3))
    moved.positions += images @ atoms.cell.array
    expected, found = energy_and_forces(potential, atoms), energy_and_forces(potential, moved)
    np.testing.assert_allclose(found[0], expected[0], **STORED)
    np.testing.assert_allclose(found[1], expected[1], **STORED)


def test_choice_of_cell_vectors_does_not_matter(potential: HydraModel) -> None:
    atoms, sheared = alloy(), alloy()
    sheared.set_cell([[1, 1, 0], [0, 1, 0], [2, 0, 1]] @ atoms.cell.array)
    assert not np.allclose(minkowski_reduce(sheared.cell)[0], sheared.cell.array)
    expected, found = energy_and_forces(potential, atoms), energy_and_forces(potential, sheared)
    np.testing.assert_allclose(found[0], expected[0], **STORED)
    np.testing.assert_allclose(found[1], expected[1], **STORED)


def test_translation_does_not_matter(potential: HydraModel) -> None:
    atoms, moved = alloy(), alloy()
    moved.positions += [0.7, -3.1, 12.9]
    expected, found = energy_and_forces(potential, atoms), energy_and_forces(potential, moved)
    np.testing.assert_allclose(found[0], expected[0], **STORED)
    np.testing.assert_allclose(found[1], expected[1], **STORED)


@pytest.mark.parametrize("mirror", [1, -1], ids=["rotation", "reflection"])
def test_forces_turn_with_the_frame(potential: HydraModel, mirror: int) -> None:
    atoms, turned = alloy(), alloy()
    frame, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    frame *= mirror * np.linalg.det(frame)
    turned.set_cell(atoms.cell.array @ frame.T)
    turned.positions = atoms.positions @ frame.T
    energy, forces = energy_and_forces(potential, atoms)
    turned_energy, turned_forces = energy_and_forces(potential, turned)
    np.testing.assert_allclose(turned_energy, energy, **STORED)
    np.testing.assert_allclose(turned_forces, forces @ frame.T, **STORED)


@pytest.mark.parametrize("head", ["node", "graph"])
def test_supercell_has_eight_times_the_energy(mpnn: str, make: Make, head: str) -> None:
    pooling = {"graph_pooling": "add"} if head == "graph" else {}
    model = make(mpnn, head=head, **pooling).double().eval()
    cell, forces = energy_and_forces(model, alloy())
    supercell, all_forces = energy_and_forces(model, alloy().repeat(2))
    np.testing.assert_allclose(supercell, 8 * cell, rtol=1e-12)
    np.testing.assert_allclose(all_forces, np.tile(forces, (8, 1)), atol=1e-10)


def test_forces_are_the_gradient_of_the_energy(potential: HydraModel) -> None:
    batch = as_batch(alloy())
    batch.pos = batch.pos.double()
    forces = potential(batch)["forces"].clone()
    # Short, because the extremes of PNA have kinks that a long step would straddle.
    step = 1e-5
    numeric = torch.zeros_like(forces)
    for index in np.ndindex(*forces.shape):
        up, down = batch.clone(), batch.clone()
        up.pos[index] += step
        down.pos[index] -= step
        difference = potential(up)["energy"] - potential(down)["energy"]
        numeric[index] = -difference.item() / (2 * step)
    torch.testing.assert_close(forces, numeric, rtol=0, atol=1e-6 * float(forces.abs().max()))


def test_forces_sum_to_zero(potential: HydraModel) -> None:
    _, forces = energy_and_forces(potential, alloy())
    np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-12)


def test_energy_is_continuous_at_the_cutoff(mpnn: str, potential: HydraModel) -> None:
    if not PROPERTIES[mpnn].continuous_at_cutoff:
        pytest.skip(f"{mpnn} does not promise it")

    def trimer(distance: float) -> ase.Atoms:
        return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])

    def pair(distance: float) -> ase.Atoms:
        return ase.Atoms([GOLD, GOLD], [[0, 0, 0], [distance, 0, 0]])

    for structure in (trimer, pair):
        inside, outside = structure(CUTOFF - 3e-5), structure(CUTOFF + 3e-5)
        assert as_batch(inside).num_edges > as_batch(outside).num_edges
        energies, _ = energy_and_forces(potential, inside, outside)
        # An edge that entered with its full weight would change it by about 1 eV.
        assert abs(energies[0] - energies[1]) < 1e-4


def test_a_lone_atom_has_an_energy(potential: HydraModel) -> None:
    energies, forces = energy_and_forces(potential, ase.Atoms("Cu"))
    assert np.isfinite(energies).all()
    np.testing.assert_array_equal(forces, np.zeros((1, 3)))


def test_ideal_lattices_and_coinciding_atoms_train(mpnn: str, make: Make) -> None:
    """Zero forces and zero lengths are where roots have infinite slopes."""
    model = make(mpnn)
    ideal = ase.build.bulk("Cu", "fcc", a=3.75, cubic=True)
    coinciding = ase.Atoms("Cu2", [[0, 0, 0], [0, 0, 0]])
    batch = as_batch(ideal, coinciding)
    batch.edge_index = torch.cat([batch.edge_index, torch.tensor([[4, 5], [5, 4]])], dim=1)
    batch.edge_shifts = torch.cat([batch.edge_shifts, torch.zeros(2, 3)])
    outputs = model(batch)
    (outputs["energy"].square().sum() + outputs["forces"].square().sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("potential_mode", [True, False], ids=["potential", "properties"])
def test_gradient_reaches_every_parameter(mpnn: str, make: Make, potential_mode: bool) -> None:
    model = make(mpnn, potential=potential_mode)
    outputs = model(as_batch(alloy(0), alloy(1)))
    sum(value.float().square().sum() for value in outputs.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_same_seed_same_numbers(mpnn: str, make: Make) -> None:
    batch = as_batch(alloy(0), alloy(1))
    first, second = (make(mpnn).eval()(batch) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("features", [None, ["lengths"]])
def test_lengths_matter_where_the_type_sees_them(
    mpnn: str, make: Make, features: list[str] | None
) -> None:
    model = make(mpnn, potential=False, edge_features=features).eval()
    batch = as_batch(alloy())
    before = model(batch)["charge"]
    batch.pos = batch.pos + 0.1 * torch.randn_like(batch.pos)
    moved = not torch.equal(model(batch)["charge"], before)
    assert moved == (PROPERTIES[mpnn].always_sees_lengths or features is not None)
