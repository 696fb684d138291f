"""A run at a glance, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from hydragnn_flow.config.network import read_json
from hydragnn_flow.ensemble.summary import read_summary
from hydragnn_flow.execution.fence import DRIVER_FILE, is_driven
from hydragnn_flow.execution.pools.workers_file import count, in_queue, read_workers
from hydragnn_flow.report.closing import closing_table
from hydragnn_flow.report.text import objective_label, told_state
from hydragnn_flow.run_directory import RunDirectory, objectives_of
from hydragnn_flow.search import read_trials
from hydragnn_flow.search.records import best_first


def status_table(run_directory: Path, best: int = 5) -> RenderableType:
    """How far a run is, and its best trials.

    Parameters
    ----------
    run_directory
        Of a live or finished run; only read.
    best
        How many trials to list.
    """
    directory = RunDirectory(run_directory)
    records = read_trials(directory.path)
    results = list(directory.results())
    epochs = {r.number: r.to_epoch for r in results if r.kind == "trial" and r.status == "ok"}
    count = Counter("waiting" if record.waits else record.state for record in records)
    states = ", ".join(f"{n} {state}" for state, n in sorted(count.items())) or "none yet"
    objective = objective_label((objectives_of(directory.path) or ["val_loss"])[0])
    table = Table("trial", "state", objective, "epochs", title=f"trials: {states}")
    judged = [r for r in records if r.value is not None and r.state != "failed"]
    ranked = sorted(judged, key=best_first)
    for record in ranked[:best]:
        table.add_row(
            str(record.number),
            told_state(record),
            f"{record.value:.4g}",
            str(epochs.get(record.number, 0)),
        )
    shown: list[RenderableType] = [table]
    if directory.summary.exists():
        shown.append(closing_table(read_summary(directory.path)))
    else:
        done = sum(r.kind == "member" and r.status == "ok" for r in results)
        shown.append(f"ensemble: {done} members trained" if done else "ensemble: not begun")
        shown.extend(_driver(directory.path))
    return Group(*shown)


def _driver(run_directory: Path) -> Iterator[str]:
    """Driver of a run that is not finished, and its work."""
    if not is_driven(run_directory):
        yield "no driver is at work on it; `hydragnn-flow run` continues it"
        return
    driver, workers = read_json(run_directory / DRIVER_FILE), read_workers(run_directory)
    yield f"driver: process {driver['pid']} on {driver['host']}"
    if (workers.get("driver_pid"), workers.get("host")) != (driver["pid"], driver["host"]):
        return  # what an earlier one left
    for name, pool in workers["pools"].items():
        blocks = _blocks(pool["blocks"])
        if blocks or pool["tasks"]:
            there = f"{pool['workers']} workers, {pool['tasks']} tasks"
            yield ", ".join([f"pool {name}: {there}", *blocks])
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
