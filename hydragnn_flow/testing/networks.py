"""Small structures and networks for the suites of message-passing types and engines."""

from __future__ import annotations

from typing import Any

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


def energy_and_forces(
    model: HydraModel, *structures: ase.Atoms
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return predicted energies [n_graphs] in eV and forces [n_atoms, 3] in eV/Å."""
    found = outputs(model, *structures)
    return found["energy"][:, 0], found["forces"]
