"""DDP: the number of ranks changes the time a training takes and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rank import train
from segment_cases import make_spec, network_with

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World

BUDGET = {"mode": "node_budget", "max_nodes": 48, "max_edges": 3000}
NETWORKS = {
    # uneven shares of a step
    "SchNet": network_with(Training__batch_size=5),
    "EGNN": network_with(Training__batch_size=5, Architecture__mpnn_type="EGNN"),
    "PNA": network_with(Training__batch_size=5, Architecture__mpnn_type="PNA"),
    "by cost": network_with(Training__Batching=BUDGET),
    # more ranks than graphs in a step
    "one by one": network_with(Training__batch_size=1),
    "some alone": network_with(
        Training__Batching=BUDGET | {"max_nodes": 14, "oversized_sample": "single"}
    ),
}


@pytest.fixture(scope="module")
def specs(
    tmp_path_factory: pytest.TempPathFactory, alloy_store: GraphStore
) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return {
        name: make_spec(folder / name, alloy_store, 1, network=network).to_dict()
        for name, network in NETWORKS.items()
    }


@pytest.fixture(scope="module")
def on_two_ranks(specs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    meeting = str(tmp_path_factory.mktemp("meeting") / "file")
    script = Path(__file__).with_name("ddp_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, json.dumps([list(specs.values()), rank, 2, meeting])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return dict(zip(specs, json.loads(outputs[0].splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_two_processes_equal_one(
    specs: dict[str, Any], on_two_ranks: dict[str, Any], name: str
) -> None:
    """Twenty steps of the same graphs; 1e-5 relative."""
    one, val_one, metrics_one = train(specs[name], World())
    two, val_two, metrics_two = on_two_ranks[name]
    np.testing.assert_allclose(two, one, rtol=1e-5)
    assert val_two == pytest.approx(val_one, rel=1e-5)
    assert metrics_two == pytest.approx(metrics_one, rel=1e-5)
