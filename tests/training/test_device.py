"""What only an accelerator can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.models import PROPERTIES
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="NOT CHECKED: that a training step does not wait for the device; needs a GPU",
)
BLIND = [name for name, properties in PROPERTIES.items() if properties.lengths == "never"]
POTENTIALS = [name for name in PROPERTIES if name not in BLIND]
HEADS: dict[str, Any] = {
    "Architecture__enable_interatomic_potential": False,
    "Architecture__output_heads": {"graph": {"dim_headlayers": [8, 8], "dim_sharedlayers": 8}},
    "Variables_of_interest__type": ["graph"],
}
ATTENTION: dict[str, Any] = {
    "Architecture__global_attn_engine": "GPS",
    "Architecture__global_attn_heads": 2,
}
CONDITIONING: dict[str, Any] = {**HEADS, "Architecture__use_graph_attr_conditioning": True}
_MODE = "Architecture__graph_attr_conditioning_mode"
NETWORKS: dict[str, dict[str, Any]] = {
    "SchNet": {},
    "rmse": {"Training__loss_function_type": "rmse"},
    "in parts": {"Training__accumulation_steps": 2},
    "bf16": {"Training__precision": "bf16"},
    "LAMB": {"Training__Optimizer__type": "FusedLAMB"},
    **{name: {"Architecture__mpnn_type": name} for name in POTENTIALS if name != "SchNet"},
    **{name: {"Architecture__mpnn_type": name, **HEADS} for name in BLIND},
    "moving atoms": {"Architecture__mpnn_type": "EGNN", "Architecture__equivariance": True},
    "GPS": ATTENTION,
    "performer": {**ATTENTION, "Architecture__global_attn_type": "performer"},
    **{mode: CONDITIONING | {_MODE: mode} for mode in ("concat_node", "film", "fuse_pool")},
}


@pytest.fixture(scope="module")
def store(alloy_store: GraphStore, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """The alloys, each with a number of its own for conditioning."""
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    for number, graph in enumerate(graph for graphs in splits.values() for graph in graphs):
        graph.graph_attr = torch.tensor([[0.1 * number]])
    path = tmp_path_factory.mktemp("device") / "store.gs"
    return write_store(path, splits, targets=alloy_store.manifest.targets, cutoff=4.0)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_does_not_wait_for_the_device(tmp_path: Path, store: GraphStore, name: str) -> None:
    network = network_with(**NETWORKS[name])
    spec = make_spec(tmp_path / "t", store, 1, network=network)
    trainer = Trainer(spec, load_network(network), store, torch.device("cuda"), World())
    trainer.model.train()
    steps = trainer.plan(0)
    pieces = list(trainer.micro_batches(steps))
    trainer.train_step(steps[0], pieces[0])  # kernels are chosen, memory is taken
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, batches in zip(steps, pieces, strict=True):
            trainer.train_step(step, batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_segment_runs_there(tmp_path: Path, alloy_store: GraphStore) -> None:
    stops = iter([False] * 5 + [True])
    spec = make_spec(tmp_path / "t", alloy_store, 3)
    assert run_segment(spec, device="cuda", should_stop=lambda: next(stops)).status == "interrupted"
    result = run_segment(spec, device="cuda")
    assert (result.status, result.to_epoch) == ("ok", 3)
