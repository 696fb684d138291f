"""The look all figures share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

# Okabe & Ito's colours, which people with any kind of colour blindness tell apart
# (https://jfly.uni-koeln.de/color/), and where these do not suffice some of Paul Tol's "muted"
# (https://sronpersonalpages.nl/~pault/).
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
RED, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
MORE = ("#332288", "#117733", "#999933", "#882255", "#44AA99", "#DDCC77", "#AA4499")
INK, SOFT, FAINT = "#222222", "#6b7280", "#d9dde3"

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
