"""What a case found, as a row of the table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from results.machine import machine
from rich import box
from rich.table import Table

from model_race.networks import Case


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
class Row:
    """Both sides of a case, those that could be measured."""

    case: Case
    ours: Figures | None
    theirs: Figures | None
    training: float | None
    """Our speed over HydraGNN's, the median over rounds."""
    inference: float | None

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
        if self.training is not None and self.training < self.case.target:
            found.append("speed")
        if self.memory is not None and self.memory > 1:
            found.append("memory")
        return found


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table, which is Markdown too; ours stands before HydraGNN's."""
    shown = Table(box=box.MARKDOWN, title=None)
    shown.add_column("type")
    for heading in ("training", "HydraGNN", "ratio", "target"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for heading in ("inference", "HydraGNN", "ratio"):
        shown.add_column(heading, justify="right")
    for heading in ("memory", "HydraGNN", "ratio", "weights", "HydraGNN"):
        shown.add_column(heading, justify="right")
    for row in rows:
        sides = (row.ours, row.theirs)
        training, inference, memory, weights = (
            [None if side is None else getattr(side, name) for side in sides]
            for name in ("training", "inference", "memory", "parameters")
        )
        verdict = ""
        if row.training is not None:
            verdict = f"MISSED: {', '.join(row.missed)}" if row.missed else "met"
        shown.add_row(
            row.case.mpnn_type,
            *map(_number, [*training, row.training]),
            f"≥ {row.case.target:g}",
            verdict,
            *map(_number, [*inference, row.inference]),
            *map(_number, [*memory, row.memory]),
            *("" if count is None else f"{count:,}" for count in weights),
        )
    return shown


def write_json(
    path: Path, settings: dict[str, Any], rows: Sequence[Row], left_out: Sequence[str]
) -> None:
    """Write everything that is known about the run."""
    content = {
        "machine": machine(),
        "settings": settings,
        "rows": [
            {**asdict(row), "target": row.case.target, "memory": row.memory, "missed": row.missed}
            for row in rows
        ],
        "left_out": list(left_out),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return ""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
