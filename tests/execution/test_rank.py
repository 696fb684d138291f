"""Segments whose time is up, what their processes print, and energy that several share."""

import errno
import os
import signal
import socket
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from segment_cases import make_spec, network_with
from trainer_cases import NODE, run_alone, trainer_of

from hydragnn_flow.execution import Rank, merged, run_ranks
from hydragnn_flow.execution.pools.agent import in_time
from hydragnn_flow.execution.workers import rank as rank_module
from hydragnn_flow.execution.workers import trainer_process as trainers_module
from hydragnn_flow.execution.workers import worker as worker_module
from hydragnn_flow.execution.workers.rank import SECONDS_TO_ANSWER
from hydragnn_flow.execution.workers.trainer_process import Trainers

# Of a process that does not answer.
SECONDS = SECONDS_TO_ANSWER + 0.2

pytestmark = pytest.mark.xdist_group("trainers")  # which are warm from file to file


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_segment_whose_time_is_up_before_it_begins_is_not_charged(tmp_path, alloy_store, world):
    spec = make_spec(tmp_path / "t", alloy_store, 1, attempt="of-too-little-time")
    for gcd in range(world):
        run_alone(Rank(make_spec(tmp_path / "warm", alloy_store, 1), gcd=gcd))
        trainer_of(gcd)._process.send_signal(signal.SIGSTOP)
    result = merged(
        run_ranks(NODE, [Rank(spec, k, world, gcd=k, seconds=SECONDS) for k in range(world)])
    )
    assert result.status == "interrupted"
    assert result.reason.startswith("its time was up")
    spec = replace(spec, attempt="2")
    again = merged(run_ranks(NODE, [Rank(spec, k, world, gcd=k) for k in range(world)]))
    assert again.status == "ok"


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"HYDRAGNN_FLOW_JOB_END": "2000", "SLURM_JOB_END_TIME": "3000"}, 500.0),
        ({"SLURM_JOB_END_TIME": "3000"}, 1500.0),
        ({"SLURM_JOB_END_TIME": "0"}, None),
        ({"SLURM_JOB_END_TIME": "Unknown"}, None),
    ],
)
def test_the_end_of_the_batch_job_is_known_to_the_job_or_the_driver(
    tmp_path, monkeypatch, variables, seconds
):
    monkeypatch.setattr(rank_module.time, "time", lambda: 1500.0)
    for name in ("HYDRAGNN_FLOW_JOB_END", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec = make_spec(tmp_path / "t", None, 1)
    assert rank_module._seconds_left(Rank(spec)) == seconds
    # By the driver's clock: this node's may be wrong.
    assert rank_module._seconds_left(Rank(spec, seconds=12.5)) == 12.5


def test_what_a_process_prints_is_in_the_log_of_its_trial(tmp_path, alloy_store):
    """And of no other: one that says nothing has none."""
    network = network_with(Architecture__radius=9.0)
    bad = run_alone(Rank(make_spec(tmp_path / "bad", alloy_store, 1, network=network)))
    good = run_alone(Rank(make_spec(tmp_path / "good", alloy_store, 1)))
    assert (bad.status, good.status) == ("error", "ok")
    log = (tmp_path / "bad" / "log").read_text()
    assert "Traceback" in log and bad.reason.partition(": ")[2] in log
    assert not (tmp_path / "good" / "log").exists()


class Counting:
    """A trainer process whose GCD uses 12 J while it has anything to do."""

    def __init__(self, *_):
        self.alive, self.told, self.memory = True, list[float](), None

    def share(self, energy, memory_gib):
        self.told.append(energy)
        self.memory = memory_gib

    def kill(self):
        self.alive = False


@pytest.mark.parametrize(
    ("device", "gcds", "shares"),
    [
        # The sockets' counters see both slots of the node.
        ("cpu", [0], [0.5]),
        ("cpu", [0, 1], [0.5, 0.5]),
        ("cuda", [0, 1], [1.0, 1.0]),
        ("hip", [1, 1, 0, 1], [1 / 3, 1 / 3, 1.0, 1 / 3]),
    ],
)
def test_what_sees_several_is_shared_out(device, gcds, shares, monkeypatch):
    """As long as there are so many: who is left has all of it."""
    monkeypatch.setattr(trainers_module, "TrainerProcess", Counting)
    trainers = Trainers(replace(NODE, device=device))
    monkeypatch.setattr(trainers_module, "environment", lambda *_: {})
    lent = [trainers.lend(gcd) for gcd in gcds]
    found: list[Any] = [one.__enter__() for one in lent]
    assert [trainer.told[-1] for trainer in found] == pytest.approx(shares)
    for one in lent[1:]:
        one.__exit__(None, None, None)
    alone = 0.5 if device == "cpu" else 1.0
    assert found[0].told[-1] == alone


def test_a_process_beside_others_is_limited_to_what_they_leave(monkeypatch):
    """Of eight GiB, and without what the libraries of each take."""
    monkeypatch.setattr(trainers_module, "TrainerProcess", Counting)
    trainers = Trainers(NODE)
    lent = [trainers.lend(0, gib) for gib in (1.0, 2.0, 3.0)]
    first: Any = lent[0].__enter__()
    assert first.memory is None
    others: list[Any] = [one.__enter__() for one in lent[1:]]
    limits = [trainer.memory + NODE.gcd.process_gib for trainer in (first, *others)]
    assert limits == [8.0 - 5.0, 8.0 - 4.0, 8.0 - 3.0]
    for one in lent[1:]:
        one.__exit__(None, None, None)
    assert first.memory is None


def test_idle_processes_make_room_for_what_needs_the_memory(monkeypatch):
    """Each keeps its device's libraries there, half a GiB of eight."""
    monkeypatch.setattr(trainers_module, "TrainerProcess", Counting)
    trainers = Trainers(NODE)
    four = [trainers.lend(0, 1.0) for _ in range(4)]
    started: list[Any] = [one.__enter__() for one in four]
    for one in four:
        one.__exit__(None, None, None)
    assert len(trainers.idle(0)) == 4, "nobody needs it"
    with trainers.lend(0, 7.0) as used:
        assert used in started
        assert len(trainers.idle(0)) == 2
        assert sum(trainer.alive for trainer in started) == 3
    with trainers.lend(0, 8.0):
        assert not trainers.idle(0)


def test_a_node_without_room_for_where_ranks_meet_is_named(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(worker_module.tempfile, "TemporaryDirectory", Mock(side_effect=full))
    spec = make_spec(tmp_path / "t", None, 1, attempt="a")
    results = run_ranks(NODE, [Rank(spec, k, 2, gcd=k) for k in range(2)])
    assert [result.status for result in results] == ["refused", "refused"]
    assert {result.node for result in results} == {socket.gethostname()}


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("given", "job_end", "drains_after"),
    [
        ("7110", NOW + 7200, "7110"),
        ("7110", NOW + 6900, "6810"),  # the environment took 300 s to come
        ("54", NOW + 60, "40"),  # segments stop seconds before the end
        ("108", NOW, "1"),
        ("None", NOW + 7200, "None"),
        ("60", None, "60"),
    ],
)
def test_a_pool_drains_before_the_end_of_its_job_however_late_it_starts(
    given, job_end, drains_after, monkeypatch
):
    monkeypatch.setenv("HYDRAGNN_FLOW_JOB_END", "" if job_end is None else f"{job_end:.0f}")
    others = ["--hb_period=15", "-a", "10.0.0.1"]
    expected = [*others, f"--drain_period={drains_after}"]
    assert in_time([*others, f"--drain_period={given}"], NOW) == expected
