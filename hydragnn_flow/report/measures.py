"""Measures of predictions and their uncertainty as tables: in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from hydragnn_flow.report.text import number, percent

_WORDS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "nll": "NLL",
    "crps": "CRPS",
    "ence": "ENCE",
    "miscalibration_area": "miscalibration area",
    "sharpness": "sharpness",
    "spearman": "Spearman(|error|, std)",
    "retention": "error retention",
    "mae_flagged": "MAE, flagged structures",
    "mae_unflagged": "MAE, other structures",
}


def measures_table(targets: Mapping[str, Mapping[str, Any]]) -> Table:
    """What the terminal shows: a row for each measure of each target.

    Parameters
    ----------
    targets
        As `measures` of `ensemble/ensemble.json` has them.
    """
    table = Table(
        caption=Text("intervals: 95 %, from a bootstrap of structures"), caption_justify="left"
    )
    table.add_column("target")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, target in targets.items():
        # Beside the first measures there is room for what the target is.
        about = [name, target["unit"], _counted(target["structures"], "structure")]
        about.append(_counted(target["values"], "value"))
        about.append(f"{target.get('flagged', 0):,} flagged")
        measures = target["measures"].items()
        for place, (measure, estimate) in enumerate(measures):
            told = about[place] if place < len(about) else ""
            value, interval = _cells(measure, estimate)
            # Text, not markup: a target may be named [like this].
            table.add_row(Text(told), words(measure), value, interval)
        table.add_section()
    return table


def measures_frame(targets: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """What the report shows: a row for each measure, a column for each target.

    Parameters
    ----------
    targets
        As for :func:`measures_table`.
    """
    columns: dict[str, dict[str, str]] = {}
    for name, target in targets.items():
        told = {
            "structures": f"{target['structures']:,}",
            "values": f"{target['values']:,}",
            "flagged": f"{target.get('flagged', 0):,}",
        }
        for measure, estimate in target["measures"].items():
            value, interval = _cells(measure, estimate)
            told[words(measure)] = f"{value} [{interval}]" if interval else value
        columns[f"{name} [{target['unit']}]" if target["unit"] else name] = told
    return pd.DataFrame(columns).rename_axis("measure").reset_index()


def words(measure: str) -> str:
    """A measure's name as people read it."""
    kind, _, coverage = measure.partition("_")
    if kind in ("coverage", "width"):
        return f"{coverage} % interval {'holds' if kind == 'coverage' else 'width'}"
    return _WORDS[measure]


def _cells(measure: str, estimate: Mapping[str, float | None]) -> tuple[str, str]:
    """The value and its interval; empty if undefined."""
    told = percent if measure.startswith("coverage") else number
    value, lo, hi = ("" if end is None else told(end) for end in estimate.values())
    return value, f"{lo} to {hi}" if lo else ""


def _counted(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
