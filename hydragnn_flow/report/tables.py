"""Tables of the report: a column has its name, unit and meaning once, wherever a table is shown.

A table is a pandas frame. The terminal, the page and the model card show it with the headings and
numbers of :func:`shown`; as CSV it keeps the plain names of its columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

SPLITS = {
    "trainset": "training",
    "valset": "validation",
    "calibrationset": "calibration",
    "testset": "test",
}
"""Words for the splits of a store, by name of the split."""
SIMULATED_RUN = "Simulated: nothing was trained; times and errors are made up."
"""Remark that is shown with a simulated run."""


COLUMNS = {
    "choice": ("", "why the trial was chosen"),
    "trial_error": ("", "validation error as trial"),
    "best_val_error": ("", "validation error as member"),
    "reason": ("", "why it did not reach its end"),
    "seconds": ("s", "wall time of the training"),
    "joules": ("J", "energy of the segments"),
    "GCD-hours": ("", "time of GCDs at work; segments that share one count once"),
    "node-hours": ("", "time in which any GCD of a node was at work"),
    "peak memory": ("GiB", "of the largest process"),
    "GPUs active": ("%", "time of segments in which their GPUs computed anything; samples"),
    "share": ("%", "of the time of GCDs whose nodes were there"),
    "|error|": ("", "mean absolute error of the structure's components"),
    "deviation": ("", "root mean square of the predicted standard deviations"),
    "|error| / deviation": ("", "of root mean squares; far above 1: nothing announced it"),
    "efficiency": ("%", "graphs of a GCD beside those on the fewest GCDs"),
    "step": ("ms", "time of a training step"),
    "speed": ("graphs/s", "graphs that all GCDs train in a second"),
    "sum": ("%", "time of the parts, of the same steps timed as a whole"),
}
"""Unit and meaning of columns that their name alone does not explain, by name of the column."""
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d([^a-zA-Z]| to )*$|$")


class Heading(NamedTuple):
    """Heading of a table's column: label with unit, meaning, and whether it holds numbers."""

    label: str
    meaning: str
    is_number: bool


class Shown(NamedTuple):
    """Table as text to show: headings, rows, and the number of rows that are left out."""

    headings: list[Heading]
    rows: list[list[str]]
    left_out: int


def shown(table: pd.DataFrame) -> Shown:
    """Convert a data frame to text for display: headings, and at most its first 500 rows.

    Numbers are formatted by :func:`cell`.

    Parameters
    ----------
    table
        Frame with plain names of columns.
    """
    head = table.head(500).astype(object)
    rows = [[cell(value) for value in row] for row in head.itertuples(index=False, name=None)]
    headings = []
    for i, name in enumerate(map(str, table.columns)):
        unit, meaning = COLUMNS.get(name, ("", ""))
        is_number = all(_NUMBER.match(row[i]) for row in rows)
        headings.append(Heading(f"{name} [{unit}]" if unit else name, meaning, is_number))
    return Shown(headings, rows, len(table) - len(head))


def terminal(table: pd.DataFrame, title: str = "", caption: str = "") -> Group:
    """Convert a data frame to a table that rich prints in the terminal.

    Parameters
    ----------
    table
        Frame with plain names of columns.
    title, caption
        Lines above and below the table; empty for none.
    """
    text = shown(table)
    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for heading in text.headings:
        justify: Literal["left", "right"] = "right" if heading.is_number else "left"
        grid.add_column(Text(heading.label), justify=justify, overflow="fold")
    for row in text.rows:
        grid.add_row(*map(Text, row))
    # Not the table's own, which would be as narrow as the table. Text, not markup: a target may be
    # named [like this].
    above, below = Text(title, "table.title"), Text(caption, "table.caption")
    parts: list[Text | Table] = [above, grid, below]
    return Group(*[part for part in parts if part])


def objective_label(name: str) -> str:
    """Return the readable name of an objective in `search.objectives`, such as `energy [J]`."""
    words = {
        "val_error": "validation error",
        "val_loss": "validation loss",
        "train_loss": "training loss",
        "throughput": "throughput [structures/s]",
        "seconds": "training time [s]",
        "joules": "energy [J]",
    }
    return words.get(name, name)


def number(value: float) -> str:
    """Format a number with three significant digits; empty for NaN.

    Below ten million, whole numbers and numbers from 1,000 on have all digits before the point.
    """
    if math.isnan(value):
        return ""
    if abs(value) < 1e7 and (value == round(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def cell(value: Any) -> str:
    """Format a value of a table as text; empty if the value is missing."""
    if isinstance(value, float):
        return number(value)
    return "" if value is None or str(value) == "<NA>" else str(value)


def percent(fraction: float) -> str:
    """Format a fraction as a percentage with one decimal."""
    return f"{fraction * 100:.1f} %"


def short_names(paths: Sequence[str]) -> list[str]:
    """Shorten dotted paths of parameters to their last key, unless several end in the same key."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)]
