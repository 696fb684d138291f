"""Parallel coordinates: every trial as a line through its parameters to its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from hydragnn_flow.report.search_plots import crowded, is_log, sample, sampled, tell
from hydragnn_flow.report.search_tables import short_names
from hydragnn_flow.report.style import FAINT, INK, SOFT, new_figure
from hydragnn_flow.report.trials_frame import ranking

_MOST_AXES = 12
_STRONG_LINES = 12
# Place of a parameter that a trial does not have, below the axis from 0 to 1.
_ABSENT = -0.15
# Up to this number integers are drawn like categories; the lines of more are apart anyway.
_FEW_INTEGERS = 10

Ticks = list[tuple[float, str]]


def parallel_coordinates(
    frame: pd.DataFrame, parameters: Sequence[str] | None = None, objective: int = 0
) -> Figure:
    """Every trial as a line through its parameters to its value; the darker, the better.

    Those that broke a constraint are the palest.

    Parameters
    ----------
    frame
        See :func:`hydragnn_flow.report.trials_frame.trials_frame`. Trials without a value are left
        out.
    parameters
        Dotted paths in the order to be drawn, the first dozen of them; all where not given.
    objective
        Which of the objectives.
    """
    order = ranking(frame, objective)
    names = list(frame.attrs["parameters"] if parameters is None else parameters)
    hidden, names = len(names[_MOST_AXES:]), names[:_MOST_AXES]
    chosen = sample(len(order))
    rows = frame.loc[order.index[chosen]]
    values = order.to_numpy().astype(np.float64)
    drawn = [_parameter_axis(rows[name], frame.attrs["parameters"][name]) for name in names]
    drawn.append(_number_axis(values[chosen], values, log=is_log(values)))
    figure = new_figure(9.4, 4.6)
    axes = figure.add_subplot()
    for position, (_, ticks) in enumerate(drawn):
        _draw_axis(axes, position, ticks)
    height = np.stack([heights for heights, _ in drawn], axis=1)  # [n_lines, n_axes]
    beyond = ~rows["feasible"] if "feasible" in rows else pd.Series(False, rows.index)
    share = order.iloc[chosen].mask(beyond, np.inf).rank(pct=True).to_numpy(np.float64)
    strong = chosen < _STRONG_LINES  # they are in the order of the ranking
    worst_first = np.argsort(-share, kind="stable")
    colours = mpl.colormaps["viridis"](np.clip(share, 0, 1))
    thin = crowded(len(chosen))
    opacity = np.where(strong, 0.95, 0.2 + 0.5 * thin)
    widths = np.where(strong, 1.7, 0.5 + 0.7 * thin)
    # The way to "none" and back says little, and must not outshine the parameters.
    for pieces, part in ((_pieces(height, True), 0.35), (_pieces(height, False), 1.0)):
        colours[:, 3] = part * opacity
        axes.add_collection(
            LineCollection(
                list(pieces[worst_first]),
                colors=colours[worst_first],
                linewidths=(widths * (0.5 + 0.5 * part))[worst_first],
                zorder=2,
            )
        )
    if (height < 0).any():
        axes.text(-0.06, _ABSENT, "none", ha="right", va="center", fontsize=9, color=SOFT)
    # Long names side by side need two levels.
    labels = [*short_names(names), frame.attrs["objectives"][objective]]
    for at, label in enumerate(labels):
        axes.annotate(
            label,
            (at, 1.0),
            (0, 10 + (16 if at % 2 and len(labels) > 6 else 0)),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            color=INK,
            fontweight="bold" if at == len(names) else "normal",
            annotation_clip=False,
        )
    axes.set(xlim=(-0.35, len(names) + 0.45), ylim=(_ABSENT - 0.08, 1.03))
    axes.set_axis_off()
    notes = [sampled(len(chosen), len(order), "trials")]
    if hidden:
        notes.append(f"{hidden} parameters of less importance are left out.")
    tell(figure, notes)
    return figure


def _parameter_axis(
    values: pd.Series[Any], domain: Mapping[str, Any]
) -> tuple[NDArray[np.float64], Ticks]:
    """Heights of the trials on the axis of a parameter, best first, and its ticks."""
    kinds = domain.get("choices", ())
    if not kinds:
        low, high = domain["low"], domain["high"]
        if not isinstance(low, int) or high - low >= _FEW_INTEGERS:
            numbers = values.to_numpy(np.float64, na_value=np.nan)
            return _number_axis(numbers, np.array([low, high], dtype=float), log=domain["log"])
        kinds = range(low, high + 1)
    at = _side_by_side(values.isna().to_numpy(), _ABSENT, 0.06)
    words, room = values.astype("object").map(_word), 1 / len(kinds)
    ticks = []
    for i, kind in enumerate(kinds):
        here = ((words == _word(kind)) & values.notna()).to_numpy()
        middle = (i + 0.5) * room
        at += _side_by_side(here, middle, 0.32 * room)
        ticks.append((middle, str(kind)))
    return at, ticks


def _word(value: Any) -> str:
    """A value as text, the same for 0 and 0.0: the frame's columns have one type each."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.12g}" if is_number else str(value)


def _pieces(height: NDArray[np.float64], to_none: bool) -> NDArray[np.float64]:
    """Polylines [n_lines, 3 (n_axes - 1), 2] of either the pieces that touch "none" or the others.

    Pieces are set apart by NaN, so that a trial stays one path.
    """
    touching = (height[:, :-1] < 0) | (height[:, 1:] < 0)
    n_lines, n_pieces = touching.shape
    lines = np.full((n_lines, n_pieces, 3, 2), np.nan)
    start = np.arange(n_pieces, dtype=float)
    lines[:, :, 0, 0], lines[:, :, 1, 0] = start, start + 1
    lines[:, :, 0, 1], lines[:, :, 1, 1] = height[:, :-1], height[:, 1:]
    lines[touching != to_none] = np.nan
    return lines.reshape(n_lines, 3 * n_pieces, 2)


def _side_by_side(here: NDArray[Any], middle: float, reach: float) -> NDArray[np.float64]:
    """Heights of the lines of one category, the best lowest as on the axis of the values."""
    count = int(here.sum())
    at = np.zeros(len(here))
    at[here] = middle + (np.linspace(-reach, reach, count) if count > 1 else 0.0)
    return at


def _number_axis(
    values: NDArray[np.float64], ends: NDArray[np.float64], *, log: bool
) -> tuple[NDArray[np.float64], Ticks]:
    """Heights from 0 to 1 between the ends, gaps below, and ticks."""
    low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 1.0)
    locator = LogLocator(subs=(1, 3) if high > 99 * low else (1, 2, 5)) if log else MaxNLocator(5)
    ticks = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
    scale = np.log if log else np.asarray

    def height(at: Any) -> Any:
        span = float(scale(high) - scale(low))
        return (scale(at) - scale(low)) / span if span else np.asarray(at) * 0 + 0.5

    gaps = np.isnan(values)
    heights = np.where(gaps, 0.0, np.asarray(height(values), dtype=float))
    labelled = [(float(height(tick)), f"{tick:,.4g}") for tick in ticks]
    return heights + _side_by_side(gaps, _ABSENT, 0.06), labelled


def _draw_axis(axes: Axes, x: float, ticks: Ticks) -> None:
    axes.plot([x, x], [0, 1], color=INK, lw=1.1, zorder=3)
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
    for height, label in ticks:
        axes.plot([x - 0.02, x + 0.02], [height, height], color=INK, lw=1.0, zorder=3)
        axes.text(x + 0.04, height, label, va="center", fontsize=8.5, color=INK, zorder=4, bbox=box)
    axes.axvline(x, ymax=0.1, color=FAINT, lw=0.8, zorder=1)
