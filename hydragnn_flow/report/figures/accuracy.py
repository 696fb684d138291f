"""How good the predictions are on the test split: parity, errors against deviations, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from hydragnn_flow.ensemble.bootstrap import interval_names
from hydragnn_flow.report.errors import with_interval
from hydragnn_flow.report.pictures import Marks
from hydragnn_flow.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SOFT,
    new_figure,
    tidy,
    value_axis,
)
from hydragnn_flow.report.target_values import (
    TargetValues,
    binned,
    gaussian_coverage,
    interval_coverage,
    telling,
)
from hydragnn_flow.report.text import number, percent

_MOST_POINTS, _MOST_BARS, _MOST_MARKS = 2000, 300, 200
Measures = Mapping[str, Any]
"""Estimates by name, as `measures` of `ensemble.json` has them for a target."""


def parity(target: TargetValues, measures: Measures | None = None) -> tuple[Figure, Marks]:
    """Predicted against reference values with error bars of one standard deviation.

    The lower panel shows the differences, where error bars that vanish in the upper one can be
    read. If a table is large, each panel draws the largest errors and, picked at even spacing, some
    of the others; the printed errors are of all.

    Parameters
    ----------
    target
        Of the test split.
    measures
        Its errors with intervals, printed above the figure.
    """
    figure = new_figure(5.6, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    worth = np.abs(target.errors)
    points, bars = telling(worth, _MOST_POINTS), telling(worth, _MOST_BARS)
    low = float(min(target.reference.min(), target.mean.min()))
    high = float(max(target.reference.max(), target.mean.max()))
    room = 0.04 * (high - low or 1.0)
    ends = (low - room, high + room)
    upper.plot(ends, ends, color=SOFT, lw=1.2, zorder=1)
    lower.axhline(0, color=SOFT, lw=1.2, zorder=1)
    for axes, values in ((upper, target.mean), (lower, target.errors)):
        many = len(points) > 200
        axes.errorbar(
            target.reference[bars],
            values[bars],
            yerr=np.nan_to_num(target.std[bars]),
            fmt="none",
            ecolor=ORANGE,
            elinewidth=0.9,
            zorder=2,
        )
        axes.scatter(
            target.reference[points],
            values[points],
            s=9 if many else 20,
            color=BLUE,
            alpha=0.5 if many else 0.85,
            linewidths=0,
            zorder=3,
        )
    upper.set(xlim=ends, ylim=ends)
    upper.set_ylabel(f"predicted {_with_unit(target)}")
    lower.set_xlabel(f"reference {_with_unit(target)}")
    lower.set_ylabel("difference")
    reach = float(np.max(np.abs(target.errors))) or float(np.nan_to_num(target.std).max()) or 1.0
    lower.set_ylim(-1.15 * reach, 1.15 * reach)
    _title(figure, target, measures or {}, ("mae", "MAE"), ("rmse", "RMSE"), ("r2", "R²"))
    tidy(upper)
    tidy(lower)
    figure.align_ylabels()
    return figure, _marks(upper, target, target.reference, target.mean)


def deviation(target: TargetValues, measures: Measures | None = None) -> tuple[Figure, Marks]:
    """Absolute errors against predicted standard deviations, and their means in ten bins.

    Parameters
    ----------
    target
        Of the test split.
    measures
        Its rank correlation and calibration errors with intervals, printed above the figure.
    """
    figure = new_figure(5.6, 5.2)
    axes = figure.add_subplot()
    error, std = np.abs(target.errors), target.std
    drawn = np.isfinite(std) & (std > 0)
    positive = error[drawn & (error > 0)]
    if not len(positive):
        _title(figure, target, {})
        axes.text(0.5, 0.5, "no deviations to compare errors with", ha="center", color=SOFT)
        axes.set_axis_off()
        return figure, Marks(axes, error[:0], error[:0], ())
    # A few errors are nearly zero by chance; they stand on the lower edge.
    floor = max(float(positive.min()), float(positive.max()) * 1e-4)
    shown = np.maximum(error, floor)
    places = np.flatnonzero(drawn)
    points = places[telling(error[drawn] / std[drawn], _MOST_POINTS)]
    points = np.union1d(points, places[telling(error[drawn], _MOST_BARS)])
    many = len(points) > 200
    axes.scatter(
        std[points],
        shown[points],
        s=9 if many else 20,
        color=BLUE,
        alpha=0.35 if many else 0.8,
        linewidths=0,
        zorder=2,
    )
    ends = np.array([std[drawn].min() / 1.3, std[drawn].max() * 1.3])
    for factor, look in ((1, "-"), (2, (0, (4, 3)))):
        label = "error = deviation" if factor == 1 else "error = 2 deviations"
        axes.plot(ends, factor * ends, color=SOFT, lw=1.2, ls=look, label=label, zorder=3)
    x, y = binned(error[drawn], std[drawn])
    axes.plot(x, y, "D-", color=RED, ms=6, lw=1.4, label="root mean squares, in bins", zorder=4)
    axes.set(xscale="log", yscale="log")
    value_axis(axes, "x", std[drawn])
    value_axis(axes, "y", shown[drawn])
    for axis, values in ((axes.xaxis, std[drawn]), (axes.yaxis, shown[drawn])):
        if values.max() <= 5 * values.min():
            axis.set_major_locator(MaxNLocator(5))
            axis.set_minor_locator(NullLocator())
    axes.set(xlim=ends, ylim=(floor / 1.3, shown[drawn].max() * 1.6))
    axes.set_xlabel(f"predicted deviation of {_with_unit(target)}")
    axes.set_ylabel(f"|error| of {_with_unit(target)}")
    axes.legend(loc="lower right", fontsize=9, frameon=True, framealpha=0.6, edgecolor="none")
    names = ("spearman", "Spearman"), ("ence", "ENCE"), ("miscalibration_area", "miscal. area")
    _title(figure, target, measures or {}, *names)
    tidy(axes)
    return figure, _marks(axes, target, std, shown)


def coverage(
    targets: Sequence[TargetValues], level: float, measures: Mapping[str, Measures] | None = None
) -> Figure:
    """Observed coverage of Gaussian intervals against their nominal coverage.

    Parameters
    ----------
    targets
        Of the test split, at least one.
    level
        Nominal coverage of the calibrated intervals; each target's is a diamond at it.
    measures
        By target: the coverage of the calibrated intervals with its own interval.
    """
    figure = new_figure(9.4, 5.0)
    axes = figure.add_subplot()
    nominal = np.linspace(0.01, 0.99, 99)
    graphs = min(target.graphs for target in targets)
    chance = 1.96 * np.sqrt(nominal * (1 - nominal) / graphs)
    axes.fill_between(
        nominal,
        np.clip(nominal - chance, 0, 1),
        np.clip(nominal + chance, 0, 1),
        color=FAINT,
        alpha=0.7,
        lw=0,
        label=f"chance in {graphs} structures (95 %)",
        zorder=1,
    )
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1.2, zorder=2)
    axes.axvline(level, color=SOFT, lw=1, ls=(0, (4, 3)), zorder=1)
    for target, colour in zip(targets, cycle((BLUE, ORANGE, GREEN, PURPLE, SKY)), strict=False):
        observed = gaussian_coverage(target, nominal)
        axes.plot(nominal, observed, color=colour, lw=2.2, label=f"{target.name}: mean ± z·std")
        held = interval_coverage(target)
        found = (measures or {}).get(target.name, {}).get(interval_names(level)[0], {})
        lo, hi = found.get("lo"), found.get("hi")
        ends = "" if lo is None or hi is None else f"\n({percent(lo)} to {percent(hi)})"
        axes.plot(
            [level],
            [held],
            marker="D",
            ms=9,
            color=colour,
            mec=INK,
            mew=1.2,
            ls="none",
            zorder=5,
            label=f"{target.name}: {level * 100:g} % interval holds {percent(held)}{ends}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set_xlabel("nominal coverage of an interval")
    axes.set_ylabel("test values inside it")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    tidy(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=10, labelspacing=0.9)
    return figure


def _title(
    figure: Figure, target: TargetValues, measures: Measures, *names: tuple[str, str]
) -> None:
    """Write measures with their intervals above a figure, where they hide no value."""
    told = [f"{word} {with_interval(measures[name])}" for name, word in names if name in measures]
    values = f"{len(target.reference):,} values in {target.graphs:,} structures"
    lines = [", ".join(told[:2]), ", ".join([*told[2:], values])]
    figure.suptitle(
        "\n".join(filter(None, lines)), fontsize=10, color=INK, x=0.01, ha="left", linespacing=1.4
    )


def _marks(
    axes: Axes, target: TargetValues, x: NDArray[np.float64], y: NDArray[np.float64]
) -> Marks:
    """The largest errors and some of the others, with the structures they belong to."""
    chosen = telling(np.abs(target.errors), _MOST_MARKS)
    labels = [
        f"structure {target.graph_id[i]}: predicted {number(target.mean[i])} ± "
        f"{number(target.std[i])}, reference {number(target.reference[i])} {target.unit}".rstrip()
        for i in chosen
    ]
    return Marks(axes, x[chosen], y[chosen], labels)


def _with_unit(target: TargetValues) -> str:
    return f"{target.name} [{target.unit}]" if target.unit else target.name
