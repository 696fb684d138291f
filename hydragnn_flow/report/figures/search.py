"""The search in pictures: history, learning curves, Pareto front and what mattered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import optuna
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from hydragnn_flow.report.importance import FEW_TRIALS, FEWEST, MANY, parameter_importance
from hydragnn_flow.report.pictures import Marks
from hydragnn_flow.report.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SKY,
    SOFT,
    colours,
    crowded,
    legend_above,
    new_figure,
    tidy,
    type_keys,
    value_axis,
)
from hydragnn_flow.report.tables import short_names
from hydragnn_flow.report.text import objective_label, percent
from hydragnn_flow.report.trials_frame import ranking, signs, value_columns
from hydragnn_flow.segment import SegmentResult

# More lines than this hide each other; the best are always among those drawn.
_MOST_LINES, _SURE = 600, 100
_MOST_BARS = 20
_MOST_MARKS = 1000
_STRONG = (BLUE, ORANGE, GREEN, PURPLE, RED)
# Colour says which message-passing type, shape how the trial ended: marker, size [pt²], filled.
_MARKS = {
    "complete": ("o", 62.0, True),
    "pruned": ("v", 40.0, False),
    "failed": ("x", 46.0, True),
    "running": ("D", 34.0, False),
    "waiting": ("s", 34.0, False),
}
# State -> colour, opacity, width [pt], order of drawing.
_CURVES = {
    "failed": (RED, 0.6, 1.0, 2.0),
    "pruned": (PALE, 0.6, 0.9, 3.0),
    "running": (SKY, 0.9, 1.2, 4.0),
    "waiting": (SKY, 0.5, 1.2, 4.0),
    "complete": (BLUE, 0.45, 1.1, 5.0),
}


def search_figures(
    study: optuna.Study,
    frame: pd.DataFrame,
    segments: Iterable[SegmentResult],
    rungs: Sequence[int] = (),
) -> dict[str, tuple[Figure, str]]:
    """The figures that there is data for, except the history, and a description of each.

    Parameters
    ----------
    study, frame
        See :func:`hydragnn_flow.report.trials_frame.study_frame_of`.
    segments
        Of the run.
    rungs
        Epochs at which trials are judged.

    Returns
    -------
    dict
        ``curves``, ``importance``, ``pareto``, in this order.
    """
    found: dict[str, tuple[Figure, str]] = {}
    curves = learning_curves(segments)
    if any(curves.values()):
        drawn = rung_curves(frame, curves, rungs)
        found["curves"] = drawn, "Validation error of the trials against the epoch"
    if len(ranking(frame)) >= FEWEST:
        drawn = importance_bars(parameter_importance(study, frame))
        found["importance"] = drawn, "Bars of every parameter's importance"
    if "pareto" in frame and frame["pareto"].any():
        found["pareto"] = pareto_front(frame), "Trials by their objectives, the Pareto front marked"
    return found


def optimisation_history(
    frame: pd.DataFrame, types: Mapping[int, str], members: Collection[int] = ()
) -> tuple[Figure, Marks]:
    """Value of every trial against its number, and the best so far.

    The best is that of the complete trials that kept their limits; the pruned trials' values are of
    fewer epochs.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`. A trial that failed without a
        value is drawn on the edge where the worst are.
    types
        Message-passing type of each trial, by number.
    members
        Numbers of the trials chosen for the ensemble.
    """
    objective = frame.attrs["objectives"][0]
    shown = pd.DataFrame(
        {
            "trial": frame["trial"],
            "state": frame["state"],
            "type": [types.get(number, "") for number in frame["trial"]],
            "value": frame[value_columns(frame.attrs["objectives"])[0]],
            "feasible": frame.get("feasible", True),
        }
    )
    known, falls = np.isfinite(shown["value"]), signs(frame)[0] > 0
    figure = new_figure(9.4, 4.2)
    axes = figure.add_subplot()
    palette = colours(types.values())
    thin = crowded(len(frame), 100)
    complete = shown[known & (shown["state"] == "complete") & shown["feasible"]]
    if len(complete):
        best = complete["value"].cummin() if falls else complete["value"].cummax()
        ends = [*complete["trial"], frame["trial"].max()]
        axes.step(ends, [*best, best.iloc[-1]], where="post", color=SOFT, lw=1.6, zorder=2)
    lost = ~known & ~shown["state"].isin(["running", "waiting"])
    at_edge = axes.get_xaxis_transform()
    for group, transform in ((shown[known], axes.transData), (shown[lost], at_edge)):
        # One collection per kind of mark: thousands of trials would be slow one by one.
        for (state, kind), alike in group.groupby(["state", "type"]):
            marker, size, filled = _MARKS[state]
            colour = palette.get(kind, SOFT)
            axes.scatter(
                alike["trial"],
                alike["value"] if transform is axes.transData else np.full(len(alike), falls),
                transform=transform,
                marker=marker,
                s=size * thin,
                facecolors=colour if filled else "white",
                edgecolors=None if marker == "x" else colour,
                linewidths=1.6 * thin,
                clip_on=False,
                zorder=3,
            )
    chosen = shown[known & shown["trial"].isin(members)]
    axes.scatter(
        chosen["trial"],
        chosen["value"],
        s=190,
        facecolors="none",
        edgecolors=INK,
        linewidths=1.1,
        zorder=4,
    )
    value_axis(axes, "y", shown.loc[known, "value"].to_numpy())
    axes.set(xlabel="trial", ylabel=objective_label(objective))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    keys: list[Line2D | Patch] = type_keys(palette)
    for state, (marker, _, filled) in _MARKS.items():
        if state in set(shown["state"]):
            fill = SOFT if filled else "white"
            keys.append(_key(state, marker=marker, ms=7, mec=SOFT, mew=1.5, mfc=fill, ls="none"))
    keys.append(_key("best so far", color=SOFT, lw=1.6))
    if len(chosen):
        keys.append(_key("in the ensemble", marker="o", ms=11, mfc="none", mec=INK, ls="none"))
    legend_above(figure, keys)
    ranked = shown[known].sort_values("value", ascending=falls, kind="stable")
    found = ranked.head(_MOST_MARKS).sort_index()
    numbers = [f"trial {number}" for number in found["trial"]]
    return figure, Marks(axes, found["trial"].to_numpy(), found["value"].to_numpy(), numbers)


def learning_curves(segments: Iterable[SegmentResult]) -> dict[int, dict[int, float]]:
    """Trial number -> epoch -> validation error (the criterion), epochs in order.

    If an interrupted segment was repeated, the later one counts.
    """
    curves: dict[int, dict[int, float]] = {}
    for segment in segments:
        if segment.kind == "trial":
            curve = curves.setdefault(segment.number, {})
            curve.update({int(e): v for e, *_, v in segment.history if np.isfinite(v)})
    return {number: dict(sorted(curve.items())) for number, curve in curves.items()}


def rung_curves(
    frame: pd.DataFrame, curves: Mapping[int, Mapping[int, float]], rungs: Sequence[int] = ()
) -> Figure:
    """Validation error against epochs: the best five strong, those that a rung ended pale.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    curves
        Epoch -> validation error of each trial, by number, as :func:`learning_curves` gives them.
    rungs
        Epochs at which trials are judged.
    """
    states = frame.set_index("trial")["state"].to_dict()
    ranked = frame.loc[ranking(frame).index, "trial"]
    order = [number for number in dict.fromkeys([*ranked, *states]) if curves.get(number)]
    best = [number for number in order if states[number] == "complete"][: len(_STRONG)]
    others = [order[i] for i in reversed(_sample(len(order))) if order[i] not in best]
    figure = new_figure(9.4, 4.4)
    axes = figure.add_subplot()
    for rung in rungs:
        axes.axvline(rung, color=SOFT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    thin = crowded(len(others), 60)
    keys: list[Line2D | Patch] = []
    for number, colour in zip(best, _STRONG, strict=False):
        axes.plot(*_points(curves[number]).T, color=colour, lw=2.2, zorder=6)
        keys.append(_key(f"trial {number}", color=colour, lw=2.2))
    for state, (colour, alpha, width, z) in _CURVES.items():
        group = [_points(curves[number]) for number in others if states[number] == state]
        axes.add_collection(
            LineCollection(
                group,
                colors=colour,
                alpha=alpha * (0.35 + 0.65 * thin),
                linewidths=width * (0.5 + 0.5 * thin),
                zorder=z,
            )
        )
        keys += [_key(state, color=colour, lw=1.6, alpha=alpha)] if group else []
    shown = [*others, *best]
    value_axis(axes, "y", np.array([v for number in shown for v in curves[number].values()]))
    longest = max((max(curves[number]) for number in shown), default=0)
    if rungs and longest >= 9 * rungs[0]:
        # Rungs are at equal distances, so that the many short curves are not a heap at the edge.
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.FixedLocator([1, *rungs]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="validation error")
    tidy(axes, grid="y")
    keys += [_key("rung", color=SOFT, lw=0.9, ls=(0, (4, 3)))] if rungs else []
    legend_above(figure, keys)
    if len(shown) < len(order):
        _remark(
            figure,
            f"{len(shown):,} of {len(order):,} trials are drawn: the best {_SURE}, and others "
            f"chosen at random.",
        )
    return figure


def importance_bars(importance: pd.DataFrame) -> Figure:
    """Parameters by their importance.

    Parameters
    ----------
    importance
        See :func:`hydragnn_flow.report.importance.parameter_importance`.
    """
    shown = importance.head(_MOST_BARS)
    names = short_names(list(importance["parameter"]))[: len(shown)]
    most = importance["trials"].max()
    figure = new_figure(9.4, 1.1 + 0.32 * len(shown))
    axes = figure.add_subplot()
    bars = axes.barh(names, shown["importance"], color=BLUE, height=0.62)
    labels = [
        percent(value) + (f", in {count:,} of {most:,} trials" if count < most else "")
        for value, count in zip(shown["importance"], shown["trials"], strict=True)
    ]
    axes.bar_label(bars, labels, padding=5, fontsize=9, color=SOFT)
    # Room for the text beside the longest bar.
    axes.set_xlim(0, max(shown["importance"].max(), 1e-6) * 1.4)
    axes.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("importance (PED-ANOVA), of all parameters together 100 %")
    tidy(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    left_out = len(importance) - len(shown)
    remarks = [f"{left_out} parameters of less importance are left out."] if left_out else []
    _remark(figure, *remarks, *([FEW_TRIALS] if most < MANY else []))
    return figure


def pareto_front(frame: pd.DataFrame) -> Figure:
    """Complete trials by two of their objectives, a panel for each pair; the front strong.

    Parameters
    ----------
    frame
        With several objectives, see :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    """
    objectives = frame.attrs["objectives"]
    columns = value_columns(objectives)
    complete = frame[(frame["state"] == "complete") & frame[columns].notna().all(axis=1)]
    pairs = list(combinations(range(len(columns)), 2))
    figure = new_figure(9.4, 5.0 if len(pairs) == 1 else 3.6)
    front = complete[complete["pareto"]].sort_values(columns[0])
    beyond = complete[~complete["feasible"]] if "feasible" in complete else complete.iloc[:0]
    within = complete.drop(index=front.index.union(beyond.index))
    size = 26 * max(0.25, crowded(len(complete), 60))
    for panel, (one, other) in enumerate(pairs, start=1):
        axes = figure.add_subplot(1, len(pairs), panel)
        x, y = columns[one], columns[other]
        axes.scatter(within[x], within[y], s=size, color=PALE, alpha=0.55, lw=0, zorder=2)
        axes.scatter(beyond[x], beyond[y], s=size, color=ORANGE, marker="x", lw=1, zorder=2)
        if len(columns) == 2:
            # Of what the front surpasses, this is the edge.
            where: Literal["post", "pre"] = "post" if signs(frame)[0] > 0 else "pre"
            axes.step(front[x], front[y], where=where, color=BLUE, lw=1.4, zorder=3)
        axes.scatter(front[x], front[y], s=46, color=BLUE, ec="white", lw=0.8, zorder=4)
        value_axis(axes, "x", complete[x].to_numpy(np.float64))
        value_axis(axes, "y", complete[y].to_numpy(np.float64))
        axes.set(xlabel=objective_label(objectives[one]), ylabel=objective_label(objectives[other]))
        tidy(axes)
    dot: dict[str, Any] = {"ls": "none", "ms": 7}
    keys: list[Line2D | Patch] = [
        _key("Pareto front", marker="o", mfc=BLUE, mec="white", **dot),
        _key("complete", marker="o", mfc=PALE, mec="none", **dot),
    ]
    keys += [_key("beyond a limit", marker="x", mec=ORANGE, **dot)] if len(beyond) else []
    legend_above(figure, keys)
    return figure


def _key(label: str, **look: Any) -> Line2D:
    return Line2D([], [], label=label, **look)


def _sample(count: int) -> list[int]:
    """Which of ``count`` ranked things to draw: the best, and some of the others."""
    if count <= _MOST_LINES:
        return list(range(count))
    random = np.random.default_rng(0)
    others = random.choice(np.arange(_SURE, count), _MOST_LINES - _SURE, replace=False)
    return [*range(_SURE), *sorted(others.tolist())]


def _remark(figure: Figure, *sentences: str) -> None:
    if sentences:
        figure.supxlabel("  ".join(sentences), fontsize=9, color=SOFT, x=0.01, ha="left")


def _points(curve: Mapping[int, float]) -> NDArray[np.float64]:
    """Points [n_epochs, 2] of a curve."""
    return np.array(sorted(curve.items()), dtype=float)
