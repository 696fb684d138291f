"""The table of accuracies, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from results.machine import machine
from rich import box
from rich.table import Table

from model_accuracy.run import Outcome
from model_accuracy.sets import SETS, Published


@dataclass(frozen=True)
class Row:
    """One type on one set."""

    set: str
    mpnn_type: str
    outcome: Outcome

    @property
    def published(self) -> Published | None:
        """HydraGNN's figures, where there are any."""
        return SETS[self.set].published.get(self.mpnn_type)

    @property
    def met(self) -> bool | None:
        """Whether no error is larger than HydraGNN's; None where nothing is known of those."""
        if self.published is None:
            return None
        if self.outcome.errors is None:
            return False
        theirs = self.published.errors
        return theirs is None or all(
            ours <= other for ours, other in zip(self.outcome.errors, theirs, strict=True)
        )


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table, which is Markdown too; a line for each error."""
    shown = Table(box=box.MARKDOWN, title=None)
    for heading in ("set", "type", "CPU-s", "epochs", "error", "ours", "HydraGNN", "ratio", ""):
        right = heading in ("CPU-s", "epochs", "ours", "HydraGNN", "ratio")
        shown.add_column(heading, justify="right" if right else "left")
    for row in rows:
        outcome, published = row.outcome, row.published
        for number, measure in enumerate(SETS[row.set].measures):
            ours = None if outcome.errors is None else outcome.errors[number]
            theirs = published and published.errors and published.errors[number]
            shown.add_row(
                row.set,
                row.mpnn_type,
                f"{outcome.seconds:.0f}",
                f"{outcome.epochs}",
                str(measure),
                outcome.remark if ours is None else f"{ours:.3g}",
                f"{theirs:g}" if theirs else "NaN" if published else "",
                f"{ours / theirs:.2f}" if ours is not None and theirs else "",
                {True: "met", False: "MISSED", None: ""}[row.met],
            )
    return shown


def write_json(path: Path, rows: Sequence[Row], left_out: Sequence[str]) -> None:
    """Write everything that is known about the run."""
    content = {
        "machine": machine(),
        "rows": [
            {
                **asdict(row),
                "measures": [str(measure) for measure in SETS[row.set].measures],
                "published": None if row.published is None else asdict(row.published),
                "met": row.met,
            }
            for row in rows
        ],
        "left_out": list(left_out),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
