"""A benchmark's result as a file and as text, and the run that makes it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results.code import REPOSITORY, changed, commit_of, fingerprints, is_clean
from results.machine import command, load, machine, versions
from results.table import Table

FOLDER = REPOSITORY / "docs" / "results"
_FORMAT = 1


@dataclass(frozen=True)
class Result:
    """Result of a run, with everything that it depends on."""

    name: str
    """Name of the file, and of the mark on the page."""
    command: str
    date: str
    seconds: float
    """Wall time."""
    commit: str
    clean: bool
    """Whether all files that git knows were as in that commit."""
    measures: list[str]
    """Files and folders whose code was measured."""
    code: dict[str, str]
    """Their files' fingerprints."""
    machine: dict[str, Any]
    load: dict[str, float]
    """Processes that ran or waited to, before and after."""
    versions: dict[str, str]
    quick: bool
    """Whether too little was measured to judge by."""
    tables: list[Table]
    remarks: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    details: Any = None
    """Data that the tables were made of, such as the figures of each turn."""

    def write(self, path: Path) -> None:
        """Write the file."""
        content = {"format": _FORMAT, **_finite(asdict(self))}
        content["tables"] = [_finite(table.to_json()) for table in self.tables]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Read the file.

        Raises
        ------
        ValueError
            Where another version of this program wrote it.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format", None) != _FORMAT:
            raise ValueError(f"{path} has another format: run its command again")
        content["tables"] = [Table.from_json(table) for table in content["tables"]]
        return cls(**content)

    def changed(self) -> list[str]:
        """Files whose code is no longer what was measured."""
        return changed(self.measures, self.code)

    def markdown(self) -> str:
        """Tables and remarks, with machine and versions."""
        parts = [table.markdown() for table in self.tables]
        if self.remarks:
            parts.append("\n".join(f"- {remark}" for remark in self.remarks))
        if self.quick:
            parts.append("**Too little was measured to judge by.**")
        return "\n\n".join([*parts, self._about()])

    def _about(self) -> str:
        """One sentence on the machine, one on the code."""
        there, known = self.machine, ", ".join(f"{key} {v}" for key, v in self.versions.items())
        state = "" if self.clean else ", with changes"
        return (
            f"*{there['processor']}, {there['cores']} logical cores, {there['memory_gib']:g} GiB; "
            f"load {self.load['before']:g} before, {self.load['after']:g} after; "
            f"{_duration(self.seconds)}. {known}. "
            f"{self.date}, commit {self.commit or 'unknown'}{state}.*"
        )


class Run:
    """A run of a benchmark, from when it is made to :meth:`end`.

    Parameters
    ----------
    name
        Of the result: ``docs/results/NAME.json``, ``<!-- result: NAME -->`` on a page.
    measures
        Files and folders whose code is measured, or patterns of these, relative to the repository:
        the package's modules and the benchmark's own. A result says so when their code has changed.
    packages
        Whose versions matter.
    quick
        Whether too little is measured to judge by.
    """

    def __init__(
        self, name: str, measures: Sequence[str], packages: Sequence[str], *, quick: bool = False
    ) -> None:
        self._name, self._measures, self._quick = name, sorted(measures), quick
        # Now: who edits while it runs must not be credited with it.
        self._code = fingerprints(self._measures)
        self._commit, self._clean = commit_of(REPOSITORY), is_clean(REPOSITORY)
        self._versions, self._load = versions(packages), load()
        self._start = time.monotonic()

    def end(
        self,
        tables: Sequence[Table],
        *,
        remarks: Sequence[str] = (),
        peers: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        details: Any = None,
    ) -> Result:
        """The result.

        Parameters
        ----------
        tables
            What is shown.
        remarks
            Shown below, a line each: what could not be measured, which targets were missed.
        peers
            Name → version or commit of the peers.
        settings
            How much was measured.
        details
            What the tables were made of, for the file alone.
        """
        return Result(
            name=self._name,
            command=command(),
            date=time.strftime("%Y-%m-%d"),
            seconds=round(time.monotonic() - self._start, 1),
            commit=self._commit,
            clean=self._clean,
            measures=self._measures,
            code=self._code,
            machine=machine(),
            load={"before": self._load, "after": load()},
            versions=self._versions | dict(peers or {}),
            quick=self._quick,
            tables=[*tables],
            remarks=[*remarks],
            settings=dict(settings or {}),
            details=details,
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def _finite(content: Any) -> Any:
    """With null for numbers that JSON does not have."""
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
