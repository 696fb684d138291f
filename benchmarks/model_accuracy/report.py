"""The tables of accuracies: a line for each error of each contest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from results import Cell, Number, Table

from model_accuracy.outcome import Outcome
from model_accuracy.sets import SETS, Contest

# Standard errors of a difference beyond which one side is ahead.
_SIGNIFICANT = 2.0


@dataclass(frozen=True)
class Row:
    """A contest."""

    contest: Contest
    ours: Sequence[Outcome]
    """One for each seed."""
    theirs: Sequence[Outcome]
    """HydraGNN's; empty where there is no checkout."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each set."""
    columns = ("type", "CPU-s", "error", "ours", "HydraGNN", "ratio", "", "epochs", "HydraGNN")
    return [
        Table(
            columns,
            [cells for row in rows if row.contest.set == name for cells in _cells(row)],
            name,
            name,
        )
        for name in SETS
        if any(row.contest.set == name for row in rows)
    ]


def remarks(rows: Sequence[Row], left_out: Sequence[str]) -> list[str]:
    """Sentences below the tables: where we are behind, and which trainings did not end well."""
    behind = [
        f"{row.contest.name}, {measure.target}"
        for row in rows
        for number, measure in enumerate(SETS[row.contest.set].measures)
        if _verdict(_values(row.ours, number), _values(row.theirs, number)) == "behind"
    ]
    found = (
        [f"behind HydraGNN: {'; '.join(behind) or 'nowhere'}"]
        if any(row.theirs for row in rows)
        else []
    )
    for row in rows:
        for side, outcomes in (("ours", row.ours), ("HydraGNN's", row.theirs)):
            ends = [outcome.remark for outcome in outcomes if outcome.remark]
            if ends:
                found.append(
                    f"{row.contest.name}, {side}: {len(ends)} of {len(outcomes)} trainings ended "
                    f"early: {'; '.join(ends)}"
                )
    return found + [f"not measured: {what}" for what in left_out]


def _cells(row: Row) -> list[list[Cell]]:
    lines: list[list[Cell]] = []
    for number, measure in enumerate(SETS[row.contest.set].measures):
        ours, theirs = _values(row.ours, number), _values(row.theirs, number)
        first = number == 0
        lines.append(
            [
                _type(row.contest) if first else "",
                _seconds(row) if first else "",
                str(measure),
                _mean(ours, row.ours),
                _mean(theirs, row.theirs),
                mean(ours) / mean(theirs) if ours and theirs else None,
                _verdict(ours, theirs),
                _epochs(row.ours) if first else None,
                _epochs(row.theirs) if first else None,
            ]
        )
    return lines


def _seconds(row: Row) -> str:
    """CPU time of a training, ours before HydraGNN's, whose last epoch is whole."""
    sides = [mean(o.seconds for o in outcomes) for outcomes in (row.ours, row.theirs) if outcomes]
    return " / ".join(f"{seconds:.0f}" for seconds in sides)


def _type(contest: Contest) -> str:
    if SETS[contest.set].potential:
        return contest.mpnn_type
    return f"{contest.mpnn_type}, {'with' if contest.lengths else 'without'} edge lengths"


def _values(outcomes: Sequence[Outcome], number: int) -> list[float]:
    """An error of those trainings that have one."""
    return [outcome.errors[number] for outcome in outcomes if outcome.errors is not None]


def _mean(values: Sequence[float], outcomes: Sequence[Outcome]) -> Cell:
    if values:
        return Number(mean(values), error=_error(values) if len(values) > 1 else None)
    return "NaN" if outcomes else None


def _epochs(outcomes: Sequence[Outcome]) -> int | None:
    return round(mean(outcome.epochs for outcome in outcomes)) if outcomes else None


def _verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The side that is ahead by more than chance."""
    if min(len(ours), len(theirs)) < 2:
        return ""
    difference = mean(ours) - mean(theirs)
    if abs(difference) <= _SIGNIFICANT * math.hypot(_error(ours), _error(theirs)):
        return "equal"
    return "ahead" if difference < 0 else "behind"


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return stdev(values) / math.sqrt(len(values))
