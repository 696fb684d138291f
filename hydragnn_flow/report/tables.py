"""Tables of trials, importances and members, for the report and the terminal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hydragnn_flow.report.cost import cost_of, energy
from hydragnn_flow.report.errors import data_set_rows, error_rows, target_labels
from hydragnn_flow.report.importance import FEW_TRIALS, MANY
from hydragnn_flow.report.text import cell, number, objective_label, percent
from hydragnn_flow.report.trials_frame import signs, value_columns
from hydragnn_flow.segment import SegmentResult

BEST = 20
"""Trials the terminal shows."""
_BAR = 20  # characters
_COST = ("epochs", "seconds", "joules")


def best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """Trials ranked by value, as members are chosen.

    With several objectives the Pareto front comes first. Trials that broke a constraint come after
    those that kept it, and last those that failed or have no value yet.
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
    """Trials with their parameters and cost, the best first.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`.

    Returns
    -------
    pandas.DataFrame
        ``trial``, ``state`` in words, a column per objective, a column per parameter that a trial
        has, named by the last key of its path, ``epochs`` reached, ``seconds``, ``joules`` where
        they were counted, and ``reason`` where one has failed.
    """
    ranked = best_first(frame)
    objectives = frame.attrs["objectives"]
    paths = [path for path in frame.attrs["parameters"] if ranked[path].notna().any()]
    first = ["trial", "state", *map(objective_label, objectives)]
    last = [*_COST, *(["reason"] if ranked["reason"].any() else [])]
    if ranked["joules"].isna().all():
        last.remove("joules")
    table = ranked[["trial", "state", *value_columns(objectives), *paths, *last]]
    # A parameter of a user's own may be called as one of the other columns.
    names = short_names([*first, *last, *paths])[len(first) + len(last) :]
    table.columns = pd.Index([*first, *names, *last])
    return table.assign(state=[_state(row) for row in ranked.to_dict("records")])


def best_table(frame: pd.DataFrame, console: Console, rows: int = BEST) -> Table:
    """The best trials for the terminal.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    console
        Where it is to be shown: a column per parameter if they fit, all in one if not.
    rows
        How many trials at most.
    """
    shown = trials_table(best_first(frame).head(rows)).drop(columns="reason", errors="ignore")
    counts = frame["state"].value_counts()
    states = ", ".join(f"{counts[state]:,} {state}" for state in counts.index)
    best = "" if len(shown) == len(frame) else f"the best {len(shown):,} of "
    title = f"{best}{len(frame):,} trials: {states}"
    table = _terminal_table(shown, title)
    if console.measure(table, options=console.options.update(max_width=10_000)).maximum > (
        console.width
    ):
        first = 2 + len(frame.attrs["objectives"])
        cost = sum(name in _COST for name in shown.columns[-len(_COST) :])
        parameters = shown.iloc[:, first:-cost]
        shown = shown.drop(columns=parameters.columns)
        shown.insert(first, "parameters", [_in_words(row) for row in parameters.to_dict("records")])
        table = _terminal_table(shown, title)
    if frame["origin"].any():
        table.caption = "earlier: from a study named in search.warm_start"
        table.caption_justify = "left"
    return table


def _terminal_table(shown: pd.DataFrame, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in shown.columns:
        words = name in ("state", "parameters")
        table.add_column(
            Text(name), justify="left" if words else "right", no_wrap=name != "parameters"
        )
    for row in shown.itertuples(index=False):
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def _in_words(parameters: Mapping[Hashable, Any]) -> str:
    values = ((name, cell(value)) for name, value in parameters.items())
    return ", ".join(f"{name} {value}" for name, value in values if value)


def _state(row: Mapping[Hashable, Any]) -> str:
    words = [row["state"], "" if row.get("feasible", True) else "beyond a limit"]
    words += ["Pareto front" if row.get("pareto", False) else ""]
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
    table.add_column("importance", justify="right", no_wrap=True)
    table.add_column(width=_BAR)
    table.add_column("trials with it", justify="right")
    if "shap" in importance:
        table.add_column("SHAP", justify="right")
    largest = importance["importance"].max() or 1.0
    names = short_names(list(importance["parameter"]))
    for name, row in zip(names, importance.to_dict("records"), strict=True):
        table.add_row(
            Text(name),
            percent(row["importance"]),
            Bar(largest, 0, row["importance"], color="blue"),
            f"{row['trials']:,}",
            *([percent(row["shap"])] if "shap" in row else []),
        )
    return table


def shapley_sentences(importance: pd.DataFrame) -> Iterator[str]:
    """What Shapley values say: which parameter matters most, and how far they can be believed."""
    of = importance.attrs["of"]
    names = short_names(list(importance["parameter"]))
    most = int(importance["shap"].to_numpy().argmax())
    moves = "a trial in the ranking" if of == "ranking" else of
    by = percent(float(importance["shap"].iloc[most]))
    yield f"by the last column {names[most]} matters most: it moves {moves} by {by} on average"
    if (r2 := importance.attrs.get("r2")) is not None:
        explained = f"{r2:.0%} of" if r2 > 0 else "nothing of"
        yield f"the forest behind it explains {explained} the {of} (R²)"


def errors_frame(summary: Mapping[str, Any]) -> pd.DataFrame:
    """What the report shows: :func:`error_rows`, and below how many intervals hold.

    Where heads predict the noise of a target, its mean follows.
    """
    labels = target_labels(summary)
    columns = ["", "weight", *(f"{name} [{unit}]" if unit else name for name, unit in labels)]
    rows = [[row.model, row.weight, *row.errors] for row in error_rows(summary)]
    tested = [summary["test"][target["target"]] for target in summary["errors"].values()]
    held = [percent(of["coverage"]) for of in tested]
    rows.append([f"{summary['coverage'] * 100:g} % interval holds", "", *held])
    if any("aleatoric_std" in of for of in tested):
        noise = [
            f"{number(of['aleatoric_std'])} {of['unit']}" if "aleatoric_std" in of else ""
            for of in tested
        ]
        rows.append(["predicted noise", "", *noise])
    return pd.DataFrame(rows, columns=columns)


def data_sets_frame(summary: Mapping[str, Any]) -> pd.DataFrame | None:
    """What :func:`data_set_rows` says of each data set; None if there is but one."""
    rows = data_set_rows(summary)
    if not rows:
        return None
    columns = ["data set", "structures"]
    for name, unit in target_labels(summary):
        columns += [f"{name} [{unit}]" if unit else name, f"{name}: intervals that hold"]
    return pd.DataFrame(rows, columns=columns)


_OF_MEMBERS = {
    "member": "member",
    "trial": "trial",
    "choice": "chosen because",
    "weight": "weight",
    "trial_error": "validation error as trial",
    "best_val_error": "as member",
    "graphs_per_step": "graphs a step",
    "learning_rate": "largest learning rate",
    "seconds": "seconds",
}


def members_table(summary: Mapping[str, Any]) -> pd.DataFrame:
    """The ensemble's members: trial, why it was chosen, weight, errors, steps, GCDs, seconds, and
    why one was not trained to its end.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    rows = [
        {
            **{told: member[key] for key, told in _OF_MEMBERS.items() if key in member},
            "GCDs": ", ".join(str(gcd) for gcd in member["gcds"]),
            "cut short": member.get("reason", ""),
        }
        for member in summary["members"]
    ]
    table = pd.DataFrame(rows)
    return table if any(table["cut short"]) else table.drop(columns="cut short")


def cost_table(segments: Sequence[SegmentResult]) -> pd.DataFrame:
    """Cost of the trials, of the members, and of both, a row each."""
    parts = [
        ("trials", [s for s in segments if s.kind == "trial"]),
        ("members", [s for s in segments if s.kind == "member"]),
        ("together", list(segments)),
    ]
    rows = []
    for name, own in parts:
        cost = cost_of(own)
        joules, epochs = cost["joules"], sum(len(s.history) for s in own)
        rows.append(
            {
                "": name,
                "segments": len(own),
                "epochs": epochs,
                "GCD-hours": cost["gcd_hours"],
                "node-hours": cost["node_hours"],
                "CPU-hours": cost["cpu_seconds"] / 3600,
                "energy": "not counted" if joules is None else energy(joules, cost["uncounted"]),
                "largest process [GiB]": cost["peak_memory_gib"],
            }
        )
    return pd.DataFrame(rows)


def short_names(paths: Sequence[str]) -> list[str]:
    """Last key of each dotted path, or the whole path where two would be the same."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)]
