"""Ranks of a node: they train as one, end as one, and the cause is named."""

import errno
import os
import shutil
import socket

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
)

from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution import Rank, merged
from hydragnn_flow.execution.workers import answers
from hydragnn_flow.execution.workers.trainer_process import Trainers
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


def test_ddp_members_on_two_gcds(tmp_path, alloy_store):
    """Two waves reuse the same processes, and each is a torch.distributed job of its own."""
    for epochs in (1, 2):
        spec = make_spec(tmp_path / "member", alloy_store, epochs, kind="member")
        result = run_on_two(spec)
        assert (result.status, result.to_epoch, result.gcds) == ("ok", epochs, ["0", "1"])


def test_a_dead_rank_ends_its_job(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "member", alloy_store, 1, kind="member")
    run_on_two(spec)
    victim = trainer_of(1)._process
    for before in checkpoints(spec.folder):
        before.unlink()
    running = Running(two_ranks(changed(spec, until_epoch=LONG)))
    checkpoint(spec.folder)
    victim.kill()
    result = merged(running.results())
    assert result.status == "killed"
    epochs = epochs_saved(spec) + 1
    resumed = run_on_two(changed(spec, until_epoch=epochs))
    assert (resumed.status, resumed.to_epoch) == ("ok", epochs)


def test_the_rank_that_fails_is_blamed_and_not_those_ended_for_it(tmp_path, alloy_store):
    warm = make_spec(tmp_path / "warm", alloy_store, 1, kind="member")
    run_on_two(warm)
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


@pytest.fixture
def damaged_store(tmp_path, alloy_store):
    """It opens, and its data are not those that were written."""
    path = tmp_path / "damaged.gs"
    shutil.copytree(alloy_store.path, path)
    payload = path / "shard-00000.bp" / "data.0"
    payload.write_bytes(bytes(byte ^ 0xFF for byte in payload.read_bytes()))
    return GraphStore.open(path)


def test_a_damaged_store_is_no_fault_of_a_trial(tmp_path, damaged_store):
    spec = make_spec(tmp_path / "t", damaged_store, 1, mode="random")
    result = run_alone(Rank(spec))
    assert result.status == "refused"
    assert "data.0 has changed since it was written" in result.reason


@pytest.mark.slow  # of one rank above; that all end for the fault of one, too
def test_a_damaged_store_ends_all_ranks(tmp_path, damaged_store):
    spec = make_spec(tmp_path / "t", damaged_store, 1, kind="member", mode="random")
    result = run_on_two(spec)
    assert result.status == "refused"
    assert "data.0 has changed since it was written" in result.reason


def test_a_node_without_room_is_named(tmp_path, alloy_store, monkeypatch):
    """Or it would spoil segment after segment, as a lost worker that nobody knows the node of."""

    def start(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(Trainers, "_take", start)
    result = run_alone(Rank(make_spec(tmp_path / "member", alloy_store, 1)))
    assert (result.status, result.node) == ("error", socket.gethostname())
    assert "BlockingIOError" in result.reason


@pytest.mark.parametrize(("ranks", "status"), [(1, "interrupted"), (2, "lost")])
def test_a_full_disk_is_nobodys_fault_and_ends_a_gang_as_one(
    tmp_path, alloy_store, monkeypatch, ranks, status
):
    """A group that is `interrupted` is taken to end together with all others."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(answers, "run_segment", full)
    monkeypatch.setattr(answers, "join", lambda *_: None)
    monkeypatch.setattr(answers, "setproctitle", lambda title: None)
    spec = make_spec(tmp_path / "trial", alloy_store, 1)
    request = {
        "spec": spec.to_dict(),
        "rank": 0,
        "world": ranks,
        "device": "cpu",
        "rendezvous": None,
    }
    result = answers._answer(request, answers._Asked(), lambda message: None)
    assert (result["status"], "No space left" in result["reason"]) == (status, True)


def test_forces_alone_can_be_trained_by_ddp(tmp_path, alloy_store):
    network = network_with(Architecture__energy_peratom_weight=0.0)
    spec = make_spec(tmp_path / "member", alloy_store, 1, network=network)
    result = run_on_two(spec)
    assert result.status == "ok", result.reason
