"""Tables that are the same in a terminal, in a file of JSON and on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A number with its unit and spread, as far as there are any."""

    value: float
    unit: str = ""
    low: float | None = None
    """Smallest of the turns."""
    high: float | None = None
    """Largest of the turns."""
    error: float | None = None
    """Standard error, where the value is a mean."""

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        if self.error is not None:
            return f"{_with_error(self.value, self.error)}{unit}"
        if self.low is not None and self.high is not None and self.low < self.high:
            return f"{_digits(self.value)}{unit} ({_digits(self.low)}–{_digits(self.high)})"
        return f"{_digits(self.value)}{unit}"


Cell = str | int | float | Number | None
"""Whole numbers are shown in full, others with three significant digits, None as nothing."""


@dataclass(frozen=True)
class Table:
    """Rows below headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name: str = ""
    """By which a page can show it alone."""
    title: str = ""
    """Shown above it."""

    def markdown(self) -> str:
        """The table for a page or a terminal."""
        shown = [[_text(cell) for cell in row] for row in self.rows]
        right = [
            any(_is_number(cell) for cell in cells) and not any(map(_is_words, cells))
            for cells in zip(*self.rows, strict=True)
        ] or [False] * len(self.columns)
        widths = [max(3, *map(len, texts)) for texts in zip(self.columns, *shown, strict=True)]

        def line(cells: Sequence[str]) -> str:
            padded = [
                cell.rjust(width) if numeric else cell.ljust(width)
                for cell, width, numeric in zip(cells, widths, right, strict=True)
            ]
            return f"| {' | '.join(padded)} |"

        rule = [
            "-" * (width - 1) + (":" if numeric else "-")
            for width, numeric in zip(widths, right, strict=True)
        ]
        lines = [line(self.columns), line(rule), *map(line, shown)]
        return "\n".join([f"**{self.title}**\n", *lines] if self.title else lines)

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        rows = [[_plain(cell) for cell in row] for row in self.rows]
        return {"name": self.name, "title": self.title, "columns": [*self.columns], "rows": rows}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Table:
        """Output of :meth:`to_json`."""
        rows = [
            [Number(**cell) if isinstance(cell, dict) else cell for cell in row]
            for row in content["rows"]
        ]
        return cls(content["columns"], rows, content["name"], content["title"])


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return _digits(cell) if isinstance(cell, float) else str(cell).replace("|", "\\|")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float | Number)


def _is_words(cell: Cell) -> bool:
    """Whether a cell is text without a digit; ``≥ 8`` and ``1/2`` count as numbers."""
    return isinstance(cell, str) and cell != "" and not any(map(str.isdigit, cell))


def _digits(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{value:#.3g}"


def _with_error(value: float, error: float) -> str:
    """Both to the second significant digit of the error."""
    if not (math.isfinite(error) and error > 0):
        return f"{_digits(value)} ± {_digits(error)}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}"


def _plain(cell: Cell) -> Any:
    """As JSON knows it, which has no number for NaN."""
    if isinstance(cell, Number):
        if not math.isfinite(cell.value):
            return str(cell)
        return {key: value for key, value in asdict(cell).items() if value not in (None, "")}
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
