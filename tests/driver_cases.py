"""Drivers as users start them, and what their run directories show."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from hydragnn_flow.execution.binding import bound_to
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials

PATIENCE = 600.0
"""Longest wait for what should come [s], however busy the machine is."""
TWO_CORES = frozenset(sorted(os.sched_getaffinity(0))[:2])

Reached = Callable[[Path], bool]


def is_at_work(pid: int) -> bool:
    """Whether there is such a process; nobody may wait for one whose parent has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lines(path: Path) -> int:
    """Of a file, if there is one."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def member_lines(run: Path) -> int:
    """Members whose segment has ended."""
    path = run / "segments.jsonl"
    return path.read_text().count('"kind": "member"') if path.exists() else 0


def has_checkpoint(run: Path, trial: int) -> bool:
    """Whether a trial has trained for a while."""
    return any((run / "trials" / str(trial)).glob("checkpoint-*.pt"))


def start(config: Path, run: Path, log: Path) -> subprocess.Popen[bytes]:
    """Give the command, on a machine of two cores however many there are."""
    return command_on_two_cores(["run", config, "--run-dir", run], log)


def command_on_two_cores(words: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
    """Start a command whose site `local` has two GCDs."""
    command = [sys.executable, "-m", "hydragnn_flow", *words]
    with log.open("ab") as output, bound_to(TWO_CORES):
        return subprocess.Popen(command, stdout=output, stderr=output)


def start_until(
    reached: Reached, what: str, config: Path, run: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Give the command and wait until its run directory shows something."""
    driver = start(config, run, log)
    give_up = time.monotonic() + PATIENCE
    while not reached(run) and driver.poll() is None:
        assert time.monotonic() < give_up, (
            f"never came to: {what}\n{log.read_text(encoding='utf-8')}"
        )
        time.sleep(0.02)
    assert driver.poll() is None, f"ended before: {what}\n{log.read_text(encoding='utf-8')}"
    return driver


def family_of(driver: subprocess.Popen[bytes], run: Path) -> list[psutil.Process]:
    """Every process that works for a run: Parsl's pools name its directory, trainers are theirs."""
    pools = [
        process
        for process in psutil.process_iter()
        if process.pid != psutil.Process().pid and str(run / "parsl") in command_of(process)
    ]
    children = [child for pool in pools for child in pool.children(recursive=True)]
    return [*pools, *children, *psutil.Process(driver.pid).children(recursive=True)]


def command_of(process: psutil.Process) -> str:
    """Its words, none where it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def still_there(family: list[psutil.Process], seconds: float) -> list[tuple[int, str]]:
    """Which of some processes do not end."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return [(process.pid, command_of(process)) for process in alive]


def assert_every_segment_ended_once(run: Path, trials: int, members: int, rungs: list[int]) -> None:
    """Every trial and member came to its end, and none was trained twice."""
    records = read_trials(run)
    assert [record.number for record in records] == list(range(trials))
    assert {record.state for record in records} <= {"complete", "pruned"}, records
    results = list(RunDirectory(run).results())
    ended = Counter((r.kind, r.number, r.rung) for r in results if r.status == "ok")
    assert set(ended.values()) == {1}, "a segment was counted twice"
    assert {number for kind, number, _ in ended if kind == "member"} == set(range(members))
    for record in records:
        mine = [r for r in results if (r.kind, r.number) == ("trial", record.number)]
        epochs = [(r.from_epoch, r.to_epoch) for r in mine if r.status == "ok"]
        assert all(start <= end for start, end in epochs)
        assert [end for _, end in epochs] == rungs[: len(epochs)]
