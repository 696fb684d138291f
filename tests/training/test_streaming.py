"""Training from a store that is read block by block, as one larger than memory is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from segment_cases import make_spec

from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.training.runner import run_segment


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory, alloy_store: GraphStore) -> GraphStore:
    """The graphs of the small store in blocks of few graphs each."""
    path = tmp_path_factory.mktemp("blocks") / "store"
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn_flow.data.writer.BLOCK_BYTES", 20_000)
        write_store(path, splits, targets=alloy_store.manifest.targets, cutoff=4.0)
    store = GraphStore.open(path, "stream")
    assert len(store["trainset"].block_bounds) > 4
    return store


def test_a_segment_learns(tmp_path: Path, blocks: GraphStore) -> None:
    result = run_segment(make_spec(tmp_path / "trial", blocks, 20, mode="stream"))
    assert (result.status, result.to_epoch) == ("ok", 20)
    training, validation = np.array(result.history)[:, 1:].T
    assert training[-1] < 0.5 * training[0]
    assert validation[-1] < 0.5 * validation[0]


@pytest.fixture(scope="module")
def ranks(
    blocks: GraphStore, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What two ranks of one job report."""
    folder = tmp_path_factory.mktemp("ranks")
    spec = make_spec(folder / "trial", blocks, 1, mode="stream").to_dict()
    script = Path(__file__).with_name("stream_rank.py")
    processes = [
        subprocess.Popen(
            [sys.executable, script, json.dumps([spec, rank, 2, str(folder / "rendezvous")])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    return first, second


def test_two_ranks_share_the_graphs_of_every_epoch(
    ranks: tuple[dict[str, Any], dict[str, Any]], blocks: GraphStore
) -> None:
    first, second = ranks
    everything = sorted(blocks["trainset"].graph_id.tolist())
    for one, other in zip(first["read"], second["read"], strict=True):
        assert one and other
        assert sorted(one + other) == everything
    assert first["read"][0] != first["read"][1]


def test_two_ranks_take_the_same_steps(ranks: tuple[dict[str, Any], dict[str, Any]]) -> None:
    first, second = ranks
    assert list(map(len, first["losses"])) == list(map(len, second["losses"]))
    shares = [np.concatenate(rank["losses"]) for rank in ranks]
    assert all(np.isfinite(share).all() for share in shares)
    assert first["weights"] == second["weights"]
    per_epoch = np.array([np.mean(one) for one in first["losses"]])
    per_epoch += [np.mean(other) for other in second["losses"]]
    assert per_epoch[-1] < per_epoch[0]
