"""Scaling study: throughput, efficiency, and where the time of a step goes, against the GCDs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from hydragnn_flow.report.profile import WORDS, shares
from hydragnn_flow.report.scaling import KINDS, LEAST, MEANINGS, Kind, Study
from hydragnn_flow.report.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SOFT,
    legend_above,
    new_figure,
    tidy,
    value_axis,
)

_COLOURS: dict[Kind, str] = {"weak": BLUE, "strong": ORANGE}
_MARKERS: dict[Kind, str] = {"weak": "o", "strong": "D"}
_PARTS = {"computing": BLUE, "reading": GREEN, "exchanging": ORANGE, "waiting": PURPLE}


def scaling_figure(study: Study) -> Figure:
    """Four panels: graphs in a second, efficiency, and the parts of a step of both kinds.

    Parameters
    ----------
    study
        With at least one point.
    """
    figure = new_figure(9.4, 6.4)
    panels = figure.subplots(2, 2)
    _throughput(panels[0, 0], study)
    _efficiency(panels[0, 1], study)
    for axes, kind in zip(panels[1], KINDS, strict=True):
        _parts(axes, study, kind)
    legend_above(
        figure, [Patch(color=colour, label=WORDS[name]) for name, colour in _PARTS.items()]
    )
    return figure


def _throughput(axes: Axes, study: Study) -> None:
    for kind in KINDS:
        points = study.of(kind)
        gcds, graphs = [p.gcds for p in points], [p.throughput for p in points]
        if points:
            ideal = [graphs[0] * width / gcds[0] for width in gcds]
            axes.plot(gcds, ideal, color=SOFT, lw=1.0, ls=(0, (4, 3)), zorder=1)
        axes.plot(gcds, graphs, color=_COLOURS[kind], marker=_MARKERS[kind], label=MEANINGS[kind])
    values = np.array([point.throughput for kind in KINDS for point in study.of(kind)])
    value_axis(axes, "y", values)
    axes.set_ylabel("graphs in a second")
    _widths(axes, study)
    axes.legend(frameon=False, fontsize=10)


def _efficiency(axes: Axes, study: Study) -> None:
    for kind in KINDS:
        points = study.of(kind)
        gcds = [point.gcds for point in points]
        efficient = [100 * study.efficiency(point, kind) for point in points]
        axes.plot(gcds, efficient, color=_COLOURS[kind], marker=_MARKERS[kind])
    axes.axhline(100 * LEAST, color=SOFT, lw=1.0, ls=(0, (1, 2)))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("efficiency [%]")
    _widths(axes, study)


def _parts(axes: Axes, study: Study, kind: Kind) -> None:
    points = study.of(kind)
    places = np.arange(len(points))
    base = np.zeros(len(points))
    for name, colour in _PARTS.items():
        heights = np.array([100 * shares(p.profile.parts)[name] for p in points if p.profile])
        axes.bar(places, heights, 0.7, bottom=base, color=colour, linewidth=0)
        base = base + heights
    axes.set_xticks(places, [str(point.gcds) for point in points])
    axes.set_ylim(0, 100)
    axes.set_xlabel("GCDs")
    axes.set_ylabel("part of a step [%]")
    axes.set_title(MEANINGS[kind], fontsize=11, color=INK, loc="left")
    tidy(axes, grid="y")


def _widths(axes: Axes, study: Study) -> None:
    """An axis of numbers of GCDs, with a line where a second node begins."""
    points = [point for kind in KINDS for point in study.of(kind)]
    gcds = sorted({point.gcds for point in points})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(gcds))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(width) for width in gcds])
    axes.set_xlabel("GCDs")
    alone = [point.gcds for point in points if point.nodes == 1]
    wider = [point.gcds for point in points if point.nodes > 1]
    if alone and wider:
        border = (max(alone) * min(wider)) ** 0.5
        axes.axvline(border, color=FAINT, lw=6, zorder=0)
        axes.annotate(
            "second node",
            (border, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=9,
            color=SOFT,
        )
    tidy(axes)
