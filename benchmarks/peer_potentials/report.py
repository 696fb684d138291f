"""The table of networks beside their peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from model_accuracy.outcome import Outcome
from model_accuracy.sets import SETS
from results import Cell, Number, Table

from peer_potentials.sides import SET, Pair

TARGET = 0.9
"""Of the ratio of the mean errors."""
_COLUMNS = ("network", "error", "ours", "theirs", "ratio", "target", "", "epochs", "theirs")


@dataclass(frozen=True)
class Row:
    """A pair, with a training of each side for each seed."""

    pair: Pair
    ours: list[Outcome]
    theirs: list[Outcome]


def table(rows: Sequence[Row]) -> Table:
    """A line for each error of each pair."""
    lines: list[list[Cell]] = []
    for row in rows:
        for number, measure in enumerate(SETS[SET].measures):
            ours, theirs = _values(row.ours, number), _values(row.theirs, number)
            ratio, first = _ratio(row, number), number == 0
            lines.append(
                [
                    f"{row.pair.mpnn_type}, {row.pair.peer}" if first else "",
                    str(measure),
                    _cell(ours),
                    _cell(theirs),
                    ratio,
                    f"≤ {TARGET:g}",
                    "" if ratio is None else "met" if ratio <= TARGET else "MISSED",
                    _epochs(row.ours) if first else None,
                    _epochs(row.theirs) if first else None,
                ]
            )
    return Table(_COLUMNS, lines, SET, SET)


def remarks(rows: Sequence[Row], left_out: Sequence[str]) -> list[str]:
    """Targets that were missed, trainings that did not end well, and what was left out."""
    missed = [
        f"{row.pair.mpnn_type}, {measure.target}"
        for row in rows
        for number, measure in enumerate(SETS[SET].measures)
        if (_ratio(row, number) or 0.0) > TARGET
    ]
    found = [f"targets missed: {'; '.join(missed) or 'none'}"] if rows else []
    found += [
        f"{row.pair.mpnn_type}, {side}: {outcome.remark}"
        for row in rows
        for side, outcomes in (("ours", row.ours), ("theirs", row.theirs))
        for outcome in outcomes
        if outcome.remark
    ]
    return found + [f"not measured: {what}" for what in left_out]


def _ratio(row: Row, number: int) -> float | None:
    ours, theirs = _values(row.ours, number), _values(row.theirs, number)
    return mean(ours) / mean(theirs) if ours and theirs else None


def _values(outcomes: Sequence[Outcome], number: int) -> list[float]:
    return [outcome.errors[number] for outcome in outcomes if outcome.errors is not None]


def _cell(values: Sequence[float]) -> Cell:
    if len(values) < 2:
        return values[0] if values else None
    return Number(mean(values), error=stdev(values) / len(values) ** 0.5)


def _epochs(outcomes: Sequence[Outcome]) -> int | None:
    return round(mean(outcome.epochs for outcome in outcomes)) if outcomes else None
