"""Small structures and networks for the suites of message-passing types and engines."""

from __future__ import annotations

from typing import Any, ClassVar

import ase.build
import numpy as np
import torch
from ase.data import atomic_numbers
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.data import Manifest, atoms_to_graph, batch_graphs
from hydragnn_flow.models import HydraModel, Model, build_model

CUTOFF = 4.0
"""Cutoff of the structures' neighbour lists [Å]."""
COPPER, GOLD = map(atomic_numbers.__getitem__, ("Cu", "Au"))


def manifest() -> Manifest:
    """Return the manifest of a Cu-Au store with energy, forces, and the targets gap and charge."""
    targets = {
        "energy": {"level": "graph", "dim": 1, "unit": "eV"},
        "forces": {"level": "node", "dim": 3, "unit": "eV/Å"},
        "gap": {"level": "graph", "dim": 2, "unit": "eV"},
        "charge": {"level": "node", "dim": 1, "unit": "e"},
    }
    described = {"dtype": "float32", "dim": 0, "shape": [1], "node": True, "edge": False}
    return Manifest.model_validate(
        {
            "targets": targets,
            "units": {},
            "cutoff": CUTOFF,
            "max_neighbours": None,
            "elements": [COPPER, GOLD],
            "node_features": ["atomic_number", "magnetic_moment"],
            "keys": {
                **{key: {**described, "rows": None} for key in ("x", "pos", "edge_index")},
                "edge_attr": {**described, "shape": [2], "edge": True, "rows": None},
            },
            "splits": {},
            "statistics": {
                "degree_histogram": [0] * 12 + [1, 4, 5, 4, 1],
                "avg_num_neighbors": 14.0,
                "element_energies": {COPPER: -3.5, GOLD: -3.2},
                "energy_per_atom_std": 0.1,
                "forces_rms": 0.8,
                "targets": {
                    "energy": {"mean": [-9391.0], "std": [0.2]},
                    "forces": {"mean": [0.0] * 3, "std": [0.8] * 3},
                    "gap": {"mean": [1.0, -2.0], "std": [0.5, 3.0]},
                    "charge": {"mean": [0.1], "std": [0.02]},
                },
            },
            "provenance": {},
            "shards": [{"path": "shard-00000.bp", "files": {}, "splits": {}}],
        }
    )


def network(
    mpnn_type: str, *, potential: bool = True, head: str = "node", **architecture: Any
) -> dict[str, Any]:
    """Return HydraGNN's JSON for a small network with targets of :func:`manifest`.

    Parameters
    ----------
    mpnn_type
        Name of a message-passing type, or ``module:Class``.
    potential
        If true, the network predicts energy and forces, otherwise `gap` and `charge`.
    head
        Level of a potential's head, ``node`` or ``graph``.
    **architecture
        Additional keys of `Architecture`, which override the defaults.
    """
    section: dict[str, Any] = {
        "mpnn_type": mpnn_type,
        "hidden_dim": 12,
        "num_conv_layers": 2,
        "radius": CUTOFF,
        "num_gaussians": 8,
        "activation_function": "silu",
        "enable_interatomic_potential": potential,
        "output_heads": {
            "graph": {
                "num_sharedlayers": 1,
                "dim_sharedlayers": 8,
                "num_headlayers": 1,
                "dim_headlayers": [8],
            },
            "node": {"num_headlayers": 1, "dim_headlayers": [8]},
        },
    }
    if potential:
        section |= {"energy_peratom_weight": 1.0, "force_weight": 1.0}
    outputs = {"energy": head} if potential else {"gap": "graph", "charge": "node"}
    return {
        "Architecture": section | architecture,
        "Variables_of_interest": {
            "input_node_features": [0],
            "output_names": list(outputs),
            "type": list(outputs.values()),
        },
        "Training": {"num_epoch": 1, "batch_size": 2, "Optimizer": {"learning_rate": 1e-3}},
    }


def build(mpnn_type: str, **options: Any) -> HydraModel:
    """Build the model of :func:`network` with weights drawn from seed 0.

    Keywords are those of :func:`network`.
    """
    torch.manual_seed(0)
    model = build_model(network(mpnn_type, **options), manifest())
    assert isinstance(model, HydraModel)
    return model


def alloy(seed: int = 0, spacing: float = 3.75, *, exact: bool = True) -> ase.Atoms:
    """Return four atoms of a strained and rattled Cu-Au cell, smaller than the cutoff.

    Parameters
    ----------
    seed
        Seed of strain, displacements and order of elements.
    spacing
        Lattice constant of the cell before straining [Å].
    exact
        If true, positions and cell are rounded to numbers that float32 represents exactly.
    """
    rng = np.random.default_rng(seed)
    atoms = ase.build.bulk("Cu", "fcc", a=spacing, cubic=True)
    atoms.numbers = rng.permutation([COPPER, COPPER, GOLD, GOLD])
    atoms.set_cell(atoms.cell.array + rng.normal(0, 0.1, (3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(0, 0.15, (4, 3))
    if exact:
        atoms.positions = np.round(atoms.positions * 256) / 256
        atoms.cell = np.round(atoms.cell.array * 256) / 256
    return atoms


def as_graphs(*structures: ase.Atoms) -> list[Data]:
    """Convert structures to graphs with new neighbour lists."""
    graphs = [atoms_to_graph(atoms, CUTOFF, None) for atoms in structures]
    for graph in graphs:
        graph.x = torch.cat([graph.x, torch.zeros_like(graph.x)], dim=1)
    return graphs


def as_batch(*structures: ase.Atoms) -> Any:
    """Convert structures to one PyG batch with new neighbour lists."""
    return batch_graphs(as_graphs(*structures))


def lively(model: HydraModel) -> HydraModel:
    """Change a model in place to float64, evaluation mode and larger weights, and return it.

    Faults show more clearly with larger weights.
    """
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    return model


def outputs(model: Model, *structures: ase.Atoms) -> dict[str, NDArray[Any]]:
    """Return predictions for structures by output name, [n_graphs, d] or [n_atoms, d]."""
    return {name: value.detach().numpy() for name, value in model(as_batch(*structures)).items()}


def energy_and_forces(model: Model, *structures: ase.Atoms) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return predicted energies [n_graphs] in eV and forces [n_atoms, 3] in eV/Å."""
    found = outputs(model, *structures)
    return found["energy"][:, 0], found["forces"]


class NetworkSuite:
    """Tests that every network must pass.

    A subclass defines the fixture ``model``, a network in evaluation mode.
    """

    tolerance: ClassVar[float]
    """Largest difference of predictions that should be equal, relative to the largest number."""
    least: ClassVar[float] = 0.0
    """Difference that predictions of different structures exceed."""
    lone: ClassVar[tuple[str, ...]] = ()
    """Elements of lone atoms to predict beside other structures."""

    def same(
        self,
        found: dict[str, NDArray[Any]],
        expected: dict[str, NDArray[Any]],
        relative: float | None = None,
    ) -> None:
        """Assert that predictions are equal, within ``relative`` or the suite's tolerance."""
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            # Forces may all be zero.
            atol = (relative or self.tolerance) * max(float(np.abs(values).max()), 0.01)
            np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=name)

    def test_structures_are_told_apart(self, model: Any) -> None:
        """Check that predictions differ between structures.

        A network with constant outputs would pass the other tests.
        """
        # A network without lengths only reads the graph, so the second one lacks an atom.
        first, second = alloy(0), alloy(1, spacing=3.3)
        del second[0]
        for name, values in outputs(model, first, second).items():
            if len(values) == 2:
                assert np.abs(values[0] - values[1]).max() > self.least, name
            assert np.ptp(values) > self.least, name

    def test_batch_mates_do_not_matter(self, model: Any) -> None:
        structures = [alloy(0), alloy(1).repeat((2, 1, 1)), alloy(2, spacing=3.5)]
        structures += map(ase.Atoms, self.lone)
        together = outputs(model, *structures)
        alone = [outputs(model, structure) for structure in structures]
        expected = {name: np.concatenate([values[name] for values in alone]) for name in together}
        self.same(together, expected)

    def test_atom_order_does_not_matter(self, model: Any) -> None:
        atoms = alloy().repeat((2, 1, 1))
        order = np.random.default_rng(1).permutation(len(atoms))
        plain, permuted = outputs(model, atoms), outputs(model, atoms[order])
        by_atom = {name for name, values in plain.items() if len(values) == len(atoms)}
        self.same(permuted, {k: v[order] if k in by_atom else v for k, v in plain.items()})


class AnyPotentialSuite(NetworkSuite):
    """Tests that every potential (network that predicts an energy and forces) must pass."""

    def test_a_lone_atom_has_an_energy(self, model: Any) -> None:
        energies, forces = energy_and_forces(model, ase.Atoms("Cu"))
        assert np.isfinite(energies).all()
        np.testing.assert_array_equal(forces, np.zeros((1, 3)))
