"""What a row found, as a line of the table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

_PACKAGES = ("adios2", "numpy", "torch", "torch-geometric")
_NUMBERS = ("measured", "its value", "ratio", "target")


@dataclass(frozen=True)
class Line:
    """One measured value and what it is held against."""

    row: str
    """The row it belongs to, a name for ``--only``."""
    what: str
    """What was measured."""
    value: float
    unit: str
    peer: str = ""
    """What it is compared with."""
    peer_value: float | None = None
    """Measured for the peer, in the same unit."""
    ratio: float | None = None
    """Ours over the peer's."""
    at_least: float | None = None
    """Target of the ratio, or of the value where there is no ratio; None where there is none."""
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        judged = self.value if self.ratio is None else self.ratio
        if self.at_least is not None:
            return judged >= self.at_least
        return judged <= self.at_most if self.at_most is not None else None


def table(lines: Sequence[Line]) -> Table:
    """The lines as a table, which is Markdown too."""
    shown = Table(box=box.MARKDOWN, title=None)
    for heading in ("path", "measured", "compared with", "its value", "ratio", "target", ""):
        shown.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    for line in lines:
        target = ""
        if line.at_least is not None:
            target = f"≥ {line.at_least:g}"
        elif line.at_most is not None:
            target = f"≤ {line.at_most:g}"
        shown.add_row(
            line.what,
            f"{_number(line.value)} {line.unit}",
            line.peer,
            "" if line.peer_value is None else _number(line.peer_value),
            "" if line.ratio is None else _number(line.ratio),
            target,
            {True: "met", False: "MISSED", None: ""}[line.met],
        )
    return shown


def write_json(
    path: Path, settings: dict[str, Any], lines: Sequence[Line], left_out: Sequence[str]
) -> None:
    """Write everything that is known about the run."""
    content = {
        "machine": machine(),
        "settings": settings,
        "lines": [{**asdict(line), "met": line.met} for line in lines],
        "left_out": list(left_out),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    processor = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for text in cpuinfo.read_text().splitlines():
            if text.startswith("model name"):
                processor = text.partition(":")[2].strip()
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _number(value: float) -> str:
    """Three significant digits."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
