"""The trials of a run as a table: what was asked, what came of it, what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from hydragnn_flow.config.search import direction_of
from hydragnn_flow.config.warm_start import JOURNAL
from hydragnn_flow.errors import InputError
from hydragnn_flow.run_directory import RunDirectory, objectives_of
from hydragnn_flow.search.records import ORIGIN, REASON, WORDS, waits
from hydragnn_flow.search.storage import STUDY, read_journal
from hydragnn_flow.segment import SegmentResult

UNITS = {"seconds": "s", "joules": "J"}


def trials_frame(run_directory: str | Path) -> pd.DataFrame:
    """Every trial of a run, one row each, by number.

    Parameters
    ----------
    run_directory
        Of a finished run, or of one still going. Nothing is written to it.

    Returns
    -------
    pandas.DataFrame
        ``trial``; ``state``: ``complete``, ``pruned``, ``failed``, ``running``, or ``waiting`` to
        be promoted; ``reason`` of a failure; ``origin`` of a trial that another study made;
        ``value`` of the objective, and of a trial that did not reach its end that of its last rung;
        a column per parameter, named by its dotted path, empty where its condition did not hold;
        from the ledger ``rung`` reached, ``epochs``, ``seconds`` of training, the most ``gcds``
        that trained it at a time, ``joules`` where they were counted, ``started`` and ``ended``.

        With several objectives there is a column ``value.<objective>`` each, and ``pareto``:
        whether no other trial is better in all of them. Under constraints there are ``feasible``
        and ``violation``: by how much limits were exceeded, added up.

        ``attrs`` holds ``units`` of columns, the ``objectives``, and ``parameters``: the domain of
        each (``choices``, or ``low``, ``high``, ``log``).

    Raises
    ------
    InputError
        If the search has not begun, or a file is damaged.
    """
    return study_frame_of(Path(run_directory))[1]


def study_frame_of(run_directory: Path) -> tuple[optuna.Study, pd.DataFrame]:
    """A run's study as :func:`read_study` gives it, and the table :func:`trials_frame` describes.

    Raises
    ------
    InputError
        If the search has not begun, or a file is damaged.
    """
    directory = RunDirectory(run_directory)
    results, study = list(directory.results()), read_study(run_directory)
    recorded = (result.number for result in results if result.kind == "trial")
    directory.check_study((trial.number for trial in study.get_trials(deepcopy=False)), recorded)
    return study, study_frame(study, results, objectives_of(run_directory))


def read_study(run_directory: Path) -> optuna.Study:
    """A view of a run's study that cannot write to it.

    Raises
    ------
    InputError
        If the search has not begun, or the journal is damaged.
    """
    study = find_study(run_directory)
    if study is None:
        path = run_directory / JOURNAL
        raise InputError(f"{path}: has no trials yet; start the search with `hydragnn-flow run`")
    return study


def find_study(run_directory: Path) -> optuna.Study | None:
    """Study as of :func:`read_study`, but None before the search begins."""
    path = run_directory / JOURNAL
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = read_journal(path) if path.exists() else None
    if storage is None or not storage.get_all_studies():
        return None
    return optuna.load_study(study_name=STUDY, storage=storage)


def study_frame(
    study: optuna.Study, segments: Iterable[SegmentResult], objectives: Sequence[str] = ()
) -> pd.DataFrame:
    """The table that :func:`trials_frame` describes, of any study.

    Parameters
    ----------
    study
        Of the trials.
    segments
        Those that trained them; others are left aside.
    objectives
        Their names; numbered if not given.
    """
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state in WORDS]
    width = len(study.directions)
    names = ["value"] if width == 1 else [str(i) for i in range(width)]
    if len(objectives) == width:
        names = list(objectives)
    columns: dict[str, Any] = {
        "trial": [trial.number for trial in trials],
        "state": ["waiting" if waits(trial) else WORDS[trial.state] for trial in trials],
        "reason": [str(trial.user_attrs.get(REASON, "")) for trial in trials],
        "origin": [str(trial.user_attrs.get(ORIGIN, "")) for trial in trials],
    }
    for i, name in enumerate(value_columns(names)):
        columns[name] = pd.Series([_value(trial, i) for trial in trials], dtype="float64")
    if width > 1:
        front = {trial.number for trial in study.best_trials}
        columns["pareto"] = pd.Series([trial.number in front for trial in trials], dtype=bool)
    if any(trial.constraints for trial in trials):
        excess = [list(trial.constraints.values()) for trial in trials]
        columns["feasible"] = [all(above <= 0 for above in of) for of in excess]
        columns["violation"] = [sum(above for above in of if not above <= 0) + 0.0 for of in excess]
    domains: dict[str, BaseDistribution] = {}
    for trial in trials:
        domains.update(trial.distributions)
    for path in domains:
        columns[path] = _column([trial.params.get(path) for trial in trials])
    columns.update(_ledger_columns(trials, segments))
    frame = pd.DataFrame(columns)
    frame.attrs = {
        "units": UNITS,
        "objectives": names,
        "parameters": {path: _domain(domain) for path, domain in domains.items()},
    }
    return frame


def value_columns(objectives: Sequence[str]) -> list[str]:
    """The columns that hold the objectives.

    Parameters
    ----------
    objectives
        As in the frame's ``attrs["objectives"]``.
    """
    return ["value"] if len(objectives) == 1 else [f"value.{name}" for name in objectives]


def signs(frame: pd.DataFrame) -> list[float]:
    """By what to multiply each objective so that less is better."""
    ways = map(direction_of, frame.attrs["objectives"])
    return [-1.0 if way == "maximize" else 1.0 for way in ways]


def ranking(frame: pd.DataFrame, objective: int = 0) -> pd.Series[float]:
    """The trials that can be compared, best first, as TPE ranks them.

    Complete trials by their value, then the pruned ones: who trained longer comes first, at the
    same epoch who had the better value. Last those that broke a constraint, the least so first.

    Returns
    -------
    pandas.Series
        The values, by the frame's index, in that order.
    """
    column = value_columns(frame.attrs["objectives"])[objective]
    ended = frame[frame["state"].isin(["complete", "pruned"]) & np.isfinite(frame[column])]
    keys = pd.DataFrame(
        {
            "violation": ended.get("violation", 0.0),
            "pruned": ended["state"] == "pruned",
            "epochs": -ended["epochs"].where(ended["state"] == "pruned", 0).fillna(0).astype(int),
            "value": signs(frame)[objective] * ended[column],
        }
    )
    order = keys.sort_values(list(keys.columns), kind="stable").index
    values: pd.Series[float] = ended.loc[order, column]
    return values


def _value(trial: FrozenTrial, objective: int) -> float | None:
    if trial.values:
        return float(trial.values[objective])
    # Rungs judge by the first objective; nothing is known of the others before the end.
    last = trial.last_step if objective == 0 else None
    return None if last is None else float(trial.intermediate_values[last])


def _column(values: Sequence[Any]) -> pd.Series[Any]:
    """A parameter's values with the narrowest type that has room for gaps and goes into Parquet."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pd.Series(values, dtype="boolean")
    if kinds == {int}:
        return pd.Series(values, dtype="Int64")
    if kinds <= {int, float}:
        return pd.Series(values, dtype="float64")
    return pd.Series([None if value is None else str(value) for value in values], dtype="object")


def _domain(distribution: BaseDistribution) -> dict[str, Any]:
    if isinstance(distribution, CategoricalDistribution):
        return {"choices": list(distribution.choices)}
    known: Any = distribution
    return {"low": known.low, "high": known.high, "log": known.log}


def _ledger_columns(
    trials: Sequence[FrozenTrial], segments: Iterable[SegmentResult]
) -> Mapping[str, Any]:
    own: dict[int, list[SegmentResult]] = {trial.number: [] for trial in trials}
    for segment in segments:
        if segment.kind == "trial" and segment.number in own:
            own[segment.number].append(segment)
    each = list(own.values())
    joules = [[s.joules for s in of if s.joules is not None] for of in each]
    started = [min((s.started for s in of if s.started > 0), default=None) for of in each]
    ended = [
        # Between two segments a trial has not ended.
        max((s.ended for s in of if s.ended), default=None) if trial.state.is_finished() else None
        for trial, of in zip(trials, each, strict=True)
    ]
    # Only the study knows how far the trials of another study went.
    reported = [trial.last_step or 0 for trial in trials]
    passed = [max((s.rung for s in of if s.status == "ok"), default=None) for of in each]
    return {
        "rung": pd.Series(passed, dtype="Int64"),
        "epochs": [
            max((s.to_epoch for s in of), default=known)
            for of, known in zip(each, reported, strict=True)
        ],
        "seconds": [float(sum(s.seconds for s in of)) for of in each],
        "gcds": [max((len(s.gcds) for s in of), default=0) for of in each],
        "joules": pd.Series([sum(of) if of else None for of in joules], dtype="float64"),
        "started": _times(started),
        "ended": _times(ended),
    }


def _times(seconds: Sequence[float | None]) -> pd.Series[Any]:
    unix = np.array([np.nan if second is None else second for second in seconds], dtype=float)
    return pd.Series(pd.to_datetime(unix, unit="s", utc=True))
