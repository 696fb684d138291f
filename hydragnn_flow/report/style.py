"""Look of all figures, and how the page embeds them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray
from PIL import Image

# Okabe & Ito's colours, which people with any kind of colour blindness tell apart
# (https://jfly.uni-koeln.de/color/), and where these do not suffice some of Paul Tol's "muted"
# (https://sronpersonalpages.nl/~pault/).
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
RED, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
WINE = "#882255"
PALETTE = (
    *(BLUE, ORANGE, GREEN, PURPLE, SKY, RED, WINE),
    *("#332288", "#117733", "#999933", "#44AA99", "#DDCC77", "#AA4499"),
)
INK, SOFT, PALE, FAINT = "#222222", "#6b7280", "#9aa3af", "#d9dde3"
WIDE = 9.4
"""Width of a figure across the page [in]."""


class Picture(NamedTuple):
    """Picture of a figure, encoded for embedding in the HTML report."""

    source: str
    """Content of the picture as a ``data:`` URL."""
    width: int
    """Width of the picture in CSS pixels."""
    of: str = ""
    """Name of the target that the picture shows; empty if it shows no single target."""


def embed(figure: Figure, of: str = "") -> Picture:
    """Convert a figure to a picture with a ``data:`` URL: SVG, or PNG if the SVG is large.

    ``of`` is the name of the target that the figure shows, or empty.
    """
    file, kind, pixels_per_inch = io.BytesIO(), "svg+xml", 96
    figure.savefig(file, format="svg", metadata={"Date": None})
    if file.tell() > 150_000:  # such a drawing opens more slowly than a picture of pixels
        drawn, file, kind = io.BytesIO(), io.BytesIO(), "png"
        figure.savefig(drawn, format="png", dpi=2 * pixels_per_inch)
        few = Image.open(drawn).convert("RGB").quantize(64, Image.Quantize.FASTOCTREE)
        few.save(file, "png", optimize=True)  # a palette takes a third of the bytes
    data = base64.b64encode(file.getvalue()).decode("ascii")
    width = round(figure.get_figwidth() * pixels_per_inch)
    return Picture(f"data:image/{kind};base64,{data}", width, of)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, laid out so that labels do not collide."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy(axes: Axes, *, grid: Literal["x", "y", "both"] = "both") -> None:
    """Style the axes of a figure as in all figures of the report: frame, ticks, labels, grid."""
    axes.set_facecolor("white")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(colors=INK, labelsize=10, color=SOFT, which="both")
    axes.set_axisbelow(True)
    axes.grid(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.7)
    axes.xaxis.label.set(fontsize=11, color=INK)
    axes.yaxis.label.set(fontsize=11, color=INK)


def value_axis(axes: Axes, name: Literal["x", "y"], values: NDArray[np.float64]) -> None:
    """Format an axis for its values: logarithmic if they span more than a factor of five.

    Parameters
    ----------
    axes, name
        Axes, and which of their two axes.
    values
        Finite values that the axis shows [n_values].
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


def legend_above(figure: Figure, handles: Sequence[Any], columns: int = 8) -> None:
    """Put a legend above the figure, in rows of up to ``columns`` entries."""
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=min(len(handles), columns),
        frameon=False,
        fontsize=10,
        handlelength=1.4,
        columnspacing=1.4,
    )
