"""The tables of the report and of the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from hydragnn_flow.report.text import number, objective_label, percent
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.records import best_first
from hydragnn_flow.training.segment import SegmentResult

MPNN_TYPE = "Architecture.mpnn_type"


def trials_table(
    trials: Sequence[TrialRecord],
    segments: Sequence[SegmentResult],
    types: Mapping[int, str],
    objective: str = "val_loss",
) -> pd.DataFrame:
    """One row per trial: the best first, then those beyond a limit, those without a value last.

    Parameters
    ----------
    trials, segments
        Of the run.
    types
        Message-passing type of each trial, by number.
    objective
        The first of the search's.

    Returns
    -------
    pandas.DataFrame
        ``trial``, ``state``, ``mpnn_type``, a column per other searched parameter named by the
        last part of its path, ``epochs`` reached, ``best`` and the objective in words,
        ``seconds``, ``reason``.
    """
    short = _short_names({path: None for trial in trials for path in trial.parameters})
    own: dict[int, list[SegmentResult]] = {trial.number: [] for trial in trials}
    for segment in segments:
        if segment.kind == "trial" and segment.number in own:
            own[segment.number].append(segment)
    best = f"best {objective_label(objective)}"
    rows = [
        {
            "trial": trial.number,
            "state": told_state(trial),
            "mpnn_type": types.get(trial.number, ""),
            **{short[path]: value for path, value in trial.parameters.items() if path in short},
            "epochs": max((s.to_epoch for s in own[trial.number]), default=0),
            best: math.nan if trial.value is None else trial.value,
            "seconds": sum(s.seconds for s in own[trial.number]),
            "reason": trial.reason,
        }
        for trial in sorted(trials, key=best_first)
    ]
    columns = ["trial", "state", "mpnn_type", *short.values()]
    return pd.DataFrame(rows, columns=[*columns, "epochs", best, "seconds", "reason"])


def told_state(trial: TrialRecord) -> str:
    """A trial's state, whether it waits to be promoted, and whether it broke a constraint."""
    state = "waiting" if trial.waits else trial.state
    return state if trial.feasible else f"{state}, beyond a limit"


def accuracy_table(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Test errors of the best single member and of the ensemble.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.

    Returns
    -------
    pandas.DataFrame
        ``target``, ``unit``, ``best single member`` and ``ensemble`` (mean absolute errors in
        ``unit``), ``interval coverage`` (share of test values inside the calibrated interval);
        where heads predict the noise of a target, ``predicted noise``, its mean in ``unit``.
    """
    rows = []
    noisy = any("aleatoric_std" in values for values in summary["test"].values())
    for target, values in summary["test"].items():
        unit, covered = values["unit"], values["coverage"]
        single, ensemble = values["mae_best_member"], values["mae_ensemble"]
        noise = values.get("aleatoric_std", math.nan)
        rows.append((target, unit, single, ensemble, covered, noise))
        if values.get("mae_per_atom_ensemble") is not None:
            # Errors per atom of a useful model are thousandths of an electronvolt.
            scale, unit = (1000, "meV") if unit == "eV" else (1, unit)
            single = values["mae_per_atom_best_member"] * scale
            ensemble = values["mae_per_atom_ensemble"] * scale
            row = (f"{target} per atom", f"{unit}/atom", single, ensemble, covered, math.nan)
            rows.append(row)
    columns = ["target", "unit", "best single member", "ensemble", "interval coverage"]
    table = pd.DataFrame(rows, columns=[*columns, "predicted noise"])
    return table if noisy else table[columns]


def members_table(summary: Mapping[str, Any]) -> pd.DataFrame:
    """The ensemble's members: trial, weight, loss, GCDs, seconds, and why one was cut short.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    rows = [
        {
            "member": member["member"],
            "trial": member["trial"],
            "weight": member["weight"],
            "best validation loss": member["best_val_loss"],
            "GCDs": ", ".join(str(gcd) for gcd in member["gcds"]),
            "seconds": member["seconds"],
            "reason": member.get("reason", ""),
        }
        for member in summary["members"]
    ]
    return pd.DataFrame(rows)


def closing_table(summary: Mapping[str, Any]) -> Table:
    """What the terminal shows when a campaign is over.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    level = f"{summary['level'] * 100:g} %"
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
    table.add_column(f"{level} interval holds", justify="right")
    for row in accuracy_table(summary).to_dict("records"):
        single, ensemble = row["best single member"], row["ensemble"]
        # Text, not markup: a target may be named [like this].
        table.add_row(
            Text(row["target"]),
            Text(number(single), style="bold green" if single < ensemble else ""),
            Text(number(ensemble), style="bold green" if ensemble <= single else ""),
            Text(row["unit"]),
            percent(row["interval coverage"]),
        )
    return table


def _short_names(paths: Mapping[str, None]) -> dict[str, str]:
    """Last part of each dotted path, or the whole path where two would be the same."""
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 else path
        for path, name in zip(paths, last, strict=True)
        if path != MPNN_TYPE
    }
