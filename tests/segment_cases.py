"""Segments on the small store of the fixture `alloy_store`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import SegmentSpec

NETWORK: dict[str, Any] = {
    "Architecture": {
        "mpnn_type": "SchNet",
        "hidden_dim": 12,
        "num_conv_layers": 2,
        "radius": 4.0,
        "num_gaussians": 8,
        "activation_function": "silu",
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "force_weight": 1.0,
        "output_heads": {"node": {"num_headlayers": 1, "dim_headlayers": [12]}},
    },
    "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
    "Training": {"num_epoch": 6, "batch_size": 4, "Optimizer": {"learning_rate": 5e-3}},
}


def make_spec(
    folder: Path, store: GraphStore | None, until_epoch: int, **changes: Any
) -> SegmentSpec:
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "kind": "trial",
        "number": 0,
        "directory": str(folder),
        "store": str(store.path) if store else "",
        "network": NETWORK,
        "until_epoch": until_epoch,
        "rung": 0,
        "seed": 5,
    }
    values |= changes
    return SegmentSpec(**{**values, "network": load_network(values["network"])})


def network_with(**changes: Any) -> dict[str, Any]:
    """NETWORK with dotted paths (``__`` for dots) set."""
    network = copy.deepcopy(NETWORK)
    for path, value in changes.items():
        *parents, key = path.split("__")
        place = network
        for parent in parents:
            place = place[parent]
        place[key] = value
    return network
