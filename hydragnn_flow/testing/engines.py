"""Conformance suites for an engine's networks: training, resuming, and use in an ensemble.

Subclass :class:`PropertyEngineSuite` or :class:`PotentialEngineSuite`::

    from hydragnn_flow.testing.engines import PotentialEngineSuite

    class TestMine(PotentialEngineSuite):
        engine = "my_package.my_module:build"
        architecture = {"width": 16}

The graphs are of copper and gold. The targets are an energy and forces, or `gap`, two numbers for
each graph, and `charge`, one for each atom.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from hydragnn_flow.campaign.setup.engine_probe import EngineProbe
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import EngineNetwork
from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.models import EngineModel, build_model
from hydragnn_flow.testing.networks import (
    CUTOFF,
    AnyPotentialSuite,
    NetworkSuite,
    alloy,
    as_batch,
    as_graphs,
    manifest,
    outputs,
)
from hydragnn_flow.training.loading import moved
from hydragnn_flow.training.optimizers import Average


class _Suite(NetworkSuite):
    """Tests of an engine's networks of one kind: separate targets, or a potential."""

    tolerance = 2e-4
    engine: ClassVar[str]
    """Value of ``network.engine``; a subclass defines it."""
    architecture: ClassVar[dict[str, Any]] = {}
    """Keys of `Architecture` that are the engine's own."""
    _keys: ClassVar[dict[str, Any]]
    _outputs: ClassVar[dict[str, str]]
    _units: ClassVar[dict[str, list[float]]]
    """Standard deviation of each component, by name of the target."""

    @pytest.fixture
    def network(self) -> EngineNetwork:
        """Return the checked configuration of the network."""
        section = {
            "engine": self.engine,
            "Architecture": {"radius": CUTOFF, **self._keys, **self.architecture},
            "Variables_of_interest": {
                "output_names": list(self._outputs),
                "type": list(self._outputs.values()),
            },
            "Training": {"num_epoch": 1, "batch_size": 2, "Optimizer": {"learning_rate": 1e-3}},
        }
        checked = load_network(section)
        assert isinstance(checked, EngineNetwork)
        return checked

    @pytest.fixture
    def model(self, network: EngineNetwork) -> EngineModel:
        """Build the model, in evaluation mode."""
        return _built(network).eval()

    def test_outputs_have_the_names_and_shapes_that_are_asked_for(self, model: EngineModel) -> None:
        """Check that all outputs are finite.

        The model itself raises an error for an output that is missing or has another shape.
        """
        found = outputs(model, alloy(0), alloy(1))
        assert all(np.isfinite(values).all() for values in found.values())

    def test_the_batch_is_not_changed(self, model: EngineModel) -> None:
        batch, before = as_batch(alloy(0), alloy(1)), as_batch(alloy(0), alloy(1))
        model.train()(batch)
        assert set(batch.keys()) == set(before.keys())
        assert all(torch.equal(batch[key], before[key]) for key in before.keys())  # noqa: SIM118

    def test_weights_are_drawn_from_the_seed(self, network: EngineNetwork) -> None:
        """Check that the seed alone decides the initial weights.

        Ensemble members need different weights, and a restarted trial the same ones.
        """
        first, again, other = (_weights(_built(network, seed)) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_it_learns(self, model: EngineModel) -> None:
        """Check that training on two structures lowers the loss to less than a quarter.

        Labels differ from outputs by one standard deviation, of which 60 steps remove half.
        """
        batch = as_batch(alloy(0), alloy(1))
        model.train()
        wanted = {name: values.detach() for name, values in model(batch).items()}
        wanted = {name: wanted[name] + torch.tensor(unit) for name, unit in self._units.items()}
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            found = model(batch)
            loss = torch.stack(
                [
                    ((found[name] - wanted[name]) / torch.tensor(unit)).square().mean()
                    for name, unit in self._units.items()
                ]
            ).sum()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        assert min(losses) < 0.25 * losses[0]

    def test_a_checkpoint_restores_it(self, network: EngineNetwork, model: EngineModel) -> None:
        model.train()(as_batch(alloy(0), alloy(1)))  # updates running means
        restored = _built(network, seed=7)
        restored.load_state_dict(model.state_dict())
        self.same(outputs(restored.eval(), alloy(2)), outputs(model.eval(), alloy(2)))

    def test_its_weights_can_be_averaged(self, model: EngineModel) -> None:
        average = Average(model.train(), 0.9)
        average.update()
        expected = outputs(copy.deepcopy(model).eval(), alloy(2))
        with average.applied() as averaged:
            assert isinstance(averaged, EngineModel)
            self.same(outputs(averaged, alloy(2)), expected)

    @pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator")
    def test_it_moves_to_an_accelerator(self, model: EngineModel) -> None:
        device = torch.accelerator.current_accelerator()
        assert device is not None
        batch = as_batch(alloy(0), alloy(1))
        here = outputs(model, alloy(0), alloy(1))
        there = model.to(device)(moved(batch, device))
        self.same({k: v.detach().cpu().numpy() for k, v in there.items()}, here)

    def test_another_process_knows_its_cost(self, network: EngineNetwork, tmp_path: Path) -> None:
        """Check that the cost of a network can be measured in another process.

        That process builds the network and takes steps; the driver gets the cost from it.
        """
        graphs = as_graphs(*(alloy(seed) for seed in range(6)))
        for graph in graphs:
            atoms = graph.num_nodes
            graph.energy, graph.forces = torch.zeros(1, 1), torch.zeros(atoms, 3)
            graph.gap, graph.charge = torch.zeros(1, 2), torch.zeros(atoms, 1)
        splits = {"trainset": graphs[:4], "valset": graphs[4:5], "testset": graphs[5:]}
        targets, features = manifest().targets, manifest().node_features
        units = {name: target.unit for name, target in targets.items()}
        path = tmp_path / "store.gs"
        write_store(
            path, splits, targets=targets, units=units, cutoff=CUTOFF, node_features=features
        )
        with GraphStore.open(path) as store, EngineProbe(path) as probe:
            size = store.manifest.splits["trainset"]
            cost = probe.cost(network, size.atoms, size.edges, size.graphs)
        assert cost.parameters == _weights(_built(network)).numel()
        assert cost.bytes > 0 and cost.launches > 0 and cost.peak_bytes > 0


class PropertyEngineSuite(_Suite):
    """Conformance tests of an engine (builder of networks) for a graph target and a node target."""

    _keys: ClassVar[dict[str, Any]] = {}
    _outputs: ClassVar[dict[str, str]] = {"gap": "graph", "charge": "node"}
    _units: ClassVar[dict[str, list[float]]] = {"gap": [0.5, 3.0], "charge": [0.02]}


class PotentialEngineSuite(AnyPotentialSuite, _Suite):
    """Conformance tests of an engine (builder of networks) for potentials: energy and forces."""

    _keys: ClassVar[dict[str, Any]] = {
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "force_weight": 1.0,
    }
    _outputs: ClassVar[dict[str, str]] = {"energy": "graph"}
    _units: ClassVar[dict[str, list[float]]] = {"energy": [0.8]}

    def test_forces_are_the_gradient_of_the_energy(self, model: EngineModel) -> None:
        """Check that forces are the negative gradient of the energy.

        Override this test for a network that predicts forces directly.
        """
        model, step = model.double(), 1e-4
        batch = as_batch(alloy())
        batch.pos = batch.pos.double()
        forces = model(batch)["forces"]
        for index in ((0, 0), (1, 2), (3, 1)):
            up, down = batch.clone(), batch.clone()
            up.pos[index] += step
            down.pos[index] -= step
            slope = (model(up)["energy"] - model(down)["energy"]).item() / (2 * step)
            assert abs(forces[index].item() + slope) <= 1e-3 * float(forces.abs().max())

    def test_the_energy_does_not_depend_on_the_place_or_the_periodic_image(
        self, model: EngineModel
    ) -> None:
        atoms, elsewhere = alloy(), alloy()
        elsewhere.positions += [0.5, -1.25, 2.0]
        elsewhere.wrap()
        self.same(outputs(model, elsewhere), outputs(model, atoms))

    def test_the_energy_grows_with_the_structure(self, model: EngineModel) -> None:
        once, twice = (outputs(model, alloy().repeat((n, 1, 1))) for n in (1, 2))
        self.same({"energy": twice["energy"]}, {"energy": 2 * once["energy"]})


def _built(network: EngineNetwork, seed: int = 0) -> EngineModel:
    torch.manual_seed(seed)
    model = build_model(network, manifest())
    assert isinstance(model, EngineModel)
    return model


def _weights(model: EngineModel) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
