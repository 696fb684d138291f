"""Figures as the page embeds them, with what the pointer finds on them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from hydragnn_flow.report.style import PIXELS_PER_INCH

# Drawn elements, and bytes, above which a picture of pixels is smaller and opens faster.
_MOST_SVG_ELEMENTS, _MOST_SVG_BYTES = 1000, 150_000
_COLOURS = 64


@dataclass(frozen=True)
class Marks:
    """Marks of a figure that say what they are when the pointer is near."""

    axes: Axes
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    labels: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """A figure as the page embeds it."""

    source: str
    """``data:`` address."""
    width: int
    """Width in CSS pixels."""
    text: str
    """Description of the picture, for readers who cannot see it."""
    marks: str = ""
    """JSON: [x, y, label] of each mark, in thousandths of width and height from the upper left."""


def embed(figure: Figure, text: str, marks: Marks | None = None) -> Picture:
    """A figure as a ``data:`` address: SVG, or PNG where that would be large or slow to show."""
    kind, content = "svg+xml", b""
    if elements(figure) <= _MOST_SVG_ELEMENTS:
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        content = file.getvalue()
    if not content or len(content) > _MOST_SVG_BYTES:
        kind, content = "png", _png(figure)
    data = base64.b64encode(content).decode("ascii")
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    return Picture(f"data:image/{kind};base64,{data}", width, text, _places(figure, marks))


def _png(figure: Figure) -> bytes:
    """PNG with a palette, which is a third of the size."""
    drawn, file = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=2 * PIXELS_PER_INCH)
    few = Image.open(drawn).convert("RGB").quantize(_COLOURS, Image.Quantize.FASTOCTREE)
    few.save(file, "png", optimize=True)
    return file.getvalue()


def elements(figure: Figure) -> int:
    """How many marks and line pieces a figure draws, roughly."""
    count = 0
    for axes in figure.axes:
        count += len(axes.texts) + len(axes.patches) + len(axes.lines)
        for collection in axes.collections:
            count += max(len(collection.get_paths()), np.shape(collection.get_offsets())[0])
    return count


def _places(figure: Figure, marks: Marks | None) -> str:
    if marks is None or not len(marks.labels):
        return ""
    pixels = marks.axes.transData.transform(np.column_stack([marks.x, marks.y]))
    places = 1000 * pixels / (figure.bbox.width, figure.bbox.height)
    found = [
        [round(x), round(1000 - y), label]
        for (x, y), label in zip(places.tolist(), marks.labels, strict=True)
        if np.isfinite(x) and np.isfinite(y)
    ]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
