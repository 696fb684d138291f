"""Result of a case, as a row of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results import Cell, Number, Table

from model_race.networks import MODES, Case


@dataclass(frozen=True)
class Figures:
    """Of one side."""

    training: float
    """Graphs per CPU-second in training steps."""
    inference: float
    """Graphs per CPU-second predicted, with forces in a potential."""
    parameters: int
    memory: float | None
    """Added by the network and its training steps at their highest [MB]; None if unknown."""


@dataclass(frozen=True)
class Ratio:
    """Our speed over HydraGNN's."""

    median: float
    """Over the rounds."""
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """Both sides of a case, those that could be measured."""

    case: Case
    ours: Figures | None
    theirs: Figures | None
    training: Ratio | None
    inference: Ratio | None

    @property
    def memory(self) -> float | None:
        """Our memory over HydraGNN's."""
        figures = [self.ours, self.theirs]
        known = [f.memory for f in figures if f is not None and f.memory is not None]
        return known[0] / known[1] if len(known) == 2 else None

    @property
    def missed(self) -> list[str]:
        """The targets that are missed."""
        found = []
        if self.training is not None and self.training.median < self.case.target:
            found.append("speed")
        if self.memory is not None and self.memory > 1:
            found.append("memory")
        return found


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each mode; ours is before HydraGNN's."""
    columns = ["type"]
    for what in ("training", "inference"):
        columns += [f"{what} [graphs/CPU-s]", "HydraGNN", "ratio"]
    columns += ["target", "memory [MB]", "HydraGNN", "ratio", "weights", "HydraGNN", ""]
    return [
        Table(columns, [_cells(row) for row in rows if row.case.mode == mode], mode, mode)
        for mode in MODES
        if any(row.case.mode == mode for row in rows)
    ]


def remarks(rows: Sequence[Row], left_out: Sequence[str]) -> list[str]:
    """Sentences below the tables: where we miss, where we are behind, what was not measured."""
    compared = [row for row in rows if row.training is not None]
    missed = [f"{_name(row)} ({', '.join(row.missed)})" for row in compared if row.missed]
    slower = [
        f"{_name(row)} in {what} ({ratio.median:.2f})"
        for row in compared
        for what, ratio in (("training", row.training), ("inference", row.inference))
        if ratio is not None and ratio.median < 1
    ]
    found = [f"not measured: {what}" for what in left_out]
    if compared:
        found.insert(0, f"targets missed: {'; '.join(missed) or 'none'}")
        found.insert(1, f"slower than HydraGNN: {'; '.join(slower) or 'nothing'}")
    return found


def _name(row: Row) -> str:
    return f"{row.case.mpnn_type}, {row.case.mode}"


def _cells(row: Row) -> list[Cell]:
    def both(name: str) -> list[Cell]:
        return [None if side is None else getattr(side, name) for side in (row.ours, row.theirs)]

    verdict = ""
    if row.training is not None:
        verdict = f"MISSED: {', '.join(row.missed)}" if row.missed else "met"
    return [
        row.case.mpnn_type,
        *both("training"),
        _ratio(row.training),
        *both("inference"),
        _ratio(row.inference),
        f"≥ {row.case.target:g}",
        *both("memory"),
        row.memory,
        *both("parameters"),
        verdict,
    ]


def _ratio(ratio: Ratio | None) -> Number | None:
    return None if ratio is None else Number(ratio.median, "", ratio.low, ratio.high)
