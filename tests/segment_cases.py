"""Segments on the small store of the fixture `alloy_store`."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import EpochPlan, SegmentSpec, StoreAccess

SECTIONS = ("driver", "store", "start", "epochs", "validation", "profile")

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
        "store": StoreAccess(path=str(store.path) if store else ""),
        "network": load_network(changes.pop("network", NETWORK)),
        "epochs": EpochPlan(until_epoch=until_epoch),
        "seed": 5,
    }
    return changed(SegmentSpec(**values), **changes)


def changed(spec: SegmentSpec, **changes: Any) -> SegmentSpec:
    """The segment with other fields, named as in it or in one of its sections."""
    for name, value in changes.items():
        sections = [s for s in SECTIONS if hasattr(getattr(spec, s), name)]
        if sections:
            value = replace(getattr(spec, sections[0]), **{name: value})
        spec = replace(spec, **{sections[0] if sections else name: value})
    return spec


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
