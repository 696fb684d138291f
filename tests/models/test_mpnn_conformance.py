"""One suite every message-passing type passes, in float64.

What a type promises beyond the rest stands in ``hydragnn_flow.models.PROPERTIES``. Types that see
lengths are tested as potentials too; the others cannot be one.
"""

from __future__ import annotations

from collections.abc import Callable

import ase
import numpy as np
import pytest
import torch
from ase.geometry import minkowski_reduce
from model_cases import CUTOFF, GOLD, alloy, as_batch, energy_and_forces, lively, outputs

from hydragnn_flow.models import PROPERTIES, HydraModel

Make = Callable[..., HydraModel]
# Graphs are stored in float32, so a structure that was moved is not quite the same: this share of
# the largest number.
STORED = 2e-5


@pytest.fixture(params=["properties", "potential"])
def anything(request: pytest.FixtureRequest, mpnn: str, make: Make) -> HydraModel:
    """A network of each type: as a potential, where it can be one, and for other targets."""
    potential = request.param == "potential"
    if potential and PROPERTIES[mpnn].lengths == "never":
        pytest.skip(f"{mpnn} sees no lengths, so it cannot be a potential")
    features = None if potential or PROPERTIES[mpnn].lengths == "never" else ["lengths"]
    return lively(make(mpnn, potential=potential, edge_features=features))


def _same(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], **tolerance: float
) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], err_msg=name, **tolerance)


def _same_as_stored(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        atol = STORED * np.abs(values).max()
        np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=name)


def test_structures_are_told_apart(anything: HydraModel) -> None:
    """The other tests would pass for a constant too."""
    # Networks without lengths see only who is whose neighbour, so one atom more at another place.
    first, second = alloy(0), alloy(1, spacing=3.3)
    del second[0]
    for name, values in outputs(anything, first, second).items():
        if len(values) == 2:
            assert np.abs(values[0] - values[1]).max() > 1e-3, name
        assert np.ptp(values) > 1e-3, name


def test_batch_mates_do_not_matter(anything: HydraModel) -> None:
    structures = [alloy(0), alloy(1).repeat((2, 1, 1)), alloy(2, spacing=3.5), ase.Atoms("Au")]
    together = outputs(anything, *structures)
    alone = [outputs(anything, structure) for structure in structures]
    for name in together:
        expected = np.concatenate([values[name] for values in alone])
        np.testing.assert_allclose(together[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)


def test_atom_order_does_not_matter(anything: HydraModel) -> None:
    atoms = alloy().repeat((2, 1, 1))
    order = np.random.default_rng(1).permutation(len(atoms))
    plain, permuted = outputs(anything, atoms), outputs(anything, atoms[order])
    by_atom = {name for name, values in plain.items() if len(values) == len(atoms)}
    expected = {name: v[order] if name in by_atom else v for name, v in plain.items()}
    _same(permuted, expected, rtol=1e-10, atol=1e-10)


def test_edge_order_does_not_matter(anything: HydraModel) -> None:
    """HydraGNN's files hold edges in any order."""
    batch, shuffled = as_batch(alloy()), as_batch(alloy())
    order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
    shuffled.edge_index = batch.edge_index[:, order]
    shuffled.edge_shifts, shuffled.edge_attr = batch.edge_shifts[order], batch.edge_attr[order]
    expected = {name: value.detach().numpy() for name, value in anything(batch).items()}
    found = {name: value.detach().numpy() for name, value in anything(shuffled).items()}
    _same(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("far", [2, 3000], ids=["near", "far"])
def test_choice_of_periodic_image_does_not_matter(anything: HydraModel, far: int) -> None:
    """Nor does it after a molecular dynamics of which nobody has wrapped the atoms."""
    atoms, moved = alloy(exact=False), alloy(exact=False)
    images = np.random.default_rng(2).integers(-far, far + 1, (len(atoms), 3))
    moved.positions += images @ atoms.cell.array
    _same_as_stored(outputs(anything, moved), outputs(anything, atoms))


def test_choice_of_cell_vectors_does_not_matter(anything: HydraModel) -> None:
    atoms, sheared = alloy(), alloy()
    sheared.set_cell([[1, 1, 0], [0, 1, 0], [2, 0, 1]] @ atoms.cell.array)
    assert not np.allclose(minkowski_reduce(sheared.cell)[0], sheared.cell.array)
    _same_as_stored(outputs(anything, sheared), outputs(anything, atoms))


@pytest.mark.parametrize("pbc", [True, (True, True, False), False], ids=["bulk", "slab", "cluster"])
def test_translation_does_not_matter(
    anything: HydraModel, pbc: bool | tuple[bool, bool, bool]
) -> None:
    atoms = alloy(exact=False)
    atoms.pbc = pbc
    moved = atoms.copy()
    moved.positions += [1234.567, -9876.543, 10101.01]
    _same_as_stored(outputs(anything, moved), outputs(anything, atoms))


@pytest.mark.parametrize("mirror", [1, -1], ids=["rotation", "reflection"])
def test_vectors_turn_with_the_frame_and_nothing_else_does(
    anything: HydraModel, mirror: int
) -> None:
    frame, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    turn = torch.from_numpy(frame * mirror * np.linalg.det(frame)).t()
    batch, turned = as_batch(alloy()), as_batch(alloy())
    # In float64: stored in float32, a turned structure is not quite the same.
    turned.pos, turned.edge_shifts = batch.pos.double() @ turn, batch.edge_shifts.double() @ turn
    expected, found = anything(batch), anything(turned)
    for name, value in expected.items():
        wanted = value @ turn if name == "forces" else value
        atol = 1e-9 * float(wanted.detach().abs().max())
        torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("head", ["node", "graph"])
def test_supercell_has_eight_times_the_energy(potential_type: str, make: Make, head: str) -> None:
    pooling = {"graph_pooling": "add"} if head == "graph" else {}
    model = make(potential_type, head=head, **pooling).double().eval()
    cell, forces = energy_and_forces(model, alloy())
    supercell, all_forces = energy_and_forces(model, alloy().repeat(2))
    np.testing.assert_allclose(supercell, 8 * cell, rtol=1e-12)
    np.testing.assert_allclose(all_forces, np.tile(forces, (8, 1)), atol=1e-10)


def test_supercell_has_the_same_properties(model: HydraModel) -> None:
    """Pooled by the mean, what is predicted does not depend on how many copies are described."""
    cell, supercell = outputs(model, alloy()), outputs(model, alloy().repeat(2))
    np.testing.assert_allclose(supercell["gap"], cell["gap"], rtol=1e-10)
    np.testing.assert_allclose(supercell["charge"], np.tile(cell["charge"], (8, 1)), rtol=1e-9)


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
    np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-11 * np.abs(forces).max())


def _trimer(distance: float) -> ase.Atoms:
    return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])


def _pair(distance: float) -> ase.Atoms:
    return ase.Atoms([GOLD, GOLD], [[0, 0, 0], [distance, 0, 0]])


@pytest.mark.parametrize("structure", [_trimer, _pair])
def test_energy_is_continuous_at_the_cutoff(
    potential_type: str, potential: HydraModel, structure: Callable[[float], ase.Atoms]
) -> None:
    promised = PROPERTIES[potential_type]
    if not promised.continuous_at_cutoff:
        pytest.skip(f"{potential_type} does not promise it")
    steps = []
    for gap in (3e-4, 3e-5):
        inside, outside = structure(CUTOFF - gap), structure(CUTOFF + gap)
        assert as_batch(inside).num_edges > as_batch(outside).num_edges
        energies, forces = energy_and_forces(potential, inside, outside)
        n = len(inside)
        steps.append((abs(energies[0] - energies[1]), np.abs(forces[:n] - forces[n:]).max()))
    (far, far_force), (near, near_force) = steps
    # An edge that entered with its full weight would change it by about 1 eV, however near.
    assert near < 1e-3 and near < 0.2 * far + 1e-9
    if promised.smooth_forces:
        assert near_force < 0.2 * far_force + 1e-9


def test_angles_matter_where_the_type_sees_them(potential_type: str, make: Make) -> None:
    """Two neighbours of one atom, too far from each other to be neighbours themselves."""
    model = lively(make(potential_type, num_conv_layers=1))

    def bent(angle: float) -> ase.Atoms:
        end = 2.5 * np.array([np.cos(angle), np.sin(angle), 0.0])
        return ase.Atoms("AuCuAu", [[2.5, 0, 0], [0, 0, 0], end])

    energies, _ = energy_and_forces(model, bent(np.pi), bent(2.2))
    assert (abs(energies[0] - energies[1]) > 1e-4) == PROPERTIES[potential_type].sees_angles


def test_a_lone_atom_has_an_energy(potential: HydraModel) -> None:
    energies, forces = energy_and_forces(potential, ase.Atoms("Cu"))
    assert np.isfinite(energies).all()
    np.testing.assert_array_equal(forces, np.zeros((1, 3)))


def test_ideal_lattices_and_coinciding_atoms_train(potential_type: str, make: Make) -> None:
    """Zero forces and zero lengths are where roots have infinite slopes."""
    model = make(potential_type)
    ideal = ase.build.bulk("Cu", "fcc", a=3.75, cubic=True)
    batch = as_batch(ideal, ase.Atoms("Cu2", [[0, 0, 0], [1, 0, 0]]))
    batch.pos[5] = batch.pos[4]  # as only graphs that were not made of atoms can have it
    outputs = model(batch)
    (outputs["energy"].square().sum() + outputs["forces"].square().sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def _check_gradients(model: HydraModel) -> None:
    outputs = model(as_batch(alloy(0), alloy(1)))
    sum(value.float().square().sum() for value in outputs.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_gradient_reaches_every_parameter(mpnn: str, make: Make) -> None:
    _check_gradients(make(mpnn, potential=False))


def test_gradient_reaches_every_parameter_of_a_potential(potential_type: str, make: Make) -> None:
    _check_gradients(make(potential_type))


def test_same_seed_same_numbers(mpnn: str, make: Make) -> None:
    batch = as_batch(alloy(0), alloy(1))
    first, second = (make(mpnn, potential=False).eval()(batch) for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name])


def test_recomputed_layers_give_the_same_gradients(potential_type: str, make: Make) -> None:
    batch = as_batch(alloy(0), alloy(1))
    gradients = []
    for checkpointing in (False, True):
        model = make(potential_type).double()
        model.encoder.checkpointing = checkpointing
        outputs = model(batch)
        (outputs["energy"].sum() + outputs["forces"].square().sum()).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["none", "layer", "graph"])
def test_every_normalisation_learns_from_its_graph_alone(mpnn: str, make: Make, kind: str) -> None:
    model = make(mpnn, potential=False, normalization=kind).double()
    _check_gradients(model)
    first, second = alloy(0), alloy(1).repeat((2, 1, 1))
    together, alone = model.eval()(as_batch(first, second)), model(as_batch(first))
    torch.testing.assert_close(together["gap"][:1], alone["gap"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("features", [None, ["lengths"], ["area"]])
def test_lengths_matter_where_the_type_sees_them(
    mpnn: str, make: Make, features: list[str] | None
) -> None:
    promised = PROPERTIES[mpnn].lengths
    if promised == "never" and features:
        pytest.skip(f"{mpnn} reads nothing of edges, and the configuration refuses to ask it to")
    model = make(mpnn, potential=False, edge_features=features).eval()
    batch = as_batch(alloy())
    before = model(batch)["charge"]
    batch.pos = batch.pos + 0.1 * torch.randn_like(batch.pos)
    moved = not torch.equal(model(batch)["charge"], before)
    assert moved == {"always": True, "request": features == ["lengths"], "never": False}[promised]


def test_attributes_of_edges_matter_where_the_type_reads_them(mpnn: str, make: Make) -> None:
    if PROPERTIES[mpnn].lengths == "never":
        pytest.skip(f"{mpnn} reads nothing of edges, and the configuration refuses to ask it to")
    model = make(mpnn, potential=False, edge_features=["lengths", "area"]).eval()
    batch = as_batch(alloy())
    area = torch.rand(batch.num_edges, 1)
    batch.edge_attr = torch.cat([batch.edge_attr, area], dim=1)
    before = model(batch)["charge"]
    batch.edge_attr = torch.cat([batch.edge_attr[:, :1], area + 0.5], dim=1)
    assert not torch.equal(model(batch)["charge"], before)
