"""Table of errors and cost that ends a campaign in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hydragnn_flow.ensemble.failed_members import failed_sentences
from hydragnn_flow.report.cost import cost_sentence
from hydragnn_flow.report.errors import data_set_rows, error_rows, explained, target_labels
from hydragnn_flow.report.text import percent


def closing_table(summary: Mapping[str, Any]) -> RenderableType:
    """What the terminal shows when a campaign is over.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    structures = max((target["structures"] for target in summary["errors"].values()), default=0)
    title = f"Mean absolute errors on the test split: {structures:,} structures, 95 % intervals"
    table = _table(title)
    table.add_column("")
    table.add_column("weight", justify="right")
    for name, unit in target_labels(summary):
        # Text, not markup: a target may be named [like this].
        table.add_column(Text(f"{name}\n{unit}"), justify="right")
    *models, against = error_rows(summary)
    for row in models:
        cells = zip(row.errors, row.best, strict=True)
        told = (Text(text, style="bold green" if best else "") for text, best in cells)
        table.add_row(row.model, row.weight, *told)
    table.add_section()
    table.add_row(against.model, "", *against.errors)
    held = [summary["test"][target["target"]]["coverage"] for target in summary["errors"].values()]
    coverage = f"{summary['coverage'] * 100:g} %"
    table.add_row(f"{coverage} interval holds", "", *map(percent, held))
    tables = [table, *_data_sets(summary)]
    sentences = [*explained(summary), *failed_sentences(summary), cost_sentence(summary)]
    return Group(*tables, *map(Text, sentences))


def _data_sets(summary: Mapping[str, Any]) -> list[Table]:
    rows = data_set_rows(summary)
    if not rows:
        return []
    table = _table("The ensemble on each data set, and intervals that hold")
    table.add_column("")
    table.add_column("structures", justify="right")
    for name, unit in target_labels(summary):
        table.add_column(Text(f"{name}\n{unit}"), justify="right")
        table.add_column("\nhold", justify="right")
    *data_sets, means = rows
    for row in data_sets:
        table.add_row(*map(Text, row))
    table.add_section()
    table.add_row(*means)
    return [table]


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
