"""How the search went: the history of its trials, and their learning curves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from hydragnn_flow.report.style import (
    INK,
    SOFT,
    colours,
    legend_above,
    new_figure,
    tidy,
    type_keys,
)
from hydragnn_flow.report.text import objective_label
from hydragnn_flow.search import TrialRecord
from hydragnn_flow.segment import SegmentResult

# Colour says which message-passing type, shape how the trial ended: marker, size [pt²], filled.
_MARKS = {
    "complete": ("o", 62.0, True),
    "pruned": ("v", 40.0, False),
    "failed": ("x", 46.0, True),
    "running": ("D", 34.0, False),
}
_DASHED = (0, (4, 3))


def optimisation_history(
    trials: Sequence[TrialRecord],
    types: Mapping[int, str],
    members: Collection[int] = (),
    objective: str = "val_loss",
) -> Figure:
    """Value of every trial against its number, and the best so far.

    The best is that of the complete trials that kept their limits; the pruned trials' values are of
    fewer epochs.

    Parameters
    ----------
    trials
        Of the study. One that failed without a value is drawn on the upper edge.
    types
        Message-passing type of each trial, by number.
    members
        Numbers of the trials chosen for the ensemble.
    objective
        What the values are of.
    """
    figure = new_figure(9.4, 4.2)
    axes = figure.add_subplot()
    palette = colours(types.values())
    losses = {t.number: t.value for t in trials if t.value is not None and np.isfinite(t.value)}
    complete = {t.number: losses[t.number] for t in trials if _finished(t, losses)}
    if complete:
        best = np.minimum.accumulate(list(complete.values()))
        ends = [*complete, max(trial.number for trial in trials)]
        axes.step(ends, [*best, best[-1]], where="post", color=SOFT, lw=1.6, zorder=2)
    _mark_ends(axes, trials, types, {n: (n, loss) for n, loss in losses.items()})
    lost = [t for t in trials if t.number not in losses and t.state != "running"]
    _mark_ends(axes, lost, types, {t.number: (t.number, 1.0) for t in lost}, at_edge=True)
    chosen = [number for number in losses if number in members]
    axes.scatter(
        chosen,
        [losses[number] for number in chosen],
        s=190,
        facecolors="none",
        edgecolors=INK,
        linewidths=1.1,
        zorder=4,
    )
    axes.set_ylabel(objective_label(objective))
    _scale(axes, losses.values())
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    keys = type_keys(palette) + _state_keys(trials)
    keys.append(Line2D([], [], color=SOFT, lw=1.6, label="best so far"))
    if chosen:
        ring = Line2D([], [], marker="o", ms=11, mfc="none", mec=INK, ls="none")
        ring.set_label("in the ensemble")
        keys.append(ring)
    legend_above(figure, keys)
    return figure


def learning_curves(segments: Iterable[SegmentResult]) -> dict[int, dict[int, float]]:
    """Trial number -> epoch -> validation loss, epochs in order.

    If an interrupted segment was repeated, the later one counts.
    """
    curves: dict[int, dict[int, float]] = {}
    for segment in segments:
        if segment.kind == "trial":
            curve = curves.setdefault(segment.number, {})
            curve.update({int(e): loss for e, _, loss in segment.history if np.isfinite(loss)})
    return {number: dict(sorted(curve.items())) for number, curve in curves.items()}


def _finished(trial: TrialRecord, losses: Mapping[int, float]) -> bool:
    return trial.state == "complete" and trial.feasible and trial.number in losses


def _crowded(trials: Sequence[TrialRecord]) -> float:
    """Factor by which a mark or line shrinks when there are too many to be told apart."""
    return float(min(1.0, (100 / max(len(trials), 1)) ** 0.5))


def _mark_ends(
    axes: Axes,
    trials: Sequence[TrialRecord],
    types: Mapping[int, str],
    places: Mapping[int, tuple[float, float]],
    at_edge: bool = False,
) -> None:
    # One collection per kind of mark: thousands of trials would be slow one by one.
    palette = colours(types.values())
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for trial in trials:
        if trial.number in places:
            key = (trial.state, types.get(trial.number, ""))
            groups.setdefault(key, []).append(places[trial.number])
    for (state, kind), points in groups.items():
        marker, size, filled = _MARKS[state]
        colour = palette.get(kind, SOFT)
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            transform=axes.get_xaxis_transform() if at_edge else axes.transData,
            marker=marker,
            s=size * _crowded(trials),
            facecolors=colour if filled else "white",
            edgecolors=None if marker == "x" else colour,
            linewidths=1.6 * _crowded(trials),
            clip_on=False,
            zorder=3,
        )


def _state_keys(trials: Sequence[TrialRecord]) -> list[Line2D | Patch]:
    keys: list[Line2D | Patch] = []
    for state, (marker, _, filled) in _MARKS.items():
        if any(trial.state == state for trial in trials):
            key = Line2D([], [], marker=marker, ms=7, mec=SOFT, mew=1.5, ls="none", label=state)
            key.set_markerfacecolor(SOFT if filled else "white")
            keys.append(key)
    return keys


def _scale(axes: Axes, losses: Iterable[float]) -> None:
    values = list(losses)
    if not values or min(values) <= 0 or max(values) < 5 * min(values):
        return
    axes.set_yscale("log")
    # Within two decades the powers of ten alone would leave the axis nearly bare.
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if max(values) < 99 * min(values) else (1,))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(min(values) / 1.3, max(values) * 1.3)
