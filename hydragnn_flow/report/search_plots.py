"""The search in pictures: learning curves, importance, Pareto front."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from hydragnn_flow.report.importance import FEW_TRIALS, MANY
from hydragnn_flow.report.search_tables import short_names
from hydragnn_flow.report.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SOFT,
    legend_above,
    new_figure,
    tidy,
)
from hydragnn_flow.report.text import objective_label, percent
from hydragnn_flow.report.trials_frame import ranking, value_columns

# More lines than this hide each other; the best are always among those drawn.
_MOST_LINES, _SURE = 600, 100
_MOST_BARS = 20
_STRONG = (BLUE, ORANGE, GREEN, PURPLE, RED)


def rung_curves(
    frame: pd.DataFrame, curves: Mapping[int, Mapping[int, float]], rungs: Sequence[int] = ()
) -> Figure:
    """Validation loss against epochs: the best five strong, those that a rung ended pale.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`.
    curves
        Epoch -> validation loss of each trial, by number, as
        :func:`hydragnn_flow.report.figures.search.learning_curves` gives them.
    rungs
        Epochs at which trials are judged.
    """
    order = [number for number in _by_rank(frame) if curves.get(number)]
    best = _best(frame, order)
    drawn = {order[i] for i in sample(len(order))}
    states = dict(zip(frame["trial"], frame["state"], strict=True))
    figure = new_figure(9.4, 4.4)
    axes = figure.add_subplot()
    for rung in rungs:
        axes.axvline(rung, color=SOFT, lw=0.9, ls=(0, (4, 3)), zorder=1)
    others = [number for number in reversed(order) if number in drawn and number not in best]
    thin = crowded(len(others))
    for state, (colour, alpha, width, z) in _CURVES.items():
        group = [number for number in others if states[number] == state]
        axes.add_collection(
            LineCollection(
                [_points(curves[number]) for number in group],
                colors=colour,
                alpha=alpha * (0.35 + 0.65 * thin),
                linewidths=width * (0.5 + 0.5 * thin),
                zorder=z,
            )
        )
    for number, colour in zip(best, _STRONG, strict=False):
        axes.plot(*_points(curves[number]).T, color=colour, lw=2.2, zorder=6)
    shown = [*others, *best]
    losses = np.array([loss for number in shown for loss in curves[number].values()])
    epochs = [epoch for number in shown for epoch in curves[number]]
    _value_axis(axes, "y", losses[np.isfinite(losses)])
    if rungs and max(epochs, default=0) >= 9 * rungs[0]:
        # Rungs are at equal distances, so that the many short curves are not a heap at the edge.
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(mpl.ticker.FixedLocator([1, *rungs]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="validation loss")
    tidy(axes, grid="y")
    keys = [
        Line2D([], [], color=colour, lw=2.2, label=f"trial {number}")
        for number, colour in zip(best, _STRONG, strict=False)
    ]
    keys += [
        Line2D([], [], color=colour, lw=1.6, alpha=alpha, label=state)
        for state, (colour, alpha, _, _) in _CURVES.items()
        if any(states[number] == state for number in others)
    ]
    if rungs:
        keys.append(Line2D([], [], color=SOFT, lw=0.9, ls=(0, (4, 3)), label="rung"))
    legend_above(figure, keys)
    tell(figure, [sampled(len(shown), len(order), "trials")])
    return figure


# State -> colour, opacity, width [pt], order of drawing.
_CURVES = {
    "failed": (RED, 0.6, 1.0, 2.0),
    "pruned": ("#9aa3af", 0.6, 0.9, 3.0),
    "running": (SKY, 0.9, 1.2, 4.0),
    "complete": (BLUE, 0.45, 1.1, 5.0),
}


def importance_bars(importance: pd.DataFrame) -> Figure:
    """Parameters by their importance, and their Shapley values where there are any.

    Parameters
    ----------
    importance
        See :func:`hydragnn_flow.report.importance.parameter_importance`.
    """
    shown = importance.head(_MOST_BARS)
    names = short_names(list(importance["parameter"]))[: len(shown)]
    most, least = importance["trials"].max(), importance["trials"].min()
    figure = new_figure(9.4, 1.1 + 0.32 * len(shown))
    labels = {"importance": "share of the importance (PED-ANOVA)"}
    if "shap" in shown:
        labels["shap"] = "mean shift of a trial's rank (SHAP)"
    panels = np.atleast_1d(figure.subplots(1, len(labels), sharey=True))
    for axes, (column, label), colour in zip(panels, labels.items(), (BLUE, ORANGE), strict=False):
        bars = axes.barh(range(len(shown)), shown[column], color=colour, height=0.62)
        told = [percent(value) for value in shown[column]]
        if column == "importance":
            told = [
                f"{value}, in {count:,} of {most:,} trials" if count < most else value
                for value, count in zip(told, shown["trials"], strict=True)
            ]
        axes.bar_label(bars, told, padding=5, fontsize=9, color=SOFT)
        # Room for the text beside the longest bar, and beside any with a longer text.
        axes.set_xlim(0, max(shown[column].max(), 1e-6) * (1.3 if most == least else 1.55))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
        axes.set_xlabel(label)
        tidy(axes, grid="x")
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(shown)), names)
    panels[0].invert_yaxis()
    left_out = len(importance) - len(shown)
    notes = [f"{left_out} parameters of less importance are left out."] if left_out else []
    tell(figure, [*notes, FEW_TRIALS if most < MANY else ""])
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
    size = 26 * max(0.25, crowded(len(complete)))
    for i, (one, other) in enumerate(pairs):
        axes = figure.add_subplot(1, len(pairs), i + 1)
        x, y = columns[one], columns[other]
        axes.scatter(within[x], within[y], s=size, color="#9aa3af", alpha=0.55, lw=0, zorder=2)
        axes.scatter(beyond[x], beyond[y], s=size, color=ORANGE, marker="x", lw=1, zorder=2)
        if len(columns) == 2:
            axes.step(front[x], front[y], where="post", color=BLUE, lw=1.4, zorder=3)
        axes.scatter(front[x], front[y], s=46, color=BLUE, ec="white", lw=0.8, zorder=4)
        _value_axis(axes, "x", complete[x].to_numpy(np.float64))
        _value_axis(axes, "y", complete[y].to_numpy(np.float64))
        axes.set(xlabel=objective_label(objectives[one]), ylabel=objective_label(objectives[other]))
        tidy(axes)
        if len(pairs) == 1:
            _name_some(axes, front, x, y)
    dot: dict[str, Any] = {"ls": "none", "ms": 7}
    keys = [
        Line2D([], [], marker="o", mfc=BLUE, mec="white", label="Pareto front", **dot),
        Line2D([], [], marker="o", mfc="#9aa3af", mec="none", label="complete", **dot),
    ]
    if len(beyond):
        keys.append(Line2D([], [], marker="x", mec=ORANGE, label="beyond a limit", **dot))
    legend_above(figure, keys)
    return figure


def _name_some(axes: Axes, front: pd.DataFrame, x: str, y: str) -> None:
    """Write trial numbers at points of the front, where there is room."""
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    points = front[[x, y]].to_numpy(np.float64)
    last = np.full(2, -1.0)
    for number, point in zip(front["trial"], points, strict=True):
        at = to_axes.transform(point)
        if (np.abs(at - last) < (0.07, 0.05)).all():
            continue
        last = at
        axes.annotate(
            str(number),
            (point[0], point[1]),
            (5, 5),
            textcoords="offset points",
            fontsize=9,
            color=INK,
            zorder=5,
        )


def _by_rank(frame: pd.DataFrame) -> list[int]:
    """Numbers of all trials: the ranked ones first, then the others."""
    ranked = list(ranking(frame).index)
    others = frame.index.difference(ranked)
    return [int(number) for number in frame.loc[[*ranked, *others], "trial"]]


def _best(frame: pd.DataFrame, order: Iterable[int]) -> list[int]:
    complete = set(frame.loc[frame["state"] == "complete", "trial"])
    return [number for number in order if number in complete][: len(_STRONG)]


def sample(count: int) -> NDArray[np.int64]:
    """Which of ``count`` ranked things to draw: the best, and some of the others."""
    if count <= _MOST_LINES:
        return np.arange(count)
    random = np.random.default_rng(0)
    others = random.choice(np.arange(_SURE, count), _MOST_LINES - _SURE, replace=False)
    return np.concatenate([np.arange(_SURE), np.sort(others)])


def sampled(drawn: int, count: int, things: str) -> str:
    """A sentence about what :func:`sample` left out, where it did."""
    if drawn >= count:
        return ""
    return (
        f"{drawn:,} of {count:,} {things} are drawn: the best {_SURE}, and others chosen at random."
    )


def tell(figure: Figure, notes: Collection[str]) -> None:
    """Write sentences below a figure."""
    text = "  ".join(note for note in notes if note)
    if text:
        figure.supxlabel(text, fontsize=9, color=SOFT, x=0.01, ha="left")


def crowded(count: int) -> float:
    """Factor by which marks and lines shrink when there are too many to be told apart."""
    return float(min(1.0, (60 / max(count, 1)) ** 0.5))


def _points(curve: Mapping[int, float]) -> NDArray[np.float64]:
    """Points [n_epochs, 2] of a curve."""
    return np.array(sorted(curve.items()), dtype=float)


def is_log(values: NDArray[np.float64]) -> bool:
    """Whether values are better shown on a logarithmic axis."""
    return bool(len(values) and values.min() > 0 and values.max() > 5 * values.min())


def _value_axis(axes: Axes, name: Literal["x", "y"], values: NDArray[np.float64]) -> None:
    axis: Axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if not is_log(values):
        return
    axes.set(**{f"{name}scale": "log"})
    narrow = values.max() < 99 * values.min()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())
    axes.set(**{f"{name}lim": (values.min() / 1.15, values.max() * 1.15)})
