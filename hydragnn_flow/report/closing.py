"""Errors of a finished ensemble, and the table of them that ends a campaign in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from hydragnn_flow.report.text import number, percent


class Accuracy(NamedTuple):
    """How well an ensemble does on the test split: one target in one unit."""

    target: str
    unit: str
    best_member: float
    """Mean absolute error of the best single member, in ``unit``."""
    ensemble: float
    """Mean absolute error of the ensemble, in ``unit``."""
    coverage: float
    """Fraction of test values inside the calibrated interval."""
    noise: float | None = None
    """Mean noise that the heads predict, in ``unit``; None if they predict none."""


def accuracies(summary: Mapping[str, Any]) -> list[Accuracy]:
    """The rows of the table of errors.

    A target of whole structures has a second row per atom, in meV where its unit is eV.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    rows = []
    for target, values in summary["test"].items():
        unit, covered = values["unit"], values["coverage"]
        single, ensemble = values["mae_best_member"], values["mae_ensemble"]
        noise = values.get("aleatoric_std")
        rows.append(Accuracy(target, unit, single, ensemble, covered, noise))
        if values.get("mae_per_atom_ensemble") is not None:
            # Errors per atom of a useful model are thousandths of an electronvolt.
            scale, unit = (1000, "meV") if unit == "eV" else (1, unit)
            single = values["mae_per_atom_best_member"] * scale
            ensemble = values["mae_per_atom_ensemble"] * scale
            row = Accuracy(f"{target} per atom", f"{unit}/atom", single, ensemble, covered)
            rows.append(row)
    return rows


def closing_table(summary: Mapping[str, Any]) -> Table:
    """Tables that the terminal shows when a campaign is over.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    coverage = f"{summary['coverage'] * 100:g} %"
    caption = [
        f"{len(summary['members'])} members · {summary['wall_seconds']:,.0f} s wall · "
        f"{summary['cpu_seconds']:,.0f} s CPU in training trials and members"
    ]
    caption += [
        f"member {member['member']} (trial {member['trial']}) was not trained to its end: "
        f"{member['reason']}"
        for member in summary["members"]
        if member.get("reason")
    ]
    table = Table(
        title="Mean absolute errors on the test split",
        title_justify="left",
        caption=Text("\n".join(caption)),
        caption_justify="left",
    )
    table.add_column("target")
    table.add_column("best single member", justify="right")
    table.add_column("ensemble", justify="right")
    table.add_column("unit")
    table.add_column(f"{coverage} interval holds", justify="right")
    for row in accuracies(summary):
        single, ensemble = row.best_member, row.ensemble
        # Text, not markup: a target may be named [like this].
        table.add_row(
            Text(row.target),
            Text(number(single), style="bold green" if single < ensemble else ""),
            Text(number(ensemble), style="bold green" if ensemble <= single else ""),
            Text(row.unit),
            percent(row.coverage),
        )
    return table
