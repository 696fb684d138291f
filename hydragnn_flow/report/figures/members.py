"""Learning curves of the ensemble's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hydragnn_flow.report.style import (
    BLUE,
    GREEN,
    MORE,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    legend_above,
    new_figure,
    tidy,
    value_axis,
)
from hydragnn_flow.segment import SegmentResult


def member_curves(
    segments: Sequence[SegmentResult], members: Sequence[Mapping[str, Any]]
) -> Figure | None:
    """Validation loss of each member, thin while it was a trial; None if no member has any.

    Parameters
    ----------
    segments
        Of the run. If an interrupted one was repeated, the later one counts.
    members
        As `ensemble.json` lists them.
    """
    curves = {of["member"]: _curve(segments, "member", of["member"]) for of in members}
    if not any(map(len, curves.values())):
        return None
    figure = new_figure(9.4, 4.2)
    axes = figure.add_subplot()
    palette = cycle((BLUE, ORANGE, GREEN, PURPLE, RED, SKY, *MORE))
    keys, values = [], []
    for of, colour in zip(members, palette, strict=False):
        own = curves[of["member"]]
        before = _curve(segments, "trial", of["trial"])
        if len(own) and own[0, 0] > 1:  # it went on from its trial's checkpoint
            before = before[before[:, 0] < own[0, 0]]
            axes.plot(*np.vstack([before, own[:1]]).T, color=colour, lw=0.9, alpha=0.6, zorder=2)
            values.append(before[:, 1])
        axes.plot(*own.T, color=colour, lw=2.0, zorder=3)
        values.append(own[:, 1])
        if len(own):
            least = own[np.argmin(own[:, 1])]
            axes.plot(*least, "o", color=colour, mec="white", ms=7, zorder=4)
        label = f"member {of['member']}, trial {of['trial']}"
        keys.append(Line2D([], [], color=colour, lw=2.0, label=label))
    keys.append(Line2D([], [], marker="o", ls="none", color="#6b7280", ms=7, label="smallest"))
    value_axis(axes, "y", np.concatenate(values))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel="validation error")
    tidy(axes)
    legend_above(figure, keys)
    return figure


def _curve(segments: Sequence[SegmentResult], kind: str, number: int) -> Any:
    """Epoch and finite validation error [n_epochs, 2], epochs in order."""
    found: dict[int, float] = {}
    for segment in segments:
        if (segment.kind, segment.number) == (kind, number):
            found.update({int(e): loss for e, *_, loss in segment.history if np.isfinite(loss)})
    return np.array(sorted(found.items()), dtype=float).reshape(-1, 2)
