"""Trainings of two sides, seed by seed, and the table of their errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import mean

from results import Cell, Table, standard_error, verdict

from model_accuracy.sets import SETS


@dataclass(frozen=True)
class Outcome:
    """Outcome of a training."""

    seconds: float
    """CPU time from the first step to the end of training [s], validation included."""
    epochs: int
    best_epoch: int
    errors: tuple[float, ...] | None
    """One for each measure of the set; None where training was NaN before its first epoch."""
    remark: str = ""


@dataclass
class Row:
    """Two networks on a set, with a training of each side for each seed."""

    name: str
    set: str
    ours: list[Outcome] = field(default_factory=list)
    theirs: list[Outcome] = field(default_factory=list)
    """Empty where there is no peer."""


Train = Callable[[int], Outcome]


def train(row: Row, ours: Train, theirs: Train | None, seeds: int) -> None:
    """Train both sides of each seed at the same time: a busy machine is worth less to both."""
    with ThreadPoolExecutor(2) as processes:
        for seed in range(seeds):
            first = processes.submit(ours, seed)
            if theirs is not None:
                row.theirs.append(processes.submit(theirs, seed).result())
            row.ours.append(first.result())


def ratios(rows: Sequence[Row]) -> Table:
    """Our mean errors over the other side's, and which side is ahead."""
    lines: list[list[Cell]] = []
    for row in [row for row in rows if row.theirs]:
        cells: list[Cell] = [row.name]
        for number, _ in enumerate(SETS[row.set].measures):
            ours, theirs = _values(row.ours, number), _values(row.theirs, number)
            ratio = mean(ours) / mean(theirs) if ours and theirs else math.nan
            cells.append(" ".join(filter(None, [f"{ratio:.2f}", _verdict(ours, theirs)])))
        lines.append([*cells, *[None] * (3 - len(cells))])
    return Table(["network", "energy, or property", "forces"], lines, "ratios")


def remarks(rows: Sequence[Row]) -> list[str]:
    """Rows in which the other side is ahead, and trainings that did not end well."""
    behind = [
        f"{row.name}, {measure.target}"
        for row in rows
        for number, measure in enumerate(SETS[row.set].measures)
        if _verdict(_values(row.ours, number), _values(row.theirs, number)) == "behind"
    ]
    found = [f"behind: {'; '.join(behind)}"] if behind else []
    for row in rows:
        for side, outcomes in (("ours", row.ours), ("theirs", row.theirs)):
            if ends := [outcome.remark for outcome in outcomes if outcome.remark]:
                found.append(f"{row.name}, {side}: {len(ends)} trainings ended early: {ends[0]}")
    return found


def _values(outcomes: Sequence[Outcome], number: int) -> list[float]:
    """An error of those trainings that have one."""
    return [outcome.errors[number] for outcome in outcomes if outcome.errors is not None]


def _verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The side that is ahead by more than chance."""
    if min(len(ours), len(theirs)) < 2:
        return ""
    error = math.hypot(standard_error(ours), standard_error(theirs))
    return verdict(mean(ours) - mean(theirs), error)
