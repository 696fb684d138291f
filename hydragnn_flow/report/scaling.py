"""Scaling study of a run's network: its file, its table, and where more GCDs stop paying."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.box import SIMPLE
from rich.table import Table

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import read_json, sound
from hydragnn_flow.report.profile import WORDS, shares
from hydragnn_flow.report.text import number
from hydragnn_flow.training.profile_result import TrainingProfile

Kind = Literal["weak", "strong"]
KINDS: tuple[Kind, ...] = ("weak", "strong")
MEANINGS: dict[Kind, str] = {
    "weak": "weak: a batch of each GCD",
    "strong": "strong: one batch over all",
}
"""The kinds of scaling in words."""
FOLDER = "scaling"
"""Folder of a run directory with its studies."""
LEAST = 0.5
"""Efficiency below which GCDs do not pay: half of their time is lost."""
_VERSION = 1
_logger = logging.getLogger(__name__)
_CAPTION = "graphs and ms of a step; efficiency, shares and their sum in %"
_SHORT = {
    "efficiency": "effic.",
    "reading": "read",
    "computing": "comp.",
    "exchanging": "exch.",
    "waiting": "wait",
    "add up to": "sum",
}


@dataclass(frozen=True)
class Point:
    """A network on a number of GCDs.

    Attributes
    ----------
    gcds, nodes
        How many, and on how many nodes.
    batches
        In a step: 1, or one of each GCD.
    profile
        What was measured; None if nothing could be.
    fault
        Why nothing was measured.
    """

    gcds: int
    batches: int
    nodes: int = 0
    profile: TrainingProfile | None = None
    fault: str = ""

    @property
    def throughput(self) -> float:
        """Graphs that all GCDs train in a second; 0 if nothing was measured."""
        return 0.0 if self.profile is None else self.profile.graphs / self.profile.seconds


@dataclass(frozen=True)
class Study:
    """Weak and strong scaling of a network.

    Attributes
    ----------
    run, trial
        Name of the run, and the trial whose network it is; None for that of the configuration.
    site, device
        Where it was measured.
    seconds
        For each mode of a profile [s].
    network
        HydraGNN's JSON, so that a study of another network is known as such.
    points
        In the order in which they were measured.
    """

    run: str
    trial: int | None
    site: str
    device: str
    seconds: float
    network: dict[str, Any]
    points: tuple[Point, ...] = ()

    @property
    def name(self) -> str:
        """Name of its files, without an ending."""
        return self.site if self.trial is None else f"{self.site}-trial-{self.trial}"

    def path(self, run: Path) -> Path:
        """Its file in a run directory."""
        return run / FOLDER / f"{self.name}.json"

    @property
    def about(self) -> dict[str, Any]:
        """All but the points and the name of the run, which may be moved: if it is the same, so is
        the study."""
        return asdict(replace(self, points=(), run=""))

    def of(self, kind: Kind) -> list[Point]:
        """What was measured of a kind of scaling, the narrowest first; one GCD is of both."""
        found = [
            point
            for point in self.points
            if point.profile is not None and point.batches == (point.gcds if kind == "weak" else 1)
        ]
        return sorted(found, key=lambda point: point.gcds)

    def efficiency(self, point: Point, kind: Kind) -> float:
        """Graphs of each GCD beside those of each GCD of the narrowest."""
        first = self.of(kind)[0]
        return (point.throughput / point.gcds) / (first.throughput / first.gcds)

    def with_point(self, point: Point) -> Study:
        """The study and one point more, in the place of an earlier one of that width."""
        key = (point.gcds, point.batches)
        others = tuple(one for one in self.points if (one.gcds, one.batches) != key)
        return replace(self, points=(*others, point))

    def write(self, run: Path) -> Path:
        """Write its file into a run directory, at once."""
        path = self.path(run)
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"version": _VERSION, **asdict(self)})
        return path

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study's file.

        Raises
        ------
        InputError
            If it is damaged or of another version.
        """
        remedy = "delete it and measure again"
        values = read_json(path, remedy)
        with sound(path, remedy):
            if values.pop("version") != _VERSION:
                raise ValueError("of another version")
            return cls(**{**values, "points": tuple(map(_point, values["points"]))})


def _point(values: Mapping[str, Any]) -> Point:
    profile = values["profile"]
    known = None if profile is None else TrainingProfile.from_dict(profile)
    return Point(**{**values, "profile": known})


def studies(run: Path) -> list[Study]:
    """The studies of a run, by name; files that are none are told of and passed over."""
    found = []
    for path in sorted((run / FOLDER).glob("*.json")):
        try:
            found.append(Study.read(path))
        except InputError as error:
            _logger.warning("%s", error)
    return found


def scaling_table(study: Study) -> pd.DataFrame:
    """A row for each kind and number of GCDs.

    Returns
    -------
    pandas.DataFrame
        ``scaling``, ``GCDs``, ``nodes``, ``graphs`` of a step, ``ms`` of a step, ``graphs/s``,
        ``efficiency`` [%], the share of each part of the step [%], and what the parts ``add up to``
        [% of the same steps timed as a whole].
    """
    rows = []
    for kind in KINDS:
        for point in study.of(kind):
            assert point.profile is not None
            parts = shares(point.profile.parts)
            rows.append(
                {
                    "scaling": kind,
                    "GCDs": point.gcds,
                    "nodes": point.nodes,
                    "graphs": round(point.profile.graphs, 1),
                    "ms": 1e3 * point.profile.seconds,
                    "graphs/s": point.throughput,
                    "efficiency": 100 * study.efficiency(point, kind),
                    **{name: 100 * parts[name] for name in WORDS},
                    "add up to": 100 * (1 + point.profile.closure),
                }
            )
    return pd.DataFrame(rows)


def scaling_grid(study: Study) -> Table:
    """The same for a terminal of 80 columns."""
    table = Table(box=SIMPLE, padding=0, caption=_CAPTION)
    for column in ("scaling", "GCDs", "nodes", "graphs", "ms", "graphs/s", *_SHORT.values()):
        table.add_column(column, justify="left" if column == "scaling" else "right", no_wrap=True)
    for row in scaling_table(study).to_dict("records"):
        table.add_row(
            str(row["scaling"]),
            *(str(row[name]) for name in ("GCDs", "nodes")),
            *(number(row[name]) for name in ("graphs", "ms", "graphs/s")),
            *(f"{row[name]:.0f}" for name in _SHORT),
        )
    return table


def verdicts(study: Study) -> list[str]:
    """Sentences about the numbers of GCDs that pay, and what could not be measured."""
    found = [_verdict(study, kind, study.of(kind)) for kind in KINDS]
    faults = [f"{_on(point)}: not measured: {point.fault}" for point in study.points if point.fault]
    return [*filter(None, found), *faults]


def _verdict(study: Study, kind: Kind, points: Sequence[Point]) -> str:
    """Where GCDs stop paying."""
    if len(points) < 2:
        return ""
    pays = points[0]
    for point in points[1:]:
        efficiency = study.efficiency(point, kind)
        if efficiency < LEAST:
            side_by_side = point.gcds / pays.gcds * pays.throughput / point.throughput
            beyond = point.nodes > 1 and pays.nodes == 1
            verb = "does" if pays.gcds == 1 else "do"
            more = "a second node does" if beyond else f"more than {_on(pays)} {verb}"
            return (
                f"{kind} scaling: {more} not pay: on {_on(point)} each GCD trains "
                f"{100 * efficiency:.0f} % of the graphs that it trains on {points[0].gcds}; "
                f"trials side by side on {_on(pays)} each train {number(side_by_side)} times as "
                "many together"
            )
        pays = point
    return (
        f"{kind} scaling: {_on(pays)} pay: each GCD trains "
        f"{100 * study.efficiency(pays, kind):.0f} % of the graphs that it trains on "
        f"{points[0].gcds}"
    )


def _on(point: Point) -> str:
    gcds = f"{point.gcds} GCD" + ("s" if point.gcds > 1 else "")
    return f"{gcds} of {point.nodes} nodes" if point.nodes > 1 else gcds
