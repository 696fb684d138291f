"""How good the predictions are: parity and coverage on the test split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from hydragnn_flow.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    new_figure,
    tidy,
)
from hydragnn_flow.report.target_values import (
    TargetValues,
    errors_of,
    evenly,
    gaussian_coverage,
    interval_coverage,
)
from hydragnn_flow.report.text import number, percent

_MOST_POINTS, _MOST_BARS = 2000, 300


def parity(target: TargetValues) -> Figure:
    """Predicted against reference values with error bars of one standard deviation.

    The lower panel shows the differences, where error bars that vanish in the upper one can be
    read. If a table is large, each panel draws some values, picked at even spacing; the printed
    errors are of all.
    """
    figure = new_figure(5.6, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    points = evenly(len(target.reference), _MOST_POINTS)
    bars = evenly(len(target.reference), _MOST_BARS)
    low = float(min(target.reference.min(), target.mean.min()))
    high = float(max(target.reference.max(), target.mean.max()))
    room = 0.04 * (high - low or 1.0)
    ends = (low - room, high + room)
    upper.plot(ends, ends, color=SOFT, lw=1.2, zorder=1)
    lower.axhline(0, color=SOFT, lw=1.2, zorder=1)
    for axes, values, dots in ((upper, target.mean, points), (lower, target.errors, bars)):
        many = len(dots) > 200
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
            target.reference[dots],
            values[dots],
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
    # A few outliers must not flatten the panel.
    reach = float(np.quantile(np.abs(target.errors), 0.995) + np.nan_to_num(target.std).mean())
    lower.set_ylim(-1.15 * (reach or 1.0), 1.15 * (reach or 1.0))
    errors = errors_of(target)
    rows = (
        ("MAE", f"{number(errors.mae)} {target.unit}"),
        ("RMSE", f"{number(errors.rmse)} {target.unit}"),
        ("R²", f"{errors.r2:.4f}"),
        ("values", f"{len(target.reference):,}"),
    )
    for x, texts in ((0.03, [name for name, _ in rows]), (0.19, [value for _, value in rows])):
        upper.text(
            x,
            0.97,
            "\n".join(texts),
            transform=upper.transAxes,
            va="top",
            fontsize=11,
            color=INK,
            linespacing=1.45,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )
    tidy(upper)
    tidy(lower)
    figure.align_ylabels()
    return figure


def coverage(targets: Sequence[TargetValues], level: float) -> Figure:
    """Observed coverage of Gaussian intervals against their nominal coverage.

    Parameters
    ----------
    targets
        Of the test split, at least one.
    level
        Nominal coverage of the calibrated intervals; each target's is a diamond at it.
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
            label=f"{target.name}: {level * 100:g} % interval holds {percent(held)}",
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set_xlabel("nominal coverage of an interval")
    axes.set_ylabel("test values inside it")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    tidy(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=10, labelspacing=0.9)
    return figure


def _with_unit(target: TargetValues) -> str:
    return f"{target.name} [{target.unit}]" if target.unit else target.name
