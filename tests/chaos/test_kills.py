"""The driver is killed at every stage of a run; the same command goes on, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
from campaign_cases import MEMBERS, TRIALS, write_config

from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.search import read_trials


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def member_lines(run: Path) -> int:
    path = run / "segments.jsonl"
    return path.read_text().count('"kind": "member"') if path.exists() else 0


# What the run directory shows at each moment of death, in the order of a run.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "while the store is being written": lambda run: any(run.glob("*store*")),
    "while the first trials are begun": lambda run: lines(run / "study.journal") >= 3,
    "while segments run": lambda run: (run / "trials/0/checkpoint.pt").exists(),
    "after the first results": lambda run: lines(run / "segments.jsonl") >= 2,
    "late in the search": lambda run: lines(run / "segments.jsonl") >= 7,
    "while a member trains": lambda run: (run / "ensemble/members/0/log").exists(),
    "between members": lambda run: member_lines(run) >= 1,
    "while predictions are written": lambda run: (run / "predictions").exists(),
}


def start(config: Path, run: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hydragnn_flow.cli", "run", config, "--run-dir", run]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


def family_of(run: Path) -> list[psutil.Process]:
    """Every process that works for a run: Parsl's pools name its directory, lanes are their own."""
    pools = [
        process
        for process in psutil.process_iter()
        if process.pid != psutil.Process().pid and str(run / "parsl") in " ".join(_words(process))
    ]
    return [*pools, *(child for pool in pools for child in pool.children(recursive=True))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_killed_at_every_stage(tmp_path: Path) -> None:
    config, run, log = write_config(tmp_path), tmp_path / "run", tmp_path / "output"
    for moment, reached in MOMENTS.items():
        driver = start(config, run, log)
        give_up = time.monotonic() + 240
        while not reached(run) and driver.poll() is None:
            assert time.monotonic() < give_up, f"never came to: {moment}\n{log.read_text()}"
            time.sleep(0.02)
        assert driver.poll() is None, f"ended before: {moment}\n{log.read_text()}"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    last = start(config, run, log)
    assert last.wait(timeout=400) == 0, log.read_text()

    records = read_trials(run)
    assert [record.number for record in records] == list(range(TRIALS))
    assert {record.state for record in records} <= {"complete", "pruned"}, records
    results = list(RunDirectory(run).results())
    ended = Counter((r.kind, r.number, r.rung) for r in results if r.status == "ok")
    assert set(ended.values()) == {1}, "a segment was counted twice"
    assert {r.number for r in results if r.kind == "member"} == set(range(MEMBERS))
    for record in records:
        mine = [r for r in results if r.kind == "trial" and r.number == record.number]
        epochs = [(r.from_epoch, r.to_epoch) for r in mine if r.status == "ok"]
        assert all(start <= end for start, end in epochs)
        assert [end for _, end in epochs] == [2, 6][: len(epochs)]
    assert (run / "report.html").exists()
    assert (run / "predictions" / "test.csv").exists()


def test_no_process_outlives_a_killed_driver_for_long(tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    driver = start(config, run, tmp_path / "output")
    while lines(run / "segments.jsonl") < 1:
        assert driver.poll() is None, (tmp_path / "output").read_text()
        time.sleep(0.05)
    family = family_of(run) + psutil.Process(driver.pid).children(recursive=True)
    assert any("lane_process" in " ".join(_words(process)) for process in family)
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, [(p.pid, p.cmdline()) for p in alive]


def test_interrupted_it_cleans_up_and_says_how_to_go_on(tmp_path: Path) -> None:
    config, run, log = write_config(tmp_path), tmp_path / "run", tmp_path / "output"
    driver = start(config, run, log)
    while lines(run / "segments.jsonl") < 1:
        assert driver.poll() is None, log.read_text()
        time.sleep(0.05)
    family = family_of(run) + psutil.Process(driver.pid).children(recursive=True)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=60) == 130
    assert "goes on from here" in log.read_text()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, [(p.pid, p.cmdline()) for p in alive]
