"""The networks that are tried on a device, and what they are compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.data import GraphStore, Target, write_store
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.trainer import Trainer

BLIND = [name for name, kind in MPNN_TYPES.items() if kind.properties.lengths == "never"]
POTENTIALS = [name for name in MPNN_TYPES if name not in BLIND]
HEADS: dict[str, Any] = {
    "Architecture__enable_interatomic_potential": False,
    "Architecture__output_heads": {"graph": {"dim_headlayers": [8, 8], "dim_sharedlayers": 8}},
    "Variables_of_interest__type": ["graph"],
}
_ATTENTION: dict[str, Any] = {
    "Architecture__global_attn_engine": "GPS",
    "Architecture__global_attn_heads": 2,
}
_CONDITIONING: dict[str, Any] = {**HEADS, "Architecture__use_graph_attr_conditioning": True}
_MODE = "Architecture__graph_attr_conditioning_mode"

NETWORKS: dict[str, dict[str, Any]] = {
    "rmse": {"Training__loss_function_type": "rmse"},
    "in parts": {"Training__accumulation_steps": 2},
    "Muon": {"Training__Optimizer__type": "Muon"},
    "layers computed anew": {"Training__conv_checkpointing": True},
    **{name: {"Architecture__mpnn_type": name} for name in POTENTIALS},
    **{name: {"Architecture__mpnn_type": name, **HEADS} for name in BLIND},
    "moving atoms": {"Architecture__mpnn_type": "EGNN", "Architecture__equivariance": True},
    "GPS": _ATTENTION,
    "performer": {**_ATTENTION, "Architecture__global_attn_type": "performer"},
    "equivariant attention": {
        "Architecture__mpnn_type": "PAINN",
        "Architecture__global_attn_engine": "EquivariantTransformer",
        "Architecture__global_attn_heads": 2,
    },
    "stress": {"Architecture__stress_weight": 0.1},
    **{mode: _CONDITIONING | {_MODE: mode} for mode in ("concat_node", "film", "fuse_pool")},
}
"""Changes to ``segment_cases.NETWORK``, a SchNet potential."""
OPTIMISERS = ("AdamW", "Adam", "SGD", "Adadelta", "Adagrad", "Adamax", "RMSprop", "Muon")


def write_labelled(path: Path, alloys: GraphStore) -> GraphStore:
    """The alloys, each with a number of its own for conditioning, and a stress."""
    splits = {name: list(alloys[name]) for name in alloys.splits}
    generator = torch.Generator().manual_seed(0)
    for number, graph in enumerate(graph for graphs in splits.values() for graph in graphs):
        graph.graph_attr = torch.tensor([[0.1 * number]])
        graph.stress = 0.01 * torch.randn(1, 6, generator=generator)
    stress = Target(level="graph", dim=6, unit="eV/Å^3")
    targets = {**alloys.manifest.targets, "stress": stress}
    return write_store(path, splits, targets=targets, cutoff=alloys.manifest.cutoff)


def make_trainer(spec: SegmentSpec, store: GraphStore, device: torch.device | str) -> Trainer:
    """The trainer of a segment that is the only one of its job."""
    trainer = Trainer(spec, store, torch.device(device), World())
    trainer.model.train()
    return trainer
