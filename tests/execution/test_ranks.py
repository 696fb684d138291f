"""Ranks of a node: they train as one, end as one, where asked to too, and the cause is named."""

import errno
import os
import shutil
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from segment_cases import changed, make_spec, network_with
from trainer_cases import (
    LONG,
    Running,
    checkpoint,
    epochs_saved,
    run_alone,
    run_on_two,
    trainer_of,
    trainer_pids,
    two_ranks,
    until,
)

from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Rank, merged
from hydragnn_flow.execution.workers import answers
from hydragnn_flow.execution.workers.worker import release

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def test_a_released_segment_ends_with_a_checkpoint_and_its_process_goes_on(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "t", alloy_store, LONG, attempt="first")
    running = Running([Rank(spec, gcd=0)])
    checkpoint(spec.folder)
    release("another")
    release("first")
    (result,) = running.results()
    assert result.status == "interrupted" and result.reason.startswith("asked to stop")
    assert (spec.folder / result.checkpoint).exists()
    assert result.to_epoch > 0
    process = trainer_of(0)._process.pid
    release("to come")  # before it comes
    stopped = run_alone(
        Rank(make_spec(tmp_path / "u", alloy_store, LONG, attempt="to come"), gcd=0)
    )
    assert stopped.status == "interrupted" and stopped.reason.startswith("asked to stop")
    following = changed(spec, attempt="second", until_epoch=result.to_epoch + 2)
    again = run_alone(Rank(following, gcd=0))
    assert (again.status, again.to_epoch) == ("ok", result.to_epoch + 2)
    assert again.from_epoch == result.to_epoch
    assert trainer_of(0)._process.pid == process


def test_ranks_end_as_one_where_they_are_released_or_one_of_them_dies(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "member", alloy_store, LONG, kind="member")
    ranks = two_ranks(spec)
    running = Running(ranks)
    checkpoint(spec.folder)
    release(ranks[0].spec.attempt)
    results = running.results()
    assert [result.status for result in results] == ["interrupted"] * 2
    assert results[0].to_epoch == results[1].to_epoch > 0
    assert merged(results).gcds == ["0", "1"]

    victim, ranks = trainer_of(1)._process, two_ranks(spec)
    running = Running(ranks)
    until(ranks[0].segment.checkpoint.exists)
    victim.kill()
    result = merged(running.results())
    assert result.status == "killed"
    epochs = epochs_saved(spec) + 1
    resumed = run_on_two(changed(spec, until_epoch=epochs))
    assert (resumed.status, resumed.to_epoch) == ("ok", epochs)


def test_the_rank_that_fails_is_blamed_and_not_those_ended_for_it(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "member", alloy_store, 1, kind="member")
    spec.folder.rmdir()
    spec.folder.touch()  # the first rank looks for checkpoints there; the other waits for it
    result = merged(Running(two_ranks(spec)).results())
    assert result.status == "error"
    assert "NotADirectoryError" in result.reason


def test_a_rank_without_memory_is_told_from_those_that_wait_for_it(tmp_path, alloy_store):
    """It answers at once, where NCCL would have it wait for the others, and its process ends."""
    spec = make_spec(tmp_path / "member", alloy_store, 1, kind="member")
    run_on_two(spec)
    trainer = trainer_of(1)._process.pid
    process = psutil.Process(trainer)
    most = process.memory_info().vms + 150 * 2**20
    process.rlimit(psutil.RLIMIT_AS, (most, most))
    network = network_with(Architecture__hidden_dim=1024, Training__batch_size=32)
    spec = make_spec(tmp_path / "wide", alloy_store, 1, kind="member", network=network)
    result = run_on_two(spec)
    assert result.status == "out_of_memory", result.reason
    assert trainer not in trainer_pids()
    again = make_spec(tmp_path / "member", alloy_store, 2, kind="member")
    resumed = run_on_two(again)
    assert resumed.status == "ok"


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_store_is_no_fault_of_a_trial_and_ends_all_ranks(tmp_path, alloy_store, ranks):
    """It opens, and its data are not those that were written."""
    path = tmp_path / "damaged.gs"
    shutil.copytree(alloy_store.path, path)
    payload = path / "shard-00000.bp" / "data.0"
    payload.write_bytes(bytes(byte ^ 0xFF for byte in payload.read_bytes()))
    spec = make_spec(tmp_path / "t", GraphStore.open(path), 1, kind="member", mode="random")
    result = run_on_two(spec) if ranks == 2 else run_alone(Rank(spec))
    assert result.status == "refused"
    assert "data.0 has changed since it was written" in result.reason


@pytest.mark.parametrize(("ranks", "status"), [(1, "interrupted"), (2, "lost")])
def test_a_full_disk_is_nobodys_fault_and_ends_a_gang_as_one(
    tmp_path, alloy_store, monkeypatch, ranks, status
):
    """A group that is `interrupted` is taken to end together with all others."""

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(answers, "run_segment", Mock(side_effect=full))
    monkeypatch.setattr(answers, "join", lambda *_: None)
    monkeypatch.setattr(answers, "setproctitle", lambda title: None)
    place = {"rank": 0, "world": ranks, "device": "cpu", "rendezvous": None}
    request = place | {"spec": make_spec(tmp_path / "trial", alloy_store, 1).to_dict()}
    result = answers._answer(request, answers._Asked(), lambda message: None)
    assert (result["status"], "No space left" in result["reason"]) == (status, True)


def test_forces_alone_can_be_trained_by_ddp(tmp_path, alloy_store):
    network = network_with(Architecture__energy_peratom_weight=0.0)
    spec = make_spec(tmp_path / "member", alloy_store, 1, network=network)
    result = run_on_two(spec)
    assert result.status == "ok", result.reason


CHEAP: dict[str, Any] = {
    "Architecture__mpnn_type": "SAGE",
    "Architecture__enable_interatomic_potential": False,
    "Architecture__energy_peratom_weight": 0.0,
    "Architecture__force_weight": 0.0,
    "Architecture__output_heads": {"graph": {"dim_sharedlayers": 8, "dim_headlayers": [8]}},
    "Variables_of_interest": {"output_names": ["energy"], "type": ["graph"]},
    "Training__num_epoch": LONG,
}
