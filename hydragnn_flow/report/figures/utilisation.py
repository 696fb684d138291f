"""Where the GCDs' time went, and how well the times of segments were predicted."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hydragnn_flow.report.figures.occupancy import duration, time_unit
from hydragnn_flow.report.forecast_errors import ForecastErrors
from hydragnn_flow.report.gcd_time import HELD, NOT_HELD, Cause, GcdTime
from hydragnn_flow.report.gcd_time_words import MEANINGS
from hydragnn_flow.report.pictures import Marks
from hydragnn_flow.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SKY,
    SOFT,
    crowded,
    new_figure,
    tidy,
    value_axis,
)
from hydragnn_flow.report.text import percent

_COLOURS: dict[Cause, str] = {
    "busy": BLUE,
    "at work": BLUE,
    "launches": SKY,
    "start-up": ORANGE,
    "gang": PURPLE,
    "ready": GREEN,
    "no work": RED,
    "tail": "#882255",
    "unknown": PALE,
    "queue": "white",
    "away": "white",
}
_HATCHES: dict[Cause, str] = {"at work": "...", "queue": "///", "away": "\\\\\\"}


def gcd_time_figure(spent: GcdTime) -> Figure:
    """GCDs stacked over time by what they do: busy at the bottom, idle by cause above.

    Parameters
    ----------
    spent
        Of a run.
    """
    figure = new_figure(9.4, 4.2)
    axes = figure.add_subplot()
    scale, unit = time_unit(float(spent.edges[-1]))
    shown = [cause for cause in (*HELD, *NOT_HELD) if cause in spent.gcds]
    base = np.zeros(len(spent.edges) - 1)
    for cause in shown:
        axes.stairs(
            base + spent.gcds[cause],
            spent.edges / scale,
            baseline=base,
            fill=True,
            facecolor=_COLOURS[cause],
            hatch=_HATCHES.get(cause),
            edgecolor=PALE if cause in _HATCHES else _COLOURS[cause],
            linewidth=0.0,
        )
        base = base + spent.gcds[cause]
    for pause in spent.pauses:
        axes.axvline(pause.at / scale, color=SOFT, lw=1.2, ls=(0, (1, 2)))
        axes.annotate(
            f"stopped for {duration(pause.seconds)}",
            (pause.at / scale, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=9,
            color=SOFT,
        )
    axes.set_xlim(0, max(float(spent.edges[-1]) / scale, 1e-9))
    axes.set_ylim(0, max(float(base.max()), 1e-9) * 1.02)
    axes.set_xlabel(f"time since the first segment was ready [{unit}]")
    axes.set_ylabel("GCDs")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes, grid="y")
    keys = [
        Patch(
            facecolor=_COLOURS[cause],
            hatch=_HATCHES.get(cause),
            edgecolor=PALE if cause in _HATCHES else _COLOURS[cause],
            label=MEANINGS[cause],
        )
        for cause in shown
    ]
    figure.legend(
        handles=keys, loc="outside upper left", ncols=3, frameon=False, fontsize=10,
        handlelength=1.4, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
    return figure


def forecast_figure(errors: ForecastErrors) -> tuple[Figure, Marks]:
    """A dot for each segment at its predicted and actual time, with the interval as a bar.

    Parameters
    ----------
    errors
        Of the segments of a run.
    """
    figure = new_figure(4.7, 4.2)
    axes = figure.add_subplot()
    count = len(errors.segments)
    for kind, colour, marker in (("trial", BLUE, "o"), ("member", ORANGE, "D")):
        own = np.array([s.kind == kind for s in errors.segments])
        if not own.any():
            continue
        axes.scatter(
            errors.predicted[own],
            errors.actual[own],
            s=26 * crowded(count, 200),
            marker=marker,
            color=colour,
            linewidths=0,
            alpha=0.8,
            label=f"{kind}s",
            zorder=3,
        )
    bars = [
        ((s.predicted_low, s.predicted_high), s.seconds)
        for s in errors.segments
        if s.predicted_low is not None and s.predicted_high is not None
    ]
    if bars:
        ends = np.array([ends for ends, _ in bars])
        at = np.array([seconds for _, seconds in bars])
        axes.hlines(at, ends[:, 0], ends[:, 1], color=PALE, lw=1.0 * crowded(count, 100), zorder=2)
    values = np.concatenate([errors.predicted, errors.actual])
    for name in ("x", "y"):
        value_axis(axes, name, values)
    ends_of_line = (values.min() / 1.2, values.max() * 1.2)
    axes.plot(ends_of_line, ends_of_line, color=SOFT, lw=1.0, zorder=1)
    axes.set_xlabel("predicted [s]")
    axes.set_ylabel("actual [s]")
    title = f"{count:,} segments: mean absolute error {percent(errors.mape)}"
    if errors.with_interval:
        title += f"\n90 % intervals hold {percent(errors.held)} of {errors.with_interval:,}"
    axes.set_title(title, fontsize=11, color=INK, loc="left")
    tidy(axes)
    axes.grid(color=FAINT)
    axes.legend(frameon=False, fontsize=10, loc="lower right")
    labels = [f"{s.kind} {s.number}, {len(s.gcds)} GCDs" for s in errors.segments]
    return figure, Marks(axes, errors.predicted, errors.actual, labels)
