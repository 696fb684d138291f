"""What only an accelerator can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="NOT CHECKED: that a training step does not wait for the device; needs a GPU",
)
NETWORKS: dict[str, dict[str, Any]] = {
    "SchNet": {},
    "rmse": {"Training__loss_function_type": "rmse"},
    "in parts": {"Training__accumulation_steps": 2},
    "bf16": {"Training__precision": "bf16"},
    "LAMB": {"Training__Optimizer__type": "FusedLAMB"},
    "EGNN": {"Architecture__mpnn_type": "EGNN"},
    "PAINN": {"Architecture__mpnn_type": "PAINN"},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_does_not_wait_for_the_device(
    tmp_path: Path, alloy_store: GraphStore, name: str
) -> None:
    network = network_with(**NETWORKS[name])
    spec = make_spec(tmp_path / "t", alloy_store, 1, network=network)
    trainer = Trainer(spec, load_network(network), alloy_store, torch.device("cuda"), World())
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
