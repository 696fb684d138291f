"""Trials of a run as a table: their parameters, results and cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState
from rich.console import Group

from hydragnn_flow.config.origins import JOURNAL
from hydragnn_flow.config.search import direction_of
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.fence import is_driven
from hydragnn_flow.plain_files import FROM_A_COPY, read_yaml
from hydragnn_flow.report.tables import cell, objective_label, short_names, terminal
from hydragnn_flow.run_directory import CONFIG, RunDirectory, objectives_of
from hydragnn_flow.search.records import ORIGIN, REASON, WORDS
from hydragnn_flow.search.storage import STUDY, read_journal
from hydragnn_flow.segment import SegmentResult

_COST = ("epochs", "seconds", "joules")
_LEDGER = {"rung": "Int64", "epochs": "int64", "seconds": "float64", "gcds": "int64"}
_LEDGER |= dict.fromkeys(("joules", "started", "ended"), "float64")


def trials_frame(run_directory: str | Path) -> pd.DataFrame:
    """Return a table of the trials of a run, one row each, in the order of their numbers.

    Parameters
    ----------
    run_directory
        Directory of a finished run, or of one still going. Nothing is written to it.

    Returns
    -------
    pandas.DataFrame
        ``trial``, the number; ``state``: ``complete``, ``pruned``, ``failed``, ``running``, or
        ``stopped`` if no driver is at work; ``reason`` of a failure; ``origin`` of a trial taken
        from another study, else empty; ``value`` of the objective, at the last rung if the trial
        did not reach its end; a column per parameter, named by its dotted path, empty for trials
        without the parameter; from the ledger the ``rung`` reached, ``epochs``, ``seconds`` of
        training, the largest number of ``gcds`` that trained the trial at a time, ``joules`` if
        they were counted, ``started`` and ``ended`` (times in UTC).

        With several objectives there are, instead of ``value``, a column ``value.<objective>`` for
        each, and ``pareto``: True if the trial is on the Pareto front. With constraints there are
        ``feasible``: True if the trial kept all limits, and ``violation``: the sum of the excesses
        over limits.

        ``attrs`` holds the ``units`` of columns, the names of the ``objectives``, and
        ``parameters``: the domain of each parameter (``choices``, or ``low``, ``high``, ``log``).

    Raises
    ------
    InputError
        If the search has not begun, or a file is damaged.
    """
    return study_frame_of(Path(run_directory))[1]


def segments_frame(run_directory: str | Path) -> pd.DataFrame:
    """Return a table of the segments (jobs of training) of a run, in the order of their ends.

    Returns
    -------
    pandas.DataFrame
        A row for each segment; columns are the fields of
        :class:`~hydragnn_flow.segment.SegmentResult`, such as ``kind``, ``number``, ``status``,
        ``seconds`` [s], and ``history``: epoch, training loss, validation loss and criterion of
        each of its epochs.

    Raises
    ------
    InputError
        If the directory is not that of a run.
    """
    run = RunDirectory(Path(run_directory))
    read_yaml(run.path / CONFIG, remedy=FROM_A_COPY)
    return pd.DataFrame([result.to_dict() for result in run.results()])


def study_frame_of(run_directory: Path) -> tuple[optuna.Study, pd.DataFrame]:
    """Return a run's Optuna study, and the table of its trials, both read from its directory.

    The study is as from :func:`read_study`, and the table as from :func:`trials_frame`.

    Raises
    ------
    InputError
        If the search has not begun, or a file is damaged.
    """
    directory = RunDirectory(run_directory)
    results, study = list(directory.results()), read_study(run_directory)
    recorded = (result.number for result in results if result.kind == "trial")
    directory.check_study((trial.number for trial in study.get_trials(deepcopy=False)), recorded)
    driven, objectives = is_driven(run_directory), objectives_of(run_directory)
    return study, study_frame(study, results, objectives, driven)


def read_study(run_directory: Path) -> optuna.Study:
    """Return a run's Optuna study as a copy in memory; changes to it are not written to the file.

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
    """Return a run's Optuna study as a copy in memory; None before the search begins."""
    path = run_directory / JOURNAL
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = read_journal(path) if path.exists() else None
    if storage is None or not storage.get_all_studies():
        return None
    return optuna.load_study(study_name=STUDY, storage=storage)


def study_frame(
    study: optuna.Study,
    segments: Iterable[SegmentResult],
    objectives: Sequence[str] = (),
    driven: bool = True,
) -> pd.DataFrame:
    """Return a table of the trials of any Optuna study, as :func:`trials_frame` describes it.

    Parameters
    ----------
    study
        Trials of the search.
    segments
        Results of the run's segments (jobs of training); only those of trials count.
    objectives
        Names of the objectives. If there is not one for each objective of the study, a single
        objective is called `value`, and several are called by their index.
    driven
        False if no driver (process in charge) is at work: trials that would run are `stopped`.
    """
    words = WORDS if driven else {**WORDS, TrialState.RUNNING: "stopped"}
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state in WORDS]
    width = len(study.directions)
    names = ["value"] if width == 1 else [str(i) for i in range(width)]
    if len(objectives) == width:
        names = list(objectives)
    columns: dict[str, Any] = {
        "trial": [trial.number for trial in trials],
        "state": [words[trial.state] for trial in trials],
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
    frame = pd.concat([pd.DataFrame(columns), _ledger_columns(trials, segments)], axis=1)
    frame.attrs = {
        "units": {"seconds": "s", "joules": "J"},
        "objectives": names,
        "parameters": {path: _domain(domain) for path, domain in domains.items()},
    }
    return frame


def value_columns(objectives: Sequence[str]) -> list[str]:
    """Return the names of the columns with the objectives in a table of trials.

    Parameters
    ----------
    objectives
        Names of the objectives, as in ``attrs["objectives"]`` of the frame.
    """
    return ["value"] if len(objectives) == 1 else [f"value.{name}" for name in objectives]


def signs(frame: pd.DataFrame) -> list[float]:
    """Return the sign of each objective of a search: 1 if it is minimised, -1 if maximised."""
    ways = map(direction_of, frame.attrs["objectives"])
    return [-1.0 if way == "maximize" else 1.0 for way in ways]


def ranking(frame: pd.DataFrame, objective: int = 0) -> pd.Series[float]:
    """Return objective values of complete and pruned trials, best first, as TPE ranks them.

    Complete trials, sorted by value, come before pruned ones. Pruned trials are sorted by epochs,
    the most first, and by value if these are equal. Trials that broke a constraint come last,
    sorted by violation.

    Parameters
    ----------
    frame
        Table of trials, from :func:`trials_frame`.
    objective
        Index of the objective whose values are returned.

    Returns
    -------
    pandas.Series
        Values in this order, with the frame's index.
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


def best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table of trials with its rows sorted by objective value, the best first.

    With several objectives the first one counts, and trials of the Pareto front come before others.
    Trials that broke a constraint come after those that broke none. Trials that failed or have no
    value yet come last.
    """
    columns = value_columns(frame.attrs["objectives"])
    keys = pd.DataFrame({"none": frame[columns[0]].isna() | (frame["state"] == "failed")})
    if "feasible" in frame:
        keys["feasible"] = ~frame["feasible"]
    if "pareto" in frame:
        keys["pareto"] = ~frame["pareto"]
    keys["value"], keys["trial"] = signs(frame)[0] * frame[columns[0]], frame["trial"]
    return frame.loc[keys.sort_values(list(keys.columns)).index]


def trials_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a readable table of trials with their parameters and cost, the best first.

    Parameters
    ----------
    frame
        Table of trials, from :func:`trials_frame`.

    Returns
    -------
    pandas.DataFrame
        ``trial``, ``state`` in words, a column per objective, a column per parameter that any trial
        has, named by the last key of its path if that is unique, ``epochs`` reached, ``seconds`` of
        training, ``joules`` if any were counted, and ``reason`` if any trial failed.
    """
    ranked = best_first(frame)
    objectives = frame.attrs["objectives"]
    paths = [path for path in frame.attrs["parameters"] if ranked[path].notna().any()]
    first = ["trial", "state", *map(objective_label, objectives)]
    last = [name for name in _COST if name != "joules" or ranked[name].notna().any()]
    last += ["reason"] if ranked["reason"].any() else []
    table = ranked[["trial", "state", *value_columns(objectives), *paths, *last]]
    # A parameter of a user's own may be called as one of the other columns.
    names = short_names([*first, *last, *paths])[len(first) + len(last) :]
    table.columns = pd.Index([*first, *names, *last])
    return table.assign(state=[_state(row) for row in ranked.to_dict("records")])


def best_table(frame: pd.DataFrame, rows: int = 20) -> Group:
    """Return a table of the best trials for the terminal, with all parameters in one column.

    Parameters
    ----------
    frame
        Table of trials, from :func:`trials_frame`.
    rows
        Maximum number of trials in the table.
    """
    table = trials_table(best_first(frame).head(rows)).drop(columns="reason", errors="ignore")
    counts = frame["state"].value_counts()
    states = ", ".join(f"{counts[state]:,} {state}" for state in counts.index)
    best = "" if len(table) == len(frame) else f"the best {len(table):,} of "
    first, last = 2 + len(frame.attrs["objectives"]), 2 + ("joules" in table.columns[-3:])
    parameters = table.iloc[:, first:-last]
    words = [
        ", ".join(f"{name} {told}" for name, value in row.items() if (told := cell(value)))
        for row in parameters.to_dict("records")
    ]
    table = table.drop(columns=parameters.columns)
    table.insert(first, "hyper-parameters", words)
    origin = "earlier: from a study named in search.warm_start" if frame["origin"].any() else ""
    return terminal(table, f"{best}{len(frame):,} trials: {states}", origin)


def _state(row: Mapping[Hashable, Any]) -> str:
    words = [row["state"], "" if row.get("feasible", True) else "beyond a limit"]
    words += ["Pareto front" if row.get("pareto", False) else ""]
    return ", ".join(filter(None, [*words, "earlier" if row["origin"] else ""]))


def _value(trial: FrozenTrial, objective: int) -> float | None:
    if trial.values:
        return float(trial.values[objective])
    # Rungs judge by the first objective; nothing is known of the others before the end.
    last = trial.last_step if objective == 0 else None
    return None if last is None else float(trial.intermediate_values[last])


def _column(values: Sequence[Any]) -> pd.Series[Any]:
    """Return a parameter's values as a series, in a type that allows gaps and that Parquet has.

    Values of mixed types become strings.
    """
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
) -> pd.DataFrame:
    own = defaultdict[int, list[SegmentResult]](list)
    for segment in segments:
        if segment.kind == "trial":
            own[segment.number].append(segment)
    rows = []
    for trial in trials:
        of = own[trial.number]
        rung = max((s.rung for s in of if s.status == "ok"), default=None)
        # Only the study knows how far the trials of another study went.
        epochs = max((s.to_epoch for s in of), default=trial.last_step or 0)
        joules = [s.joules for s in of if s.joules is not None]
        started = min((s.started for s in of if s.started > 0), default=None)
        # Between two segments a trial has not ended.
        ended = max((s.ended for s in of if s.ended and trial.state.is_finished()), default=None)
        gcds, seconds = max((len(s.gcds) for s in of), default=0), sum(s.seconds for s in of)
        rows.append((rung, epochs, seconds, gcds, sum(joules) if joules else None, started, ended))
    found = pd.DataFrame(rows, columns=[*_LEDGER]).astype(_LEDGER)
    for name in ("started", "ended"):
        found[name] = pd.to_datetime(found[name], unit="s", utc=True)
    return found
