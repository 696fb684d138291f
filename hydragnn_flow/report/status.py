"""A run at a glance, for the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hydragnn_flow.config.search import direction_of
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.execution.fence import DRIVER_FILE, is_driven
from hydragnn_flow.execution.pools.workers_file import count, elapsed, in_queue, read_workers
from hydragnn_flow.files import modified
from hydragnn_flow.locks import is_locked
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, read_yaml, sound
from hydragnn_flow.report.closing import closing_table
from hydragnn_flow.report.cost import cost_of, energy_sentences, nodes_cost
from hydragnn_flow.report.forecast import predicted_end, told_end
from hydragnn_flow.report.gcd_time_words import utilisation_sentence
from hydragnn_flow.report.stage import Stage, best_errors, stage_of
from hydragnn_flow.report.text import SIMULATED_RUN, objective_label, told_state
from hydragnn_flow.run_directory import CONFIG, RunDirectory, objectives_of
from hydragnn_flow.search.records import best_first
from hydragnn_flow.segment import SegmentResult

_MOST_TRIALS, _MOST_FAILURES = 5, 3
_MOST_CHARACTERS = 200


def status_table(run_directory: Path) -> RenderableType:
    """How far a run is, and its best trials.

    Parameters
    ----------
    run_directory
        Of a live or finished run; only read.
    """
    read_yaml(run_directory / CONFIG, remedy=FROM_A_COPY)  # else it would be passed over
    stage = stage_of(run_directory)
    is_simulated = RunDirectory(run_directory).simulated.exists()
    shown: list[RenderableType] = [Text(SIMULATED_RUN)] if is_simulated else []
    shown += [Text(f"phase: {stage}"), _trials(run_directory, stage)]
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


def _trials(run_directory: Path, stage: Stage) -> Table:
    epochs = {r.number: r.to_epoch for r in stage.results if r.kind == "trial" and r.status == "ok"}
    states = ", ".join(f"{n} {state}" for state, n in sorted(stage.counts.items())) or "none yet"
    first = (objectives_of(run_directory) or ["val_error"])[0]
    planned = f" of {stage.planned_trials:,} planned" if stage.planned_trials else ""
    title = f"trials{planned}: {states}"
    shown = escape(objective_label(first))
    table = Table("trial", "state", shown, "epochs", title=title, title_justify="left")
    judged = [r for r in stage.trials if r.value is not None and r.state != "failed"]
    for record in sorted(judged, key=best_first(direction_of(first)))[:_MOST_TRIALS]:
        table.add_row(
            str(record.number),
            told_state(record),
            f"{record.value:.4g}",
            str(epochs.get(record.number, 0)),
        )
    return table


def _failures(results: Sequence[SegmentResult]) -> Iterator[str]:
    """The last segments that passed checkpoints over, or ended badly, the latest last."""
    for result in [r for r in results if r.passed_over][-_MOST_FAILURES:]:
        told = " ".join(result.passed_over.split())[:_MOST_CHARACTERS]
        yield f"passed over: {result.kind} {result.number}: {told}"
    failed = [r for r in results if r.status not in ("ok", "interrupted")]
    if not failed:
        return
    yield f"failed segments: {len(failed):,}, the last:"
    for result in failed[-_MOST_FAILURES:]:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(result.ended)) if result.ended else ""
        reason = " ".join(result.reason.split())[:_MOST_CHARACTERS]
        where = f" on {result.node}" if result.node else ""
        yield f"  {when} {result.kind} {result.number}{where}: {result.status}: {reason}"


def _driver(run_directory: Path, stage: Stage) -> Iterator[str]:
    if not is_driven(run_directory):
        yield "no driver is at work on it; `hydragnn-flow run` continues it"
        return
    driver = read_json(run_directory / DRIVER_FILE)
    workers = read_workers(run_directory)
    pid, host = driver.get("pid"), driver.get("host")
    yield f"driver: process {pid} on {host}"
    is_its = (workers.get("driver_pid"), workers.get("host")) == (pid, host)
    if is_its and "blocks" in workers:  # a driver of an earlier version writes another form
        yield from _workers(workers)
    # A function holds the lock of its trial's folder, and has touched it when it was called.
    running = [trial.number for trial in stage.trials if trial.state == "running"]
    locks = [(n, RunDirectory(run_directory).trial(n) / "lock") for n in running]
    if called := [(modified(lock), n) for n, lock in locks if is_locked(lock)]:
        since, number = min(called)
        yield f"longest at work: trial {number}, for {elapsed(since)}"
    now = time.time()
    if (end := predicted_end(stage, now)) is not None:
        yield f"predicted end: {told_end(end, now)}"
    if (spent := stage.gcd_time) is not None:
        yield utilisation_sentence(spent)
    cost = {**cost_of(stage.results), **nodes_cost(run_directory)}
    if cost["joules"] is not None or cost["node_joules"] is not None:
        yield energy_sentences(cost)


def _workers(workers: Mapping[str, Any]) -> Iterator[str]:
    blocks = _blocks(workers["blocks"])
    if blocks or workers["tasks"]:
        busy = min(workers["tasks"], workers["workers"])
        yield ", ".join([f"{busy:,} of {workers['workers']:,} GCDs busy", *blocks])
    for when, event in workers.get("events", [])[-_MOST_FAILURES:]:
        yield f"{time.strftime('%m-%d %H:%M:%S', time.localtime(when))} {event}"
    if workers.get("trouble"):
        yield f"{workers['trouble']}; trying again"
    if workers["bad_nodes"]:
        names = ", ".join(workers["bad_nodes"])
        yield f"taken out of use, as segments ended badly there: {names}"


def _blocks(blocks: list[Mapping[str, Any]]) -> list[str]:
    running = sum(block["state"] == "running" for block in blocks)
    waiting = [block for block in blocks if block["state"] == "pending"]
    words = [f"{count(running)} running"] if running else []
    if waiting:
        first = min(waiting, key=lambda block: float(block["since"]))
        words.append(in_queue(len(waiting), first["since"], first["reason"]))
    return words
