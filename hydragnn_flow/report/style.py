"""The common look of all figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

# Okabe & Ito's colours, which people with any kind of colour blindness tell apart
# (https://jfly.uni-koeln.de/color/), and where these do not suffice some of Paul Tol's "muted"
# (https://sronpersonalpages.nl/~pault/).
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
RED, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
MORE = ("#332288", "#117733", "#999933", "#882255", "#44AA99", "#DDCC77", "#AA4499")
INK, SOFT, PALE, FAINT = "#222222", "#6b7280", "#9aa3af", "#d9dde3"

_KEYS_IN_A_ROW = 8
PIXELS_PER_INCH = 96
"""A figure of 9.4 in is shown 900 CSS pixels wide."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure [in], laid out so that labels do not collide."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, *, grid: str = "both") -> None:
    """Quiet frame, quiet grid.

    Parameters
    ----------
    axes
        To be dressed.
    grid
        ``x``, ``y`` or ``both``.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(colors=INK, labelsize=10, color=SOFT, which="both")
    axes.set_axisbelow(True)
    for name in ("x", "y"):
        if grid in (name, "both"):
            axes.grid(axis="x" if name == "x" else "y", color=FAINT, linewidth=0.7)
    axes.xaxis.label.set(fontsize=11, color=INK)
    axes.yaxis.label.set(fontsize=11, color=INK)


def colours(groups: Iterable[str]) -> dict[str, str]:
    """A colour for every group, the same whenever the groups are the same."""
    palette = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, *MORE)
    return {group: palette[i % len(palette)] for i, group in enumerate(sorted(set(groups)))}


def crowded(count: int, most: int) -> float:
    """Factor by which marks and lines shrink where more than ``most`` are drawn."""
    return float(min(1.0, (most / max(count, 1)) ** 0.5))


def value_axis(axes: Axes, name: Literal["x", "y"], values: NDArray[np.float64]) -> None:
    """Label an axis of values, logarithmic where they span more than a factor of five.

    Parameters
    ----------
    axes, name
        The axis.
    values
        Finite values it shows, [n_values].
    """
    axis = axes.xaxis if name == "x" else axes.yaxis
    if len(values) and values.min() > 0 and values.max() > 5 * values.min():
        axes.set(**{f"{name}scale": "log"})
        # Within two decades the powers of ten alone would leave the axis nearly bare.
        narrow = values.max() < 99 * values.min()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axis.set_minor_locator(NullLocator())
        axes.set(**{f"{name}lim": (values.min() / 1.2, values.max() * 1.2)})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def ink_on(colour: str) -> str:
    """The colour of text that can be read on ``colour``."""
    red, green, blue = to_rgb(colour)
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else INK


def type_keys(palette: Mapping[str, str]) -> list[Line2D | Patch]:
    """A key for the colour of every message-passing type."""
    return [Patch(color=colour, label=name) for name, colour in palette.items()]


def legend_above(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """Rows of keys above the figure."""
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=min(len(handles), _KEYS_IN_A_ROW),
        frameon=False,
        fontsize=10,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
