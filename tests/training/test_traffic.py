"""Ranks send in a step what the cost model plans by."""

import pytest
import traffic_rank
from ddp_rank import on_ranks
from segment_cases import make_spec, network_with

from hydragnn_flow.placement import Work

pytestmark = pytest.mark.xdist_group("ranks")  # which one process forks

# Changes of a network, times that a step gathers the weights, and the bytes of a weight in a sum.
WAYS = {
    "DDP": ({}, 0, 4),
    "DDP, bf16": ({"Training__ddp": {"comm_hook": "bf16"}}, 0, 2),
    "FULL_SHARD": ({"Training__sharding": {"strategy": "FULL_SHARD"}}, 2, 4),
    "SHARD_GRAD_OP": ({"Training__sharding": {"strategy": "SHARD_GRAD_OP"}}, 1, 4),
}


def test_what_is_sent_is_what_is_planned(tmp_path, alloy_store):
    changes = {"Architecture__hidden_dim": 64, "Training__batch_size": 4}
    specs = {
        name: make_spec(tmp_path, alloy_store, 1, network=network_with(**changes, **keys)).to_dict()
        for name, (keys, _, _) in WAYS.items()
    }
    for answers in on_ranks(2, traffic_rank.sent, tmp_path / "meeting", specs):
        for name, (_, gathers, size) in WAYS.items():
            sent, whole = answers[name]
            work = Work(
                flops=0.0,
                bytes=0.0,
                launches=0.0,
                activation_bytes=0.0,
                parameter_bytes=whole * size / 4,
                parts=2 if gathers else 1,
                gathers=gathers,
            )
            assert sent == pytest.approx(work.exchanged_bytes(2), rel=0.1), name
