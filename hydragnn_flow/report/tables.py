"""The tables of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hydragnn_flow.report.closing import accuracies
from hydragnn_flow.report.text import objective_label, told_state
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.search.records import best_first
from hydragnn_flow.segment import SegmentResult

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
    columns = ["target", "unit", "best single member", "ensemble", "interval coverage"]
    rows = accuracies(summary)
    table = pd.DataFrame([tuple(row) for row in rows], columns=[*columns, "predicted noise"])
    return table if any(row.noise is not None for row in rows) else table[columns]


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


def _short_names(paths: Mapping[str, None]) -> dict[str, str]:
    """Last part of each dotted path, or the whole path where two would be the same."""
    last = [path.rpartition(".")[2] for path in paths]
    return {
        path: name if last.count(name) == 1 else path
        for path, name in zip(paths, last, strict=True)
        if path != MPNN_TYPE
    }
