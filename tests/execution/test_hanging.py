"""A segment that hangs is noticed, and what only takes its time is not taken for hanging."""

import itertools
import os
import shlex
import signal
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any

import pytest
from segment_cases import changed, make_spec, network_with
from trainer_cases import NODE

from hydragnn_flow import processes
from hydragnn_flow.execution import Rank, merged, run_ranks
from hydragnn_flow.execution.workers import answers, worker
from hydragnn_flow.execution.workers import rank as rank_module
from hydragnn_flow.execution.workers import trainer_process as module
from hydragnn_flow.execution.workers.trainer_process import Hung, TrainerProcess
from hydragnn_flow.log import LastEpoch
from hydragnn_flow.processes import ProcessDied
from hydragnn_flow.training.runner import run_segment


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """Trainer processes whose processes run a few lines of shell; `say` prints a message."""
    trainers: list[TrainerProcess] = []
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SIGNS", 0.02)

    def start(lines):
        script = tmp_path / f"trainer process{len(trainers)}"
        script.write_text(f'#!/bin/sh\nsay() {{ echo "$1"; }}\nread request\n{lines}\n')
        script.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "executable", str(script))
            trainers.append(TrainerProcess({}))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer._process.send_signal(signal.SIGCONT)
        trainer.kill()


def say(*messages):
    return "\n".join(f"say {shlex.quote(message)}" for message in messages)


def alive(step):
    return say(f'{{"alive": {step}}}')


@pytest.mark.parametrize("before", ["", alive(0)])
def test_a_process_that_says_nothing_before_its_first_step_is_waited_for_long(
    scripted, monkeypatch, before
):
    """It reads a store, or compiles kernels."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 0.1)
    assert scripted(f"{before}\nsleep 0.4\n{say('{}')}").call({}, seconds=60.0) == {}
    trainer = scripted(f"{before}\nsleep 60")
    with pytest.raises(Hung, match=r"it hung: its process gave no sign of life for 0 s"):
        trainer.call({}, seconds=0.3)
    assert not trainer.alive
    assert trainer._process.returncode == -signal.SIGKILL


def test_signs_of_life_keep_a_process(scripted, monkeypatch):
    """Ten seconds pass before each of them."""
    trainer = scripted("sleep 60")
    messages: list[dict[str, Any] | None] = []
    for step in [0.0] * 6 + [0.01] * 6:
        messages += [None] * 10 + [{"alive": step}]
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SIGNS", 1.0)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 15.0)
    coming = iter([*messages, {}])
    monkeypatch.setattr(trainer, "receive", lambda seconds: next(coming))
    assert trainer.call({}, seconds=15.0) == {}


def test_a_job_that_was_suspended_does_not_hang(scripted, monkeypatch):
    """Hours have passed when Slurm lets its processes go on, and none of them could give a sign."""
    trainer = scripted(f"{alive(0.01)}\nsleep 0.3\n{say('{}')}")
    hours = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 3600.0 * next(hours))
    assert trainer.call({}, seconds=60.0) == {}


def test_a_process_that_has_answered_and_does_not_end_keeps_nobody_waiting(scripted, monkeypatch):
    """Its GPU's driver takes for ever to give back memory."""
    monkeypatch.setattr(processes, "SECONDS_TO_DIE", 0.1)
    trainer = scripted(say('{"last": true, "status": "ok"}') + "\nsleep 20")
    assert trainer.call({}) == {"status": "ok"}
    assert trainer.was_killed


def test_long_steps_give_more_time(scripted, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 0.1)
    steps = f"{alive(2.0)}\n{alive(0.001)}\nsleep 0.3"
    assert scripted(f"{steps}\n{say('{}')}").call({}, seconds=60.0) == {}
    with pytest.raises(Hung, match=r"the longest of its steps took 0\.0 s"):
        scripted(f"{alive(0.004)}\nsleep 60").call({}, seconds=60.0)
    with pytest.raises(Hung, match=r"the longest of its steps took 0\.1 s"):
        scripted(f"{alive(0.01)}\n{alive(0.06)}\nsleep 60").call({}, seconds=60.0)


def test_what_trains_nothing_may_take_any_time(scripted, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 0.0)
    assert scripted(f"sleep 0.3\n{say('{}')}").call({}) == {}


def test_answers_come_whole_however_they_are_cut(scripted):
    lines = """
    printf '{"alive": 1}\\n{"al'; sleep 0.1; printf 'ive": 2}\\n{"a": "'
    head -c 300000 /dev/zero | tr '\\0' x; echo '"}'"""
    assert scripted(lines).call({}) == {"a": "x" * 300_000}


def test_the_epochs_that_a_training_tells_are_passed_on(scripted):
    told: list[list[float]] = []
    first, last = '{"alive": 1, "epoch": [1, 0.5, 0.25, 9.0]}', '{"alive": 1, "epoch": [2]}'
    lines = say(first, '{"alive": 1}', last, "{}")
    assert scripted(lines).call({}, epoch_ended=told.append) == {}
    assert told == [[1, 0.5, 0.25, 9.0], [2]]


def test_a_process_that_the_system_cannot_end_keeps_nobody_waiting(scripted, monkeypatch):
    """It is in the middle of reading from a disk that does not answer."""
    monkeypatch.setattr(processes, "SECONDS_TO_DIE", 0.1)
    trainer = scripted("sleep 60")
    monkeypatch.setattr(trainer._process, "kill", lambda: None)
    with pytest.raises(Hung):
        trainer.call({}, seconds=0.1)
    assert not trainer.alive, "it would be given the next segment"
    other = scripted("sleep 60")
    monkeypatch.setattr(other._process, "kill", lambda: None)
    threading.Timer(0.2, other.kill).start()
    with pytest.raises(ProcessDied, match="does not end"):
        other.call({})
    for each in (trainer, other):
        monkeypatch.undo()
        each._process.kill()


def test_a_process_whose_children_are_killed_for_long_says_how_it_ended(scripted, monkeypatch):
    monkeypatch.setattr(processes, "kill_below", lambda pid: time.sleep(0.5))
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SIGNS", 0.05)
    trainer = scripted("sleep 60")
    threading.Timer(0.1, trainer.kill).start()
    with pytest.raises(ProcessDied, match="SIGKILL"):
        trainer.call({})


class Scripts:
    """Trainer processes of a node, one for each rank."""

    def __init__(self, *trainers):
        self._trainers = trainers

    @contextmanager
    def lend(self, gcd, memory_gib, *, runs_apps):
        yield self._trainers[gcd]


def test_a_gang_whose_rank_hangs_ends_and_says_which(tmp_path, scripted, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 0.3)
    spec = make_spec(tmp_path / "m", None, 1, attempt="1")
    # A pipe that is full of signs: one is there whenever somebody looks.
    signs = f"while true; do {alive(0.001)}; done"
    hangs = f"{alive(0.001)}\nsleep 60"
    scripts = Scripts(scripted(signs), scripted(hangs))
    monkeypatch.setattr(worker, "trainers_of", lambda node: scripts)
    # The third is on another node, which the driver tells.
    results = run_ranks(NODE, [Rank(spec, number, world=3, gcd=number) for number in range(2)])
    assert [one.status for one in results] == ["interrupted", "killed"]
    result = merged(results)
    assert result.reason.startswith("it hung: ")
    assert result.reason in results[0].reason


def test_a_segment_whose_time_is_up_ends_though_its_process_does_not_answer(
    tmp_path, scripted, monkeypatch
):
    monkeypatch.setattr(rank_module, "SECONDS_TO_ANSWER", 0.0)
    scripts = Scripts(scripted(f"while true; do {alive(0.001)}; done"))
    monkeypatch.setattr(worker, "trainers_of", lambda node: scripts)
    (result,) = run_ranks(NODE, [Rank(make_spec(tmp_path / "m", None, 1), gcd=0, seconds=0.3)])
    assert (result.status, result.reason[:15]) == ("interrupted", "its time was up")


def test_a_training_says_that_it_is_alive_at_every_step_and_every_batch_it_judges(
    tmp_path, alloy_store
):
    told: list[float] = []
    network = network_with(Training__batch_size=2)
    spec = make_spec(tmp_path / "t", alloy_store, 2, network=network)
    assert run_segment(spec, alive=told.append).status == "ok"
    steps, judged = (-(-len(alloy_store[name]) // 2) for name in ("trainset", "valset"))
    assert len(told) >= 2 * (steps + judged)
    assert told[0] == 0
    assert max(told) > 0


def test_a_training_tells_its_epochs_and_when_it_will_end(tmp_path, alloy_store):
    told: list[LastEpoch] = []
    spec = make_spec(tmp_path / "t", alloy_store, 3)
    began = time.time()
    first = run_segment(spec, epoch_ended=told.append)
    more = changed(spec, until_epoch=5)
    result = run_segment(more, epoch_ended=told.append)
    rows = [*first.history, *result.history[3:]]
    assert [(e.number, e.loss, e.error) for e in told] == [(n, a, b) for n, a, _, b in rows]
    assert [e.number for e in told] == [1, 2, 3, 4, 5]
    assert all(began < e.end < began + 20 * (result.ended - began) for e in told)
    assert told[2].end <= first.ended and told[4].end <= result.ended, "nothing is left"
    assert told[3].end > result.started


def test_signs_of_life_are_seldom(monkeypatch):
    sent: list[object] = []
    now = [100.0]
    monkeypatch.setattr(answers.time, "monotonic", lambda: now[0])
    signs = answers._Signs(sent.append)
    for step in range(50):
        signs.alive(step)
        now[0] += 0.125
    assert sent == [{"alive": step} for step in range(0, 50, 8)]
    for number in (1, 2):
        signs.epoch_ended(LastEpoch(number, 0.5, 0.25, 1e9))
    for _ in range(2):
        now[0] += 1.0
        signs.alive(0.5)
    assert sent[-2:] == [{"alive": 0.5, "epoch": (2, 0.5, 0.25, 1e9)}, {"alive": 0.5}]

    def gone(message):
        raise BrokenPipeError

    answers._Signs(gone).alive(0.1)  # a worker that is gone does not end a step


@pytest.mark.slow
def test_a_segment_that_hangs_is_killed_and_goes_on_when_sent_again(
    tmp_path, alloy_store, monkeypatch
):
    """There is no deadline and no other rank: on a laptop it would hang for ever."""
    spec = make_spec(tmp_path / "t", alloy_store, 100_000)
    seen = threading.Event()
    receive = TrainerProcess.receive

    def received(self, seconds=None):
        found = receive(self, seconds)
        if found is not None and found.get("alive"):
            if not seen.is_set():
                os.kill(self.pid, signal.SIGSTOP)
            seen.set()
        return found

    monkeypatch.setattr(TrainerProcess, "receive", received)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_STEPS", 1.5)
    monkeypatch.setattr(module, "STEPS_TO_WAIT", 0.0)
    (result,) = run_ranks(NODE, [Rank(spec)])
    assert seen.is_set()
    assert (result.status, result.reason[:8]) == ("killed", "it hung:")
    (again,) = run_ranks(NODE, [Rank(changed(spec, until_epoch=1))])
    assert again.status == "ok"
