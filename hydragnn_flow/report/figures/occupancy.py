"""Occupancy of the GCDs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from hydragnn_flow.report.style import (
    INK,
    RED,
    SOFT,
    colours,
    ink_on,
    legend_above,
    new_figure,
    tidy,
    type_keys,
)
from hydragnn_flow.report.timeline import Bar, Timeline, lay_out
from hydragnn_flow.segment import SegmentResult

_ROW_HEIGHT = 0.8
_MOST_ROW_NAMES = 40


def gcd_occupancy(
    segments: Sequence[SegmentResult], types: Mapping[tuple[str, int], str]
) -> Figure:
    """A row for each GCD and a bar for each segment from its start to its end.

    Parameters
    ----------
    segments
        Of the run, trials' and members'.
    types
        Message-passing type by (``trial`` or ``member``, number).
    """
    timeline = lay_out(segments)
    rows = len(timeline.rows)
    figure = new_figure(9.4, min(1.5 + 0.75 * rows, 12.0))
    axes = figure.add_subplot()
    palette = colours(types.values())
    thin = min(1.0, 30 / max(rows, 1))
    scale, unit = time_unit(timeline.length)
    groups: dict[tuple[str, str, bool], list[Bar]] = {}
    for bar in timeline.bars:
        who = (bar.segment.kind, bar.segment.number)
        group = (bar.segment.kind, types.get(who, ""), bar.segment.status == "ok")
        groups.setdefault(group, []).append(bar)
    for (kind, group_type, ended_well), bars in groups.items():
        axes.add_collection(
            PolyCollection(
                [_corners(bar, timeline, scale) for bar in bars],
                facecolors=palette.get(group_type, SOFT),
                edgecolors="white" if ended_well else RED,
                linewidths=(0.8 if ended_well else 2.0) * thin,
                hatch="///" if kind == "member" else None,
                zorder=2 if ended_well else 3,
            )
        )
    _name_bars(axes, timeline, scale, {who: palette[name] for who, name in types.items()})
    for pause in timeline.pauses:
        axes.axvline(pause.at / scale, color=SOFT, lw=1.2, ls=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"stopped for {duration(pause.seconds)}",
            (pause.at / scale, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=9,
            color=SOFT,
        )
    names = _row_names(timeline)
    every = -(-rows // _MOST_ROW_NAMES) if rows else 1
    axes.set_yticks(range(0, rows, every), names[::every])
    for row in range(0, rows, every):
        axes.text(
            1.01,
            row,
            f"idle {timeline.idle[row] * 100:.0f} %",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=10,
            color=INK,
        )
    axes.set_xlim(0, max(timeline.length / scale, 1e-9))
    axes.set_ylim(max(rows, 1) - 0.5, -0.5)
    label = f"time since the first segment began [{unit}]"
    if rows > 1:
        label += f"; GCDs idle {sum(timeline.idle) / rows * 100:.0f} % on average"
    if timeline.untimed:
        label += f"; not shown: {timeline.untimed} segments lost with their worker"
    axes.set_xlabel(label)
    tidy(axes, grid="x")
    axes.tick_params(axis="y", length=0)
    _legend(figure, palette, groups)
    return figure


def _corners(bar: Bar, timeline: Timeline, scale: float) -> list[tuple[float, float]]:
    height = _ROW_HEIGHT / bar.tracks
    top = bar.row - _ROW_HEIGHT / 2 + bar.track * height
    # However short a segment was, it is there to be seen.
    end = max(bar.end, bar.start + timeline.length / 1000)
    left, right = bar.start / scale, end / scale
    return [(left, top), (right, top), (right, top + height), (left, top + height)]


def _name_bars(
    axes: Axes, timeline: Timeline, scale: float, fill: Mapping[tuple[str, int], str]
) -> None:
    row_height = min(0.75, 10 / len(timeline.rows)) if timeline.rows else 0.0  # [in]
    for bar in timeline.bars:
        kind, number = bar.segment.kind, bar.segment.number
        name = f"M{number}" if kind == "member" else str(number)
        height = _ROW_HEIGHT / bar.tracks
        wide = 8 * (bar.end - bar.start) / timeline.length  # [in]
        if wide < 0.07 * len(name) + 0.04 or height * row_height < 0.14:
            continue
        colour = fill.get((kind, number), SOFT)
        axes.text(
            (bar.start + bar.end) / 2 / scale,
            bar.row - _ROW_HEIGHT / 2 + (bar.track + 0.5) * height,
            name,
            ha="center",
            va="center",
            fontsize=8.5,
            color=ink_on(colour),
            fontweight="bold",
            zorder=4,
            # Keeps the hatching of a member out of its name.
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.5}
            if kind == "member"
            else None,
        )


def _row_names(timeline: Timeline) -> list[str]:
    nodes = {node for node, _ in timeline.rows}
    return [f"GCD {gcd}" if len(nodes) == 1 else f"{node} · {gcd}" for node, gcd in timeline.rows]


def _legend(
    figure: Figure, palette: Mapping[str, str], groups: Mapping[tuple[str, str, bool], list[Bar]]
) -> None:
    keys = type_keys(palette)
    if any(kind == "member" for kind, _, _ in groups):
        member = Patch(facecolor=SOFT, edgecolor="white", hatch="///", label="ensemble member")
        keys.append(member)
    if any(not ended_well for _, _, ended_well in groups):
        keys.append(Patch(facecolor="white", edgecolor=RED, lw=2, label="did not end well"))
    legend_above(figure, keys)


def time_unit(seconds: float) -> tuple[float, str]:
    """Seconds of the unit in which a time of this length [s] is shown, and its name."""
    if seconds < 600:
        return 1.0, "s"
    return (60.0, "min") if seconds < 4 * 3600 else (3600.0, "h")


def duration(seconds: float) -> str:
    """A time [s] in words."""
    scale, unit = time_unit(seconds)
    return f"{seconds / scale:.3g} {unit}"
