"""The search in the terminal: its best trials, and what mattered."""

from __future__ import annotations

from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hydragnn_flow.report.importance import FEW_TRIALS, MANY
from hydragnn_flow.report.text import number, percent
from hydragnn_flow.report.trials_frame import value_columns

BEST = 20
"""Trials the terminal shows."""
_BAR = 20  # characters
_EIGHTHS = " ▏▎▍▌▋▊▉"


def best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """The trials in the order people look for them.

    With one objective by value, as members are chosen; with several the Pareto front first. Trials
    that broke a constraint come after those that kept it, and last those that failed or have no
    value yet.
    """
    columns = value_columns(frame.attrs["objectives"])
    keys = pd.DataFrame({"none": frame[columns[0]].isna() | (frame["state"] == "failed")})
    if "feasible" in frame:
        keys["feasible"] = ~frame["feasible"]
    if "pareto" in frame:
        keys["pareto"] = ~frame["pareto"]
    keys["value"], keys["trial"] = frame[columns[0]], frame["trial"]
    return frame.loc[keys.sort_values(list(keys.columns)).index]


def best_table(frame: pd.DataFrame, console: Console, rows: int = BEST) -> Table:
    """The best trials with their parameters and cost.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    console
        Where it is to be shown: a column per parameter if they fit, all in one if not.
    rows
        How many trials at most.
    """
    shown = best_first(frame).head(rows)
    table = _best_table(frame, shown, apart=True)
    fits = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    return table if fits <= console.width else _best_table(frame, shown, apart=False)


def _best_table(frame: pd.DataFrame, shown: pd.DataFrame, *, apart: bool) -> Table:
    objectives = frame.attrs["objectives"]
    counts = frame["state"].value_counts()
    told = ", ".join(f"{counts[state]:,} {state}" for state in counts.index)
    best = "" if len(shown) == len(frame) else f"the best {len(shown):,} of "
    table = Table(title=f"{best}{len(frame):,} trials: {told}", title_justify="left")
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in objectives:
        table.add_column(Text(name), justify="right", no_wrap=True)
    paths = [path for path in frame.attrs["parameters"] if shown[path].notna().any()]
    names = short_names(paths)
    if apart:
        for name in names:
            table.add_column(Text(name), justify="right", no_wrap=True)
    else:
        table.add_column("parameters")
    table.add_column("epochs", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for record in shown.to_dict("records"):
        row: dict[str, Any] = {str(key): value for key, value in record.items()}
        values = [cell(row[path]) for path in paths]
        told = ", ".join(
            f"{name} {value}" for name, value in zip(names, values, strict=True) if value
        )
        table.add_row(
            Text(str(row["trial"]), style="bold green" if row.get("pareto", False) else ""),
            _told_state(row),
            *(cell(row[column]) for column in value_columns(objectives)),
            *(map(Text, values) if apart else [Text(told)]),
            cell(row["epochs"]),
            f"{row['seconds']:,.0f}",
        )
    notes = ["green: no other trial is better in all objectives"] if "pareto" in frame else []
    if shown["origin"].any():
        notes.append("earlier: from a study named in search.warm_start")
    table.caption, table.caption_justify = "\n".join(notes) or None, "left"
    return table


def _told_state(row: dict[str, Any]) -> str:
    words = [row["state"], "" if row.get("feasible", True) else "beyond a limit"]
    return ", ".join(filter(None, [*words, "earlier" if row["origin"] else ""]))


def importance_table(importance: pd.DataFrame, title: str) -> Table:
    """Importances as bars.

    Parameters
    ----------
    importance
        See :func:`hydragnn_flow.report.importance.parameter_importance`.
    title
        Says which objective.
    """
    few = FEW_TRIALS if importance["trials"].max() < MANY else None
    table = Table(title=title, title_justify="left", caption=few, caption_justify="left")
    table.add_column("parameter", overflow="fold")
    table.add_column("importance", no_wrap=True)
    table.add_column("trials with it", justify="right")
    if "shap" in importance:
        table.add_column("SHAP", justify="right")
    largest = importance["importance"].max() or 1.0
    names = short_names(list(importance["parameter"]))
    for name, record in zip(names, importance.to_dict("records"), strict=True):
        row: dict[str, Any] = {str(key): value for key, value in record.items()}
        share = f"{percent(row['importance']):>7} "
        cells: list[str | Text] = [
            Text(name),
            Text.assemble(share, (bar(row["importance"] / largest), "blue")),
            f"{row['trials']:,}",
        ]
        if "shap" in row:
            cells.append(percent(row["shap"]))
        table.add_row(*cells)
    return table


def short_names(paths: list[str]) -> list[str]:
    """Last part of each dotted path, or the whole path where two would be the same."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)]


def cell(value: Any) -> str:
    """A value of a frame as text; empty if it is missing."""
    if value is None or value is pd.NA:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def bar(share: float) -> str:
    """A bar of block characters for a share of the full width."""
    whole, rest = divmod(round(share * _BAR * 8), 8)
    return "█" * whole + _EIGHTHS[rest].strip()
