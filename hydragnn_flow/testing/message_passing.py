"""Conformance suites for message-passing types, shipped or a user's own, in float64.

Subclass :class:`PropertySuite`, and :class:`PotentialSuite` too for a type that reads lengths::

    import pytest
    from hydragnn_flow.testing.message_passing import PotentialSuite, PropertySuite

    class TestMine(PropertySuite):
        @pytest.fixture
        def mpnn_type(self) -> str:
            return "my_package.my_module:Mine"

    class TestMyPotential(PotentialSuite):
        @pytest.fixture
        def mpnn_type(self) -> str:
            return "my_package.my_module:Mine"

The suites check the guarantees in the :class:`~hydragnn_flow.models.mpnn.Properties` of a type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import ase.build
import numpy as np
import pytest
import torch
from ase.geometry import minkowski_reduce

from hydragnn_flow.config.network import Architecture, load_network
from hydragnn_flow.config.network.mpnn_types import READ_BY, Properties, properties_of
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import HydraModel, build_model, network_cost
from hydragnn_flow.models.mpnn import DatasetStatistics, make_stack
from hydragnn_flow.testing.networks import (
    CUTOFF,
    GOLD,
    AnyPotentialSuite,
    NetworkSuite,
    alloy,
    as_batch,
    build,
    energy_and_forces,
    lively,
    manifest,
    network,
    outputs,
)

Make = Callable[..., HydraModel]
# Tolerance relative to the largest number: graphs are stored in float32, so moving a structure
# changes it slightly.
_STORED = 2e-5


def _trimer(distance: float) -> ase.Atoms:
    return ase.Atoms("CuAuCu", [[0, 0, 0], [distance, 0, 0], [0, 2.5, 0]])


def _pair(distance: float) -> ase.Atoms:
    return ase.Atoms([GOLD, GOLD], [[0, 0, 0], [distance, 0, 0]])


class _Suite(NetworkSuite):
    """Tests of one kind of network: potentials, or separate targets."""

    tolerance, least, lone = 1e-10, 1e-3, ("Au",)
    potential: ClassVar[bool]
    architecture: ClassVar[dict[str, Any]] = {}
    """Keys of `Architecture` that all networks have, such as ``mpnn_options``."""

    @pytest.fixture
    def mpnn_type(self) -> str:
        """Return the name of the message-passing type.

        A subclass overrides this fixture, with pytest's ``params`` to test several types.
        """
        raise NotImplementedError("override the fixture mpnn_type")

    @pytest.fixture
    def properties(self, mpnn_type: str) -> Properties:
        """Return the properties of the message-passing type."""
        return properties_of(mpnn_type)

    @pytest.fixture
    def make(self, mpnn_type: str) -> Make:
        """Return a function that builds a network with weights of seed 0.

        Its keywords are keys of `Architecture`, and ``head`` of a potential.
        """

        def make(**options: Any) -> HydraModel:
            return build(mpnn_type, **{"potential": self.potential, **self.architecture, **options})

        return make

    @pytest.fixture
    def model(self, properties: Properties, make: Make) -> HydraModel:
        """Return a network in float64 evaluation mode, which reads lengths if its type can."""
        asks = not self.potential and properties.lengths != "never"
        return lively(make(edge_features=["lengths"] if asks else None))

    def test_edge_order_does_not_matter(self, model: HydraModel) -> None:
        """Check that predictions do not depend on the order of the edges.

        Files of HydraGNN have edges in any order.
        """
        batch, shuffled = as_batch(alloy()), as_batch(alloy())
        order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
        shuffled.edge_index = batch.edge_index[:, order]
        shuffled.edge_shifts, shuffled.edge_attr = batch.edge_shifts[order], batch.edge_attr[order]
        expected = {name: value.detach().numpy() for name, value in model(batch).items()}
        found = {name: value.detach().numpy() for name, value in model(shuffled).items()}
        self.same(found, expected)

    @pytest.mark.parametrize("far", [2, 3000], ids=["near", "far"])
    def test_choice_of_periodic_image_does_not_matter(self, model: HydraModel, far: int) -> None:
        """Check that predictions do not depend on the periodic image in which an atom is given.

        Trajectories of molecular dynamics may have unwrapped atoms, far outside the cell.
        """
        atoms, moved = alloy(exact=False), alloy(exact=False)
        images = np.random.default_rng(2).integers(-far, far + 1, (len(atoms), 3))
        moved.positions += images @ atoms.cell.array
        self.same(outputs(model, moved), outputs(model, atoms), _STORED)

    def test_choice_of_cell_vectors_does_not_matter(self, model: HydraModel) -> None:
        atoms, sheared = alloy(), alloy()
        sheared.set_cell([[1, 1, 0], [0, 1, 0], [2, 0, 1]] @ atoms.cell.array)
        assert not np.allclose(minkowski_reduce(sheared.cell)[0], sheared.cell.array)
        self.same(outputs(model, sheared), outputs(model, atoms), _STORED)

    @pytest.mark.parametrize(
        "pbc", [True, (True, True, False), False], ids=["bulk", "slab", "cluster"]
    )
    def test_translation_does_not_matter(
        self, model: HydraModel, pbc: bool | tuple[bool, bool, bool]
    ) -> None:
        atoms = alloy(exact=False)
        atoms.pbc = pbc
        moved = atoms.copy()
        moved.positions += [1234.567, -9876.543, 10101.01]
        self.same(outputs(model, moved), outputs(model, atoms), _STORED)

    @pytest.mark.parametrize("mirror", [1, -1], ids=["rotation", "reflection"])
    def test_vectors_turn_with_the_frame_and_nothing_else_does(
        self, model: HydraModel, mirror: int
    ) -> None:
        frame, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
        turn = torch.from_numpy(frame * mirror * np.linalg.det(frame)).t()
        batch, turned = as_batch(alloy()), as_batch(alloy())
        # In float64, because rounding to float32 would change a rotated structure slightly.
        turned.pos, turned.edge_shifts = (
            batch.pos.double() @ turn,
            batch.edge_shifts.double() @ turn,
        )
        expected, found = model(batch), model(turned)
        for name, value in expected.items():
            wanted = value @ turn if name == "forces" else value
            atol = 1e-9 * float(wanted.detach().abs().max())
            torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=atol)

    def test_gradient_reaches_every_parameter(self, make: Make) -> None:
        _check_gradients(make())

    def test_costs_the_same_without_numbers(self, mpnn_type: str, make: Make) -> None:
        """Check that the counted cost of a network is the same on the meta device.

        The cost of a trial is counted there before the trial runs.
        """
        section = network(mpnn_type, potential=self.potential, **self.architecture)
        with torch.device("meta"):
            empty = build_model(section, manifest())
        assert network_cost(empty, 100, 2000, 4) == network_cost(make(), 100, 2000, 4)


class PropertySuite(_Suite):
    """Conformance tests of any message-passing type, in networks with several targets."""

    potential = False

    def test_supercell_has_the_same_properties(self, model: HydraModel) -> None:
        """Outputs pooled by the mean do not depend on the number of copies of the cell."""
        cell, supercell = outputs(model, alloy()), outputs(model, alloy().repeat(2))
        np.testing.assert_allclose(supercell["gap"], cell["gap"], rtol=1e-10)
        np.testing.assert_allclose(supercell["charge"], np.tile(cell["charge"], (8, 1)), rtol=1e-9)

    @pytest.mark.parametrize("features", [None, ["lengths"], ["area"]])
    def test_lengths_matter_where_the_type_sees_them(
        self, properties: Properties, make: Make, features: list[str] | None
    ) -> None:
        lengths, attributes = properties.lengths != "never", properties.edge_attributes
        if (features == ["lengths"] and not lengths) or (features == ["area"] and not attributes):
            with pytest.raises(InputError, match=f"edge_features names {features[0]!r}"):
                make(edge_features=features)
            return
        model = make(edge_features=features).eval()
        batch = as_batch(alloy())
        before = model(batch)["charge"]
        batch.pos = batch.pos + 0.1 * torch.randn_like(batch.pos)
        moved = not torch.equal(model(batch)["charge"], before)
        asked = {"always": True, "request": features == ["lengths"], "never": False}
        assert moved == asked[properties.lengths]

    def test_attributes_of_edges_matter_where_the_type_reads_them(
        self, properties: Properties, make: Make
    ) -> None:
        if not properties.edge_attributes:
            pytest.skip("the type reads none; the test above sees them refused")
        model = make(edge_features=["area"]).eval()
        batch = as_batch(alloy())
        batch.edge_attr = torch.rand(batch.num_edges, 1)
        before = model(batch)["charge"]
        batch.edge_attr = batch.edge_attr + 0.5
        assert not torch.equal(model(batch)["charge"], before)

    @pytest.mark.parametrize("kind", ["none", "layer", "graph"])
    def test_every_normalisation_learns_from_its_graph_alone(self, make: Make, kind: str) -> None:
        model = make(normalization=kind).double()
        _check_gradients(model)
        first, second = alloy(0), alloy(1).repeat((2, 1, 1))
        together, alone = model.eval()(as_batch(first, second)), model(as_batch(first))
        torch.testing.assert_close(together["gap"][:1], alone["gap"], rtol=1e-10, atol=1e-10)

    def test_it_reads_the_keys_it_names_and_no_other(
        self, mpnn_type: str, properties: Properties
    ) -> None:
        features = None if properties.lengths == "never" else ["lengths"]
        section = network(mpnn_type, potential=False, edge_features=features, **self.architecture)
        architecture = load_network(section).Architecture
        assert isinstance(architecture, Architecture)
        watched = _Watched(architecture)
        statistics = DatasetStatistics(5.0, 8.0, (0, 2, 5, 3), elements=(1, 6, 8))
        # A stand-in for the section, whose class does not let reads of its keys be recorded.
        make_stack(cast("Architecture", watched), statistics, 8, 2)
        assert watched.read & set(READ_BY) == set(properties.keys)
        assert not watched.read & architecture.unread()

    def test_vectors_are_as_its_properties_say(self, properties: Properties, make: Make) -> None:
        """Check that layers pass on tensors (equivariant features) as the type's properties say.

        The first of two layers returns tensors if the type passes on equivariant features.
        """
        batch, has = as_batch(alloy()), []
        for equivariance in (False, True):
            model = make(equivariance=equivariance, num_conv_layers=2)
            stack, geometry = model.encoder.layers, model.encoder.geometry(batch, batch.pos)
            nodes = model.encoder.embedding(batch.x, batch.pos.dtype)
            layer, state = stack.layers[0], stack.begin(nodes, geometry)
            has.append(layer(state, stack.edge_features(geometry), geometry).tensors is not None)
        expected = {"always": [True, True], "request": [False, True], "never": [False, False]}
        assert has == expected[properties.vectors]

    def test_same_seed_same_numbers(self, make: Make) -> None:
        batch = as_batch(alloy(0), alloy(1))
        first, second = (make().eval()(batch) for _ in range(2))
        for name in first:
            assert torch.equal(first[name], second[name])


class PotentialSuite(AnyPotentialSuite, _Suite):
    """Conformance tests of a message-passing type that reads edge lengths, in potentials."""

    potential = True

    @pytest.mark.parametrize("head", ["node", "graph"])
    def test_supercell_has_eight_times_the_energy(self, make: Make, head: str) -> None:
        pooling = {"graph_pooling": "add"} if head == "graph" else {}
        model = make(head=head, **pooling).double().eval()
        cell, forces = energy_and_forces(model, alloy())
        supercell, all_forces = energy_and_forces(model, alloy().repeat(2))
        np.testing.assert_allclose(supercell, 8 * cell, rtol=1e-12)
        np.testing.assert_allclose(all_forces, np.tile(forces, (8, 1)), atol=1e-10)

    def test_forces_are_the_gradient_of_the_energy(self, model: HydraModel) -> None:
        batch = as_batch(alloy())
        batch.pos = batch.pos.double()
        forces = model(batch)["forces"].clone()
        # Short, because the extremes of PNA have kinks that a long step would straddle.
        step = 1e-5
        numeric = torch.zeros_like(forces)
        for index in np.ndindex(*forces.shape):
            up, down = batch.clone(), batch.clone()
            up.pos[index] += step
            down.pos[index] -= step
            difference = model(up)["energy"] - model(down)["energy"]
            numeric[index] = -difference.item() / (2 * step)
        torch.testing.assert_close(forces, numeric, rtol=0, atol=1e-6 * float(forces.abs().max()))

    def test_forces_sum_to_zero(self, model: HydraModel) -> None:
        _, forces = energy_and_forces(model, alloy())
        np.testing.assert_allclose(forces.sum(axis=0), 0.0, atol=1e-11 * np.abs(forces).max())

    @pytest.mark.parametrize("structure", [_trimer, _pair])
    def test_energy_is_continuous_at_the_cutoff(
        self, properties: Properties, model: HydraModel, structure: Callable[[float], ase.Atoms]
    ) -> None:
        if not properties.continuous_at_cutoff:
            pytest.skip("its properties do not say so")
        steps = []
        for gap in (3e-4, 3e-5):
            inside, outside = structure(CUTOFF - gap), structure(CUTOFF + gap)
            assert as_batch(inside).num_edges > as_batch(outside).num_edges
            energies, forces = energy_and_forces(model, inside, outside)
            n = len(inside)
            steps.append((abs(energies[0] - energies[1]), np.abs(forces[:n] - forces[n:]).max()))
        (far, far_force), (near, near_force) = steps
        # An edge with its full weight would change the energy by about 1 eV at any gap.
        assert near < 1e-3 and near < 0.2 * far + 1e-9
        if properties.smooth_forces:
            assert near_force < 0.2 * far_force + 1e-9

    def test_angles_matter_where_the_type_sees_them(
        self, properties: Properties, make: Make
    ) -> None:
        """Check that a bond angle changes the energy if the type sees angles, and only then.

        The outer two of the three atoms are too far apart to be neighbours of each other.
        """
        model = lively(make(num_conv_layers=1))

        def bent(angle: float) -> ase.Atoms:
            end = 2.5 * np.array([np.cos(angle), np.sin(angle), 0.0])
            return ase.Atoms("AuCuAu", [[2.5, 0, 0], [0, 0, 0], end])

        energies, _ = energy_and_forces(model, bent(np.pi), bent(2.2))
        # Far above rounding of 10 eV in float64; with fresh weights angles may hardly matter.
        assert (abs(energies[0] - energies[1]) > 1e-7) == properties.sees_angles

    def test_ideal_lattices_and_coinciding_atoms_train(self, make: Make) -> None:
        """Check that gradients are finite in an ideal lattice and where two atoms coincide.

        Square roots have infinite slopes at zero, the length of an edge between two such atoms. In
        an ideal lattice, forces and sums of vectors are zero too.
        """
        model = make()
        ideal = ase.build.bulk("Cu", "fcc", a=3.75, cubic=True)
        batch = as_batch(ideal, ase.Atoms("Cu2", [[0, 0, 0], [1, 0, 0]]))
        batch.pos[5] = batch.pos[4]  # possible only in graphs that were not made from atoms
        outputs = model(batch)
        (outputs["energy"].square().sum() + outputs["forces"].square().sum()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name

    def test_recomputed_layers_give_the_same_gradients(self, make: Make) -> None:
        batch = as_batch(alloy(0), alloy(1))
        gradients = []
        for checkpointing in (False, True):
            model = make().double()
            model.encoder.layers.checkpointing = checkpointing
            outputs = model(batch)
            (outputs["energy"].sum() + outputs["forces"].square().sum()).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for plain, again in zip(*gradients, strict=True):
            torch.testing.assert_close(again, plain, rtol=1e-9, atol=1e-9)


def _check_gradients(model: HydraModel) -> None:
    outputs = model(as_batch(alloy(0), alloy(1)))
    sum(value.float().square().sum() for value in outputs.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


class _Watched:
    """Wrapper of an `Architecture` that records which keys are read."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self.read: set[str] = set()

    def __getattr__(self, key: str) -> Any:
        self.read.add(key)
        return getattr(self._architecture, key)
