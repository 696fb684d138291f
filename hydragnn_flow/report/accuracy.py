"""Accuracy on the test split: predictions target by target, their figures, the worst structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray
from scipy.special import erf

from hydragnn_flow.ensemble.summary import per_atom
from hydragnn_flow.report import style
from hydragnn_flow.report.errors import with_interval
from hydragnn_flow.report.style import BLUE, FAINT, ORANGE, RED, SOFT
from hydragnn_flow.report.tables import percent

Floats = NDArray[np.float64]
Measures = Mapping[str, Any]
"""Estimates by name of the measure, as in `measures` of `ensemble.json` for a target."""
# Columns of a predictions table that say what a structure is.
_ABOUT = ("file", "frame", "id", "formula", "note")


class TargetValues(NamedTuple):
    """Reference and predicted values of one target, its components one below the other."""

    name: str
    unit: str
    table: pd.DataFrame
    """Row per value: ``graph_id``, ``reference``, ``mean`` (prediction), ``std`` (predicted
    deviation), ``lo`` and ``hi`` (ends of the calibrated interval) and ``error`` (``mean`` minus
    ``reference``). Values without finite reference and mean are left out."""

    @property
    def label(self) -> str:
        """Name of the target with the unit in brackets."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    @property
    def graphs(self) -> int:
        """Number of structures that the values belong to."""
        return self.table["graph_id"].nunique()

    def per_atom(self, n_atoms: pd.Series[int]) -> TargetValues:
        """Return the values divided by the number of atoms of each structure, eV as meV/atom.

        Parameters
        ----------
        n_atoms
            Number of atoms by ``graph_id``.
        """
        unit, factor = per_atom(self.unit)
        scale = factor / self.table["graph_id"].map(n_atoms)
        scaled = self.table.drop(columns="graph_id").mul(scale, axis=0)
        return TargetValues(f"{self.name} per atom", unit, scaled.join(self.table["graph_id"]))


def targets_of(table: pd.DataFrame) -> list[TargetValues]:
    """Extract the targets of a predictions table that have reference values, in its order.

    ``table`` is one that an ensemble writes, with its ``attrs``.
    """
    suffixes = {"": "reference", **{f"_{name}": name for name in ("mean", "std", "lo", "hi")}}
    found = []
    for name, components in table.attrs["components"].items():
        if not all(f"{one}_mean" in table and one in table for one in components):
            continue
        columns = [
            table[["graph_id", *(f"{component}{suffix}" for suffix in suffixes)]].set_axis(
                ["graph_id", *suffixes.values()], axis=1
            )
            for component in components
        ]
        values = pd.concat(columns, ignore_index=True)
        values = values.loc[np.isfinite(values[["reference", "mean"]].to_numpy()).all(axis=1)]
        if len(values):
            values["error"] = values["mean"] - values["reference"]
            found.append(TargetValues(name, table.attrs["units"][f"{components[0]}_mean"], values))
    return found


def parity(target: TargetValues, measures: Measures = MappingProxyType({})) -> Figure:
    """Draw predicted against reference values with error bars of one standard deviation.

    A lower panel shows the differences, where small error bars can be read. If there are many
    values, each panel draws those with the largest errors and some of the others. The printed
    errors are those of all values.

    Parameters
    ----------
    target
        Values of the test split.
    measures
        Errors of the target with their confidence intervals, printed above the figure.
    """
    figure = style.new_figure(5.6, 6.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    values = target.table
    worth = values["error"].abs().to_numpy()
    points, bars = values.iloc[telling(worth, 2000)], values.iloc[telling(worth, 300)]
    both = values[["reference", "mean"]].to_numpy()
    low, high = float(both.min()), float(both.max())
    room = 0.04 * (high - low or 1.0)
    ends = (low - room, high + room)
    upper.plot(ends, ends, color=SOFT, lw=1.2, zorder=1)
    lower.axhline(0, color=SOFT, lw=1.2, zorder=1)
    look: dict[str, Any] = {"fmt": "none", "ecolor": ORANGE, "elinewidth": 0.9, "zorder": 2}
    for axes, column in ((upper, "mean"), (lower, "error")):
        axes.errorbar(bars["reference"], bars[column], yerr=bars["std"].fillna(0.0), **look)
        _dots(axes, points["reference"], points[column])
        style.tidy(axes)
    upper.set(xlim=ends, ylim=ends, ylabel=f"predicted {target.label}")
    most = float(worth.max()) or float(values["std"].fillna(0.0).max()) or 1.0
    lower.set(ylim=(-1.15 * most, 1.15 * most), ylabel="difference")
    lower.set(xlabel=f"reference {target.label}")
    _title(figure, target, measures, mae="MAE", rmse="RMSE", r2="R²")
    figure.align_ylabels()
    return figure


def deviation(target: TargetValues, measures: Measures = MappingProxyType({})) -> Figure:
    """Draw absolute errors against predicted standard deviations, with root mean squares in bins.

    The root mean squares, of errors and of standard deviations, are those of :func:`binned`.

    Parameters
    ----------
    target
        Values of the test split.
    measures
        Estimates of the target by name; the rank correlation is printed above the figure.
    """
    figure = style.new_figure(5.6, 5.2)
    axes = figure.add_subplot()
    error, std = target.table["error"].abs().to_numpy(), target.table["std"].to_numpy()
    _title(figure, target, measures, spearman="Spearman")
    drawn = np.isfinite(std) & (std > 0)
    positive = error[drawn & (error > 0)]
    if not len(positive):
        axes.text(0.5, 0.5, "no deviations to compare errors with", ha="center", color=SOFT)
        axes.set_axis_off()
        return figure
    # A few errors are nearly zero by chance; they are drawn on the lower edge.
    floor = max(float(positive.min()), float(positive.max()) * 1e-4)
    shown = np.maximum(error, floor)
    places = np.flatnonzero(drawn)
    points = places[telling(error[drawn] / std[drawn], 2000)]
    points = np.union1d(points, places[telling(error[drawn], 300)])
    _dots(axes, std[points], shown[points])
    ends = np.array([std[drawn].min() / 1.3, std[drawn].max() * 1.3])
    axes.plot(ends, ends, color=SOFT, lw=1.2, label="error = deviation", zorder=3)
    axes.plot(ends, 2 * ends, "--", color=SOFT, lw=1.2, label="error = 2 deviations", zorder=3)
    x, y = binned(error[drawn], std[drawn])
    axes.plot(x, y, "D-", color=RED, ms=6, lw=1.4, label="root mean squares, in bins", zorder=4)
    style.value_axis(axes, "x", std[drawn])
    style.value_axis(axes, "y", shown[drawn])
    axes.set(xlim=ends, ylim=(floor / 1.3, shown[drawn].max() * 1.6))
    axes.set(xlabel=f"predicted deviation of {target.label}", ylabel=f"|error| of {target.label}")
    axes.legend(loc="lower right", fontsize=9, framealpha=0.6, edgecolor="none")
    style.tidy(axes)
    return figure


def coverage(targets: Sequence[TargetValues], level: float) -> Figure:
    """Draw the fraction of true values inside predicted intervals against the intended fraction.

    Parameters
    ----------
    targets
        Values of at least one target on the test split.
    level
        Intended coverage of the calibrated intervals. At this coverage, a diamond for each target
        marks the fraction of values inside its calibrated intervals; curves are those of Gaussians.
    """
    figure = style.new_figure(9.4, 5.0)
    axes = figure.add_subplot()
    nominal = np.linspace(0.01, 0.99, 99)
    graphs = min(target.graphs for target in targets)
    chance = 1.96 * np.sqrt(nominal * (1 - nominal) / graphs)
    band = np.clip(nominal - chance, 0, 1), np.clip(nominal + chance, 0, 1)
    label = f"chance in {graphs} structures (95 %)"
    axes.fill_between(nominal, *band, color=FAINT, alpha=0.7, lw=0, label=label, zorder=1)
    axes.plot([0, 1], [0, 1], color=SOFT, lw=1.2, zorder=2)
    axes.axvline(level, color=SOFT, lw=1, ls="--", zorder=1)
    for target, colour in zip(targets, cycle(style.PALETTE), strict=False):
        observed = gaussian_coverage(target, nominal)
        axes.plot(nominal, observed, color=colour, lw=2.2, label=f"{target.name}: mean ± z·std")
        held = interval_coverage(target)
        label = f"{target.name}: {level * 100:g} % interval holds {percent(held)}"
        axes.plot([level], [held], "D", color=colour, ms=9, mec=style.INK, zorder=5, label=label)
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.set(xlabel="nominal coverage of an interval", ylabel="test values inside it")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    style.tidy(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=10, labelspacing=0.9)
    return figure


def worst_structures(
    targets: Sequence[TargetValues], graphs: pd.DataFrame | None, nodes: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the eight structures with the largest errors of each target, the worst first.

    Parameters
    ----------
    targets
        Values of the test split.
    graphs, nodes
        Predictions tables of graph and node targets, which give origin and number of atoms of
        structures; None if there are none.

    Returns
    -------
    pandas.DataFrame
        ``target``; ``structure`` (``graph_id``); number of ``atoms``; ``|error|``, the mean over
        the structure's values; ``largest``, its largest absolute error; ``deviation``, root mean
        square of its standard deviations; ``|error| / deviation``, root mean square error divided
        by ``deviation``, far above 1 for an error that was not expected. Then the structure's
        origin and note.
    """
    parts = []
    for target in targets:
        values, error = target.table, target.table["error"]
        columns = {"|error|": error.abs(), "squared": error**2, "variance": values["std"] ** 2}
        of_structure = pd.DataFrame(columns).groupby(values["graph_id"].rename("structure"))
        mean = of_structure.mean()
        mean["largest"] = of_structure["|error|"].max()
        mean["deviation"] = np.sqrt(mean.pop("variance"))
        ratio = np.sqrt(mean.pop("squared")) / mean["deviation"].replace(0, np.nan)
        worst = mean.assign(**{"|error| / deviation": ratio}).nlargest(8, "|error|")
        if nodes is not None:
            worst.insert(0, "atoms", nodes["graph_id"].value_counts())
        parts.append(worst.reset_index().assign(target=target.label))
    table = pd.concat(parts) if parts else pd.DataFrame()
    if parts and graphs is not None:
        about = graphs[["graph_id", *(name for name in _ABOUT if name in graphs)]]
        table = table.merge(about, "left", left_on="structure", right_on="graph_id")
        table = table.drop(columns="graph_id").replace("", np.nan).dropna(axis=1, how="all")
    return table


def gaussian_coverage(target: TargetValues, nominal: Floats) -> Floats:
    """Return the fraction of true values inside Gaussian intervals mean ± z·std, [n_intervals].

    Parameters
    ----------
    target
        Values of the target, with predicted standard deviations.
    nominal
        Intended coverage of each interval, between 0 and 1 (exclusive), [n_intervals].
    """
    # A value is inside from the z on that equals |error| / std: sort once, count for every z.
    error, std = target.table["error"].abs(), target.table["std"]
    z = np.sort(erf((error / std).where(error > 0, 0.0) / np.sqrt(2)))
    return np.searchsorted(z, nominal, side="right") / len(z)


def interval_coverage(target: TargetValues) -> float:
    """Return the fraction of reference values inside the calibrated interval [lo, hi], 0 to 1."""
    values = target.table
    return float(values["reference"].between(values["lo"], values["hi"]).mean())


def binned(error: Floats, std: Floats) -> tuple[Floats, Floats]:
    """Bin values by predicted deviation; return root mean squares of deviation and error, [n_bins].

    A bin has values of similar standard deviation. There are at most ten bins, with at least five
    values in each if there are as many.

    Parameters
    ----------
    error, std
        Error and predicted standard deviation of each value, [n_values].
    """
    order = np.argsort(std, kind="stable")
    bins = np.array_split(order, max(1, min(10, len(order) // 5)))
    roots = [[np.sqrt(np.mean(of[part] ** 2)) for part in bins] for of in (std, error)]
    return np.array(roots[0]), np.array(roots[1])


def telling(worth: Floats, most: int) -> NDArray[np.int64]:
    """Choose at most ``most`` values that a figure should show, and return their indices.

    A third of them have the largest ``worth``; the others are spread evenly over the rest.
    """
    if len(worth) <= most:
        return np.arange(len(worth))
    order = np.argsort(-worth, kind="stable")
    others = np.sort(order[most // 3 :])
    evenly = np.linspace(0, len(others) - 1, most - most // 3).round().astype(np.int64)
    return np.union1d(order[: most // 3], others[evenly])


def _dots(axes: Axes, x: Floats | pd.Series[float], y: Floats | pd.Series[float]) -> None:
    many = len(x) > 200
    look: dict[str, Any] = {"color": BLUE, "linewidths": 0, "zorder": 2.5}
    axes.scatter(x, y, s=9 if many else 20, alpha=0.4 if many else 0.8, **look)


def _title(figure: Figure, target: TargetValues, measures: Measures, **names: str) -> None:
    """Write measures with their intervals above a figure.

    ``names`` maps the name of a measure to the words for it.
    """
    known = {word: measures[name] for name, word in names.items() if name in measures}
    told = [f"{word} {with_interval(estimate)}" for word, estimate in known.items()]
    values = f"{len(target.table):,} values in {target.graphs:,} structures"
    lines = [", ".join(told[:2]), ", ".join([*told[2:], values])]
    figure.suptitle("\n".join(filter(None, lines)), fontsize=10, color=style.INK, x=0.01, ha="left")
