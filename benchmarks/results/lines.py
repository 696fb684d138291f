"""Measured values beside those of peers and limits, with targets: what most tables hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from results.table import Cell, Number, Table


@dataclass(frozen=True)
class Line:
    """One measured value, with its peer and its target."""

    row: str
    """The row it belongs to, a name for ``--only``."""
    what: str
    """Name of the measured quantity."""
    value: float
    unit: str
    peer: str = ""
    """Name of the peer or limit."""
    peer_value: float | None = None
    """Measured for the peer, in the same unit."""
    ratio: float | None = None
    """Ours over the peer's."""
    at_least: float | None = None
    """Target of the ratio, or of the value where there is no ratio; None if there is none."""
    at_most: float | None = None
    spread: tuple[float, float] | None = None
    """Smallest and largest of the turns: of the ratio, or of the value where there is no ratio."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        judged = self.value if self.ratio is None else self.ratio
        if self.at_least is not None:
            return judged >= self.at_least
        return judged <= self.at_most if self.at_most is not None else None

    def cells(self) -> list[Cell]:
        """As a row of :func:`table_of`."""
        low, high = self.spread or (None, None)
        if self.ratio is None:
            value, ratio = Number(self.value, self.unit, low, high), None
        else:
            value, ratio = Number(self.value, self.unit), Number(self.ratio, "", low, high)
        target = ""
        if self.at_least is not None:
            target = f"≥ {self.at_least:g}"
        elif self.at_most is not None:
            target = f"≤ {self.at_most:g}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return [self.what, value, self.peer, self.peer_value, ratio, target, verdict]


def table_of(lines: Sequence[Line], name: str = "", title: str = "") -> Table:
    """The lines as a table."""
    columns = ("path", "measured", "compared with", "its value", "ratio", "target", "")
    return Table(columns, [line.cells() for line in lines], name, title)


def missed(lines: Sequence[Line]) -> str:
    """A sentence that names the targets missed."""
    names = [f"{line.what}, {line.peer}".rstrip(", ") for line in lines if line.met is False]
    return f"targets missed: {'; '.join(names) or 'none'}"


def behind(lines: Sequence[Line], limits: Collection[str] = ()) -> str:
    """A sentence that names what is slower than a peer, if anything is.

    Parameters
    ----------
    lines
        Their ratios are of speeds.
    limits
        Peers that are limits, behind which everything is.
    """
    names = [
        f"{line.what}, than {line.peer} ({line.ratio:.2f})"
        for line in lines
        if line.ratio is not None and line.ratio < 1 and line.peer not in limits
    ]
    return f"slower: {'; '.join(names) or 'nothing'}"
