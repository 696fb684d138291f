"""DDP: the number of ranks changes the time a training takes and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_cases import make_spec, network_with

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.sampler import epoch_batches, rank_share

RANK = """
import json, sys
import torch
from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import joined
from hydragnn_flow.training.sampler import epoch_batches
from hydragnn_flow.training.segment import SegmentSpec
from hydragnn_flow.training.trainer import Trainer

def train(spec, world):
    store = GraphStore.open(spec.store)
    trainer = Trainer(spec, load_network(spec.network), store, torch.device("cpu"), world)
    losses, epoch = [], 0
    while len(losses) < 20:
        for indices in epoch_batches(len(trainer.train), trainer.batch_size, spec.seed, epoch):
            losses.append(trainer.train_step(indices))
        epoch += 1
    total = world.sum(torch.tensor(losses[:20], dtype=torch.float64))
    return total.tolist(), *trainer.evaluate(trainer.val)

spec, rank, world, meeting = json.loads(sys.argv[1])
torch.set_num_threads(1)
with joined(rank, world, meeting, "cpu") as world:
    # The trainer is gone before the group is: gloo's threads must not outlive it.
    answer = train(SegmentSpec(**spec), world)
if rank == 0:
    print(json.dumps(answer))
"""


def losses(tmp_path: Path, alloy_store: GraphStore, world: int, network: dict) -> list:
    spec = make_spec(tmp_path / f"world{world}", alloy_store, 1, network=network)
    meeting = str(tmp_path / f"meeting{world}")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps([spec.to_dict(), rank, world, meeting])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    return json.loads(outputs[0].splitlines()[-1])


@pytest.mark.parametrize("mpnn_type", ["SchNet", "EGNN", "PNA"])
def test_two_processes_equal_one(tmp_path: Path, alloy_store: GraphStore, mpnn_type: str) -> None:
    """Twenty steps at the same global batch, uneven shares included; 1e-5 relative."""
    network = network_with(
        Architecture__mpnn_type=mpnn_type, Training__batch_size=5, Training__precision="fp32"
    )
    one, val_one, metrics_one = losses(tmp_path, alloy_store, 1, network)
    two, val_two, metrics_two = losses(tmp_path, alloy_store, 2, network)
    assert len(one) == 20
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert val_two == pytest.approx(val_one, rel=1e-5)
    assert metrics_two == pytest.approx(metrics_one, rel=1e-5)


@given(
    n=st.integers(1, 500), size=st.integers(1, 80), seed=st.integers(0, 9), world=st.integers(1, 8)
)
def test_an_epoch_is_every_graph_once(n: int, size: int, seed: int, world: int) -> None:
    batches = epoch_batches(n, size, seed, epoch=3)
    assert sorted(np.concatenate(batches)) == list(range(n))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    shares = [rank_share(batches[0], rank, world) for rank in range(world)]
    assert sorted(np.concatenate(shares)) == sorted(batches[0])


def test_epochs_differ_and_repeat() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_batches(50, 8, seed, epoch)).tolist()

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)
