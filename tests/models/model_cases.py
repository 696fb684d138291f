"""Small structures and networks the tests of this room share."""

from __future__ import annotations

from typing import Any

import ase.build
import numpy as np
import torch
from torch_geometric.data import Batch

from hydragnn_flow.data import atoms_to_graph, batch_graphs
from hydragnn_flow.models import HydraModel

CUTOFF = 4.0
COPPER, GOLD = 29, 79


def network(
    mpnn_type: str, *, potential: bool = True, head: str = "node", **architecture: Any
) -> dict[str, Any]:
    """HydraGNN's JSON for a small network of the manifest's targets."""
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


def alloy(seed: int = 0, spacing: float = 3.75, *, exact: bool = True) -> ase.Atoms:
    """Four atoms of a strained and rattled Cu-Au cell, smaller than the cutoff.

    ``exact`` rounds to numbers that are exact in the float32 of stored graphs.
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


def as_batch(*structures: ase.Atoms) -> Batch:
    """The structures as one batch, edges found anew."""
    graphs = [atoms_to_graph(atoms, CUTOFF, None) for atoms in structures]
    for graph in graphs:
        graph.x = torch.cat([graph.x, torch.zeros_like(graph.x)], dim=1)
    return batch_graphs(graphs)


def lively(model: HydraModel) -> HydraModel:
    """In float64, ready to predict, and livelier than fresh weights, so that a fault shows."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.25
    return model


def outputs(model: HydraModel, *structures: ase.Atoms) -> dict[str, np.ndarray]:
    """Predictions by output name."""
    return {name: value.detach().numpy() for name, value in model(as_batch(*structures)).items()}


def energy_and_forces(model: HydraModel, *structures: ase.Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Energies [n_graphs] in eV and forces [n_atoms, 3] in eV/Å."""
    outputs = model(as_batch(*structures))
    return outputs["energy"][:, 0].numpy(), outputs["forces"].numpy()
