"""Segments that are trained fused in one trainer process: each has a result of its own."""

from dataclasses import replace
from typing import Any

import pytest
from segment_cases import make_spec, network_with
from trainer_cases import LONG, NODE, Running, checkpoint, until

from hydragnn_flow.execution import Rank, run_ranks
from hydragnn_flow.execution.workers import worker
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoints.checkpoint import load_checkpoint

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file

CHEAP: dict[str, Any] = {
    "Architecture__mpnn_type": "SAGE",
    "Architecture__enable_interatomic_potential": False,
    "Architecture__energy_peratom_weight": 0.0,
    "Architecture__force_weight": 0.0,
    "Architecture__output_heads": {"graph": {"dim_sharedlayers": 8, "dim_headlayers": [8]}},
    "Variables_of_interest": {"output_names": ["energy"], "type": ["graph"]},
    "Training__num_epoch": LONG,
}


def rank_of(folder, store, epochs):
    network = network_with(**CHEAP)
    specs: list[SegmentSpec] = []
    for number in range(8):
        spec = make_spec(
            folder / str(number), store, epochs, network=network, seed=number, number=number
        )
        specs.append(replace(spec, attempt=f"of{number}"))
    return Rank(specs[0], gcd=0, fused=tuple(specs[1:]))


def test_each_has_a_result_and_a_checkpoint_of_its_own(tmp_path, alloy_store):
    rank = rank_of(tmp_path, alloy_store, 4)
    results = run_ranks(NODE, [rank])
    assert [result.number for result in results] == [*range(8)]
    assert {result.fused for result in results} == {8}
    assert {tuple(result.gcds) for result in results} == {("0",)}
    for spec, result in zip(rank.specs, results, strict=True):
        # Whether it pays is for the machine to say.
        assert result.status == "ok" or result.reason.startswith("goes on separately: fused")
        state = load_checkpoint(spec.folder / result.checkpoint)
        assert result.checkpoint == spec.checkpoint.name and state["seed"] == spec.seed


def test_they_stop_together_when_asked_and_die_with_their_process(tmp_path, alloy_store):
    rank = rank_of(tmp_path, alloy_store, LONG)
    running = Running([rank])
    checkpoint(rank.specs[-1].folder)
    worker.release(rank.spec.attempt)
    results = running.results()
    assert [result.status for result in results] == ["interrupted"] * 8
    assert all(result.checkpoint for result in results)

    again = Running([rank])
    lent = worker.trainers_of(NODE)._lent[0]
    until(lambda: lent, "the process")
    lent[0].trainer.kill()
    dead = again.results()
    assert [result.status for result in dead] == ["killed"] * 8
    assert [result.number for result in dead] == [*range(8)]
    assert {result.fused for result in dead} == {8}
