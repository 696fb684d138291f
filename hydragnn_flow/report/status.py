"""A run at a glance, for the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.execution.fence import DRIVER_FILE, is_driven
from hydragnn_flow.execution.pools.workers_file import count, elapsed, in_queue, read_workers
from hydragnn_flow.files import modified
from hydragnn_flow.locks import is_locked
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml, sound
from hydragnn_flow.report.cost import cost_of, energy_sentences, nodes_cost
from hydragnn_flow.report.errors import closing_table
from hydragnn_flow.report.gcd_time import gcd_time_sentence
from hydragnn_flow.report.stage import Stage, best_errors, stage_of
from hydragnn_flow.report.tables import SIMULATED_RUN
from hydragnn_flow.report.trials_frame import best_table, study_frame
from hydragnn_flow.run_directory import CONFIG, RunDirectory, objectives_of
from hydragnn_flow.segment import SegmentResult

_MOST_FAILURES = 3


def status_table(run_directory: Path) -> RenderableType:
    """Phase of a run, its best trials, failures, and what the driver is doing.

    Parameters
    ----------
    run_directory
        Directory of a live or finished run; only read.
    """
    read_yaml(run_directory / CONFIG, remedy=FROM_A_COPY)  # else it would be passed over
    stage = stage_of(run_directory)
    is_simulated = RunDirectory(run_directory).simulated.exists()
    shown: list[RenderableType] = [Text(SIMULATED_RUN)] if is_simulated else []
    shown.append(Text(f"phase: {stage}"))
    if stage.study is not None:
        frame = study_frame(stage.study, stage.results, objectives_of(run_directory))
        shown.append(best_table(frame, 5))
    # Where nobody asks for errors, a structure is all that they are measured on.
    if stage.has_members and (found := best_errors(run_directory, stage.results)):
        shown.append(Text(f"smallest validation errors: {', '.join(found)}"))
    shown += map(Text, _failures(stage.results))
    if stage.phase == "finished":
        if RunDirectory(run_directory).summary.exists():  # a search of a function has none
            with sound(RunDirectory(run_directory).summary):
                shown.append(closing_table(read_summary(run_directory)))
    elif not is_simulated:
        shown += map(Text, _driver(run_directory, stage))
    return Group(*shown)


def _failures(results: Sequence[SegmentResult]) -> Iterator[str]:
    """The last segments that passed checkpoints over, or ended badly, the latest last."""
    for result in [r for r in results if r.passed_over][-_MOST_FAILURES:]:
        yield f"passed over: {result.kind} {result.number}: {_line(result.passed_over)}"
    failed = [r for r in results if r.status not in ("ok", "interrupted")]
    if failed:
        yield f"failed segments: {len(failed):,}, the last:"
    for result in failed[-_MOST_FAILURES:]:
        where = f"{result.kind} {result.number}" + (f" on {result.node}" if result.node else "")
        yield f"  {_when(result.ended)} {where}: {result.status}: {_line(result.reason)}"


def _driver(run_directory: Path, stage: Stage) -> Iterator[str]:
    if not is_driven(run_directory):
        yield "no driver is at work on it; `hydragnn-flow run` continues it"
        return
    driver = read_json(run_directory / DRIVER_FILE)
    workers = read_workers(run_directory)
    pid, host = driver.get("pid"), driver.get("host")
    yield f"driver: process {pid} on {host}"
    if (workers.get("driver_pid"), workers.get("host")) == (pid, host):
        yield from _workers(workers)
    # A function holds the lock of its trial's folder, and has touched it when it was called.
    running = [trial.number for trial in stage.trials if trial.state == "running"]
    locks = [(n, RunDirectory(run_directory).trial(n) / "lock") for n in running]
    if called := [(modified(lock), n) for n, lock in locks if is_locked(lock)]:
        since, number = min(called)
        yield f"longest at work: trial {number}, for {elapsed(since)}"
    if (spent := stage.gcd_time) is not None:
        yield gcd_time_sentence(spent)
    cost = {**cost_of(stage.results), **nodes_cost(run_directory)}
    if cost["joules"] is not None or cost["node_joules"] is not None:
        yield energy_sentences(cost)


def _workers(workers: Mapping[str, Any]) -> Iterator[str]:
    blocks = workers["blocks"]
    running = sum(block["state"] == "running" for block in blocks)
    waiting = [block for block in blocks if block["state"] == "pending"]
    words = [f"{count(running)} running"] if running else []
    if waiting:
        first = min(waiting, key=lambda block: float(block["since"]))
        words.append(in_queue(len(waiting), first["since"], first["reason"]))
    if words or workers["tasks"]:
        busy = min(workers["tasks"], workers["workers"])
        yield ", ".join([f"{busy:,} of {workers['workers']:,} GCDs busy", *words])
    for when, event in workers.get("events", [])[-_MOST_FAILURES:]:
        yield f"{_when(when)} {event}"
    if workers.get("trouble"):
        yield f"{workers['trouble']}; trying again"
    if workers["bad_nodes"]:
        names = ", ".join(workers["bad_nodes"])
        yield f"taken out of use, as segments ended badly there: {names}"


def _when(unix: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(unix)) if unix else ""


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
