"""Results of benchmarks, kept in ``docs/results`` and shown on ``docs/benchmarks.md``.

A program makes a :class:`Run` before it measures, and ends it with its tables::

    run = Run("store", packages=["adios2"])
    ...
    run.end([Table(("path", "ratio"), rows)], json, details={"rounds": rounds})

The page shows all of them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import stdev
from typing import Annotated, Any

import typer
import yaml

Checkout = Annotated[
    Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
]
REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "docs" / "results"
# Options that say where to write, which changes no figure.
_PLACES = ("--json", "--scratch")


@dataclass(frozen=True)
class Number:
    """A number with its unit and spread, as far as there are any."""

    value: float
    unit: str = ""
    low: float | None = None
    """Smallest of the turns."""
    high: float | None = None
    """Largest of the turns."""

    def __str__(self) -> str:
        unit = self.unit and f" {self.unit}"
        if self.low is not None and self.high is not None and self.low < self.high:
            return f"{_digits(self.value)}{unit} ({_digits(self.low)}–{_digits(self.high)})"
        return f"{_digits(self.value)}{unit}"


Cell = str | int | float | Number | None
"""Whole numbers are shown in full, others with three significant digits, None as nothing."""


@dataclass(frozen=True)
class Table:
    """Rows below headings, the same in a terminal, in a file and on the page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name: str = ""
    title: str = ""
    """Shown above it."""

    def markdown(self) -> str:
        """The table for a page or a terminal."""
        texts = [[*self.columns], *([_text(cell) for cell in row] for row in self.rows)]
        head, *rows = [f"| {' | '.join(cells)} |" for cells in texts]
        numeric = [_is_numeric(cells) for cells in zip(*self.rows, strict=True)]
        rule = ["--:" if right else "---" for right in numeric or [False] * len(self.columns)]
        lines = [head, f"|{'|'.join(rule)}|", *rows]
        return "\n".join([f"**{self.title}**\n", *lines] if self.title else lines)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Table:
        """The table of a file."""
        rows = [
            [Number(**cell) if isinstance(cell, dict) else cell for cell in row]
            for row in content.pop("rows")
        ]
        return cls(rows=rows, **content)


@dataclass(frozen=True)
class Line:
    """A measured value beside a peer's or a limit's, with its target."""

    what: str
    """Name of the measured quantity."""
    value: float
    unit: str = ""
    peer: str = ""
    """Name of the peer or limit."""
    theirs: float | None = None
    """Value of the peer, in the same unit."""
    ratio: float | None = None
    """Ours over the peer's."""
    at_least: float | None = None
    """Target of the ratio, or of the value where there is no ratio."""
    at_most: float | None = None
    spread: tuple[float, float] | None = None
    """Smallest and largest of the turns: of the ratio, or of the value without one."""

    @property
    def met(self) -> bool | None:
        """True if the target is met; None without one."""
        judged = self.value if self.ratio is None else self.ratio
        if self.at_least is not None:
            return judged >= self.at_least
        return judged <= self.at_most if self.at_most is not None else None

    def cells(self) -> list[Cell]:
        """The row of a table."""
        low, high = self.spread or (None, None)
        value = Number(self.value, self.unit)
        ratio = None if self.ratio is None else Number(self.ratio, "", low, high)
        if ratio is None:
            value = Number(self.value, self.unit, low, high)
        beside = self.peer if self.theirs is None else f"{self.peer}: {_text(self.theirs)}"
        target = "" if self.at_least is None else f"≥ {self.at_least:g}"
        target = target if self.at_most is None else f"≤ {self.at_most:g}"
        return [self.what, value, beside, ratio, target + " MISSED" * (self.met is False)]


def line_table(lines: Sequence[Line]) -> Table:
    """The lines as a table, without columns that hold nothing."""
    columns = ("what", "measured", "beside", "ratio", "target")
    rows = [line.cells() for line in lines]
    filled = [n for n in range(len(columns)) if any(row[n] not in ("", None) for row in rows)]
    return Table([columns[n] for n in filled], [[row[n] for n in filled] for row in rows], "lines")


@dataclass(frozen=True)
class Result:
    """A run of a program, with everything that it depends on."""

    name: str
    """Name of the file, and of the mark on the page."""
    command: str
    date: str
    seconds: float
    """Wall time [s]."""
    commit: str
    """With ``+`` where files differed from it."""
    machine: str
    load: float
    """Processes that ran or waited to, when it began."""
    versions: dict[str, str]
    peers: dict[str, str]
    """Version or commit of each peer."""
    quick: bool
    """True if too little was measured to judge by."""
    tables: list[Table]
    remarks: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    details: Any = None
    """Data that the tables were made of, such as the figures of each turn."""

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_finite(asdict(self)), indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read the file."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["tables"] = [Table.from_json(table) for table in content["tables"]]
        return cls(**content)

    def markdown(self) -> str:
        """Tables and remarks, with machine and commit."""
        parts = [one.markdown() for one in self.tables]
        if self.remarks:
            parts.append("\n".join(f"- {remark}" for remark in self.remarks))
        if self.quick:
            parts.append("**Too little was measured to judge by.**")
        peers = "".join(f"; {name} {number}" for name, number in self.peers.items())
        about = f"{self.machine}, load {self.load:g}{peers}; {self.date}, commit {self.commit}"
        return "\n\n".join([*parts, f"*{about}.*"])


class Run:
    """A run of a benchmark, from when it is made to :meth:`end`.

    Parameters
    ----------
    name
        Name of the result: ``docs/results/NAME.json``.
    packages
        Packages whose versions matter.
    quick
        Whether too little is measured to judge by.
    """

    def __init__(self, name: str, packages: Sequence[str], *, quick: bool = False) -> None:
        self._name, self._quick, self._begin = name, quick, time.monotonic()
        # Before measuring: who edits while it runs must not be credited with it.
        self._commit = commit_of(REPOSITORY) or "unknown"
        self._load = round(os.getloadavg()[0], 1)
        versions = {package: version(package) for package in packages}
        self._versions = {"Python": platform.python_version(), **versions}

    def end(
        self,
        tables: Sequence[Table],
        path: Path | None,
        *,
        remarks: Sequence[str] = (),
        peers: Mapping[str, str] | None = None,
        settings: Any = None,
        details: Any = None,
    ) -> Result:
        """Print the result, and write it where a path is given.

        Parameters
        ----------
        tables
            All that were measured.
        path
            File to write.
        remarks
            Sentences below: targets missed, what could not be measured.
        peers
            Name → version or commit.
        settings
            How much was measured.
        details
            Data that the tables were made of, for the file alone.
        """
        result = Result(
            name=self._name,
            command=command(sys.argv),
            date=time.strftime("%Y-%m-%d"),
            seconds=round(time.monotonic() - self._begin, 1),
            commit=self._commit,
            machine=_machine(),
            load=self._load,
            versions=self._versions,
            peers=dict(peers or {}),
            quick=self._quick,
            tables=[*tables],
            remarks=[*remarks],
            settings=dict(settings or {}),
            details=details,
        )
        print(result.markdown())
        if path is not None:
            result.write(path)
        return result


def standard_error(values: Sequence[float]) -> float:
    """Standard error of a mean; NaN of fewer than two values."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def verdict(difference: float, error: float) -> str:
    """Whether we are ahead of a peer, by an error less it and its standard error."""
    if abs(difference) <= 2 * error:
        return "equal"
    return "ahead" if difference < 0 else "behind"


def commit_of(checkout: Path) -> str:
    """Commit of a git checkout, with ``+`` where files differ from it; empty without one."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=8", "HEAD") + "+" * bool(changed)


def run_config(name: str) -> dict[str, Any]:
    """Contents of a run configuration of ``benchmarks/configs``."""
    text = (REPOSITORY / "benchmarks" / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def peer_commit(hydragnn: Path | None) -> dict[str, str]:
    """HydraGNN's entry of `peers`."""
    return {} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"}


def say(text: str) -> None:
    """Say what is being done."""
    print(f"  {text}", file=sys.stderr, flush=True)


def command(given: Sequence[str]) -> str:
    """Command line of a program, each path in it replaced by its option's name in capitals."""
    program, *words = given
    shown, option = [f"python benchmarks/{Path(program).name}"], ""
    for word in words:
        if word.startswith("--"):
            option = word
        elif os.sep in word or Path(word).exists():
            word = (option or "path").lstrip("-").upper()
        if option not in _PLACES:
            shown.append(word)
    return " ".join(shown)


def _machine() -> str:
    processor, cpuinfo = platform.machine(), Path("/proc/cpuinfo")
    for text in cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ():
        if text.startswith("model name"):
            processor = text.partition(":")[2].strip()
    return f"{processor}, {len(os.sched_getaffinity(0))} cores"


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return _digits(cell) if isinstance(cell, float) else str(cell).replace("|", "\\|")


def _is_numeric(cells: Sequence[Cell]) -> bool:
    """Tell a column of numbers from one with words."""
    words = [c for c in cells if isinstance(c, str) and c and not any(map(str.isdigit, c))]
    return not words and any(isinstance(cell, int | float | Number) for cell in cells)


def _digits(value: float) -> str:
    """Three significant digits."""
    value = float(value)  # a file has words for what is not finite
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{value:#.3g}"


def _finite(content: Any) -> Any:
    """With words for numbers that JSON does not have, and without empty fields of numbers."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content
