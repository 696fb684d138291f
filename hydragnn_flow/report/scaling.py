"""Scaling study and profile of a run's network: files, tables, and where more GCDs stop paying."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, ScalarFormatter
from rich.console import Group, RenderableType

from hydragnn_flow.errors import InputError
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import read_json, sound
from hydragnn_flow.report import style
from hydragnn_flow.report.tables import number, terminal
from hydragnn_flow.training.profile_result import Parts, TrainingProfile

WORDS = {
    "reading": "waiting for data",
    "computing": "computing",
    "exchanging": "exchanging gradients",
    "waiting": "waiting for other ranks",
}
"""Words for the parts of a training step; a rank is a process of the distributed job."""
_ANSWERS = {
    "reading": "waits for data: keep the store in memory (data.mode), on the nodes' own disks, or "
    "give a step more graphs",
    "computing": "computes: nothing to gain from I/O, or from a faster network",
    "exchanging": "waits for gradients: larger buckets (Training.ddp.bucket_cap_mb) or fewer GCDs",
    "waiting": "waits for other ranks: batches of more equal size (Training.Batching), or nodes "
    "that are equally fast",
}


def shares(parts: Parts) -> dict[str, float]:
    """Return the fraction of a training step's time that each part takes, such as ``reading``."""
    return {name: getattr(parts, name) / parts.seconds for name in WORDS}


def answer(profile: TrainingProfile) -> str:
    """Return a sentence on what takes most of the time of a training step, with a remedy."""
    name, share = max(shares(profile.parts).items(), key=lambda item: item[1])
    return f"{share:.0%} of the step {_ANSWERS[name]}".replace("%", " %", 1)


def profile_tables(profile: TrainingProfile, nodes: int = 1) -> RenderableType:
    """Return a table of where a training step's time goes [ms], and sentences on speed and memory.

    Parameters
    ----------
    profile
        Profile of the training steps.
    nodes
        Number of nodes that the GCDs of the profile belong to.
    """
    parts = [
        (WORDS[name], 1e3 * getattr(profile.parts, name), f"{share:.0%}")
        for name, share in shares(profile.parts).items()
    ]
    added = f"{100 * (1 + profile.closure):.1f} % of these steps as a whole"
    parts.append(("together", 1e3 * profile.parts.seconds, added))
    where = f"{profile.ranks} x {profile.device}" + (f" on {nodes} nodes" if nodes > 1 else "")
    joules = profile.joules_per_graph
    facts = [
        f"{profile.steps} steps of {profile.graphs:.1f} graphs, {profile.atoms:,.0f} atoms, "
        f"{profile.edges:,.0f} edges over {where}: "
        f"{profile.graphs / profile.seconds:,.4g} graphs/s",
        f"peak memory {profile.peak_memory_gib:.3f} GiB of a process",
        "energy: nothing here counts it" if joules is None else f"energy {joules:.3g} J a graph",
    ]
    shown = pd.DataFrame(parts, columns=["a step's time goes into", "ms", "share"])
    return Group(terminal(shown), *facts, answer(profile))


Kind = Literal["weak", "strong"]
KINDS: tuple[Kind, ...] = ("weak", "strong")
MEANINGS: dict[Kind, str] = {
    "weak": "weak: a batch of each GCD",
    "strong": "strong: one batch over all",
}
"""Words for the kinds of scaling."""
FOLDER = "scaling"
"""Name of the folder with scaling studies in a run directory."""
_VERSION = 2
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Point:
    """Measurement of a scaling study: the speed of a network on a number of GCDs.

    Attributes
    ----------
    gcds, nodes
        Number of GCDs, and number of the nodes that these GCDs belong to.
    batches
        Number of batches in a training step: 1, or as many as GCDs.
    profile
        Profile of the training steps; None if it could not be measured.
    fault
        Reason why nothing was measured; empty otherwise.
    """

    gcds: int
    batches: int
    nodes: int = 0
    profile: TrainingProfile | None = None
    fault: str = ""

    @property
    def throughput(self) -> float:
        """Number of graphs that all GCDs train in a second; 0 if nothing was measured."""
        return 0.0 if self.profile is None else self.profile.graphs / self.profile.seconds


@dataclass(frozen=True)
class Study:
    """Scaling study: the speed of one network on several numbers of GCDs, weak and strong.

    Attributes
    ----------
    run, trial
        Name of the run, and number of the trial whose network is measured; None for the network of
        the run.
    site, device
        Name of the site, and device of the measurement.
    seconds
        Duration of each profile [s].
    network
        JSON of the network, by which a study of another network is recognised.
    points
        Points in the order in which they were measured.
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
        """Name of the study's files without suffix: site, and trial if there is one."""
        return self.site if self.trial is None else f"{self.site}-trial-{self.trial}"

    def path(self, run: Path) -> Path:
        """Return the path of the study's file in a run directory."""
        return run / FOLDER / f"{self.name}.json"

    @property
    def about(self) -> dict[str, Any]:
        """Fields that identify the study: all but ``points`` and ``run``; a run may be renamed."""
        return asdict(replace(self, points=(), run=""))

    def of(self, kind: Kind) -> list[Point]:
        """Return the measured points of weak or strong scaling, sorted by number of GCDs."""
        found = [
            point
            for point in self.points
            if point.profile is not None and point.batches == (point.gcds if kind == "weak" else 1)
        ]
        return sorted(found, key=lambda point: point.gcds)

    def efficiency(self, point: Point, kind: Kind) -> float:
        """Return the scaling efficiency: throughput per GCD over that on the fewest GCDs.

        Only measured points of the same ``kind`` of scaling are compared.
        """
        first = self.of(kind)[0]
        return (point.throughput / point.gcds) / (first.throughput / first.gcds)

    def with_point(self, point: Point) -> Study:
        """Return a copy of the study with a measured point added.

        It replaces a point with the same numbers of GCDs and batches.
        """
        key = (point.gcds, point.batches)
        others = tuple(one for one in self.points if (one.gcds, one.batches) != key)
        return replace(self, points=(*others, point))

    def write(self, run: Path) -> Path:
        """Write the study to its file in a run directory atomically, and return the path."""
        path = self.path(run)
        path.parent.mkdir(exist_ok=True)
        write_json(path, {"version": _VERSION, **asdict(self)})
        return path

    @classmethod
    def read(cls, path: Path) -> Study:
        """Read a study from the file that :meth:`write` made.

        Raises
        ------
        InputError
            If the file is damaged or of another version.
        """
        remedy = "delete it and measure again"
        values = read_json(path, remedy)
        with sound(path, remedy):
            if values.pop("version") != _VERSION:
                raise ValueError("of another version")
            return msgspec.convert(values, cls)


def studies(run: Path) -> list[Study]:
    """Return the scaling studies of a run directory, by name; damaged files are skipped."""
    found = []
    for path in sorted((run / FOLDER).glob("*.json")):
        try:
            found.append(Study.read(path))
        except InputError as error:
            _logger.warning("%s", error)
    return found


def scaling_table(study: Study) -> pd.DataFrame:
    """Return a table of speed and efficiency: a row for each kind of scaling and number of GCDs.

    Returns
    -------
    pandas.DataFrame
        ``scaling`` (kind), number of ``GCDs`` and ``nodes``, ``graphs`` of a step, time of a
        ``step`` [ms], ``speed`` [graphs/s], ``efficiency`` [%], the share of each part of the step
        [%], and the ``sum`` of the parts [% of the same steps timed as a whole].
    """
    rows = []
    for kind in KINDS:
        for point in study.of(kind):
            assert point.profile is not None
            efficiency = 100 * study.efficiency(point, kind)
            parts = [100 * of for of in shares(point.profile.parts).values()]
            graphs, step = round(point.profile.graphs, 1), 1e3 * point.profile.seconds
            row = kind, point.gcds, point.nodes, graphs, step, point.throughput, efficiency
            rows.append((*row, *parts, 100 * (1 + point.profile.closure)))
    columns = ["scaling", "GCDs", "nodes", "graphs", "step", "speed", "efficiency"]
    return pd.DataFrame(rows, columns=[*columns, *WORDS, "sum"])


def scaling_grid(study: Study) -> Group:
    """Return the table of a scaling study for the terminal, with headings for 80 columns."""
    names = {"reading": "read", "computing": "comp.", "exchanging": "exch.", "waiting": "wait"}
    table = scaling_table(study).round(dict.fromkeys(("efficiency", *WORDS, "sum"), 0))
    return terminal(table.rename(columns=names), caption="shares of a step, and their sum, in %")


def verdicts(study: Study) -> list[str]:
    """Return sentences on how many GCDs are worth using, and on measurements that failed."""
    found = [_verdict(study, kind, study.of(kind)) for kind in KINDS]
    faults = [f"{_on(point)}: not measured: {point.fault}" for point in study.points if point.fault]
    return [*filter(None, found), *faults]


def _verdict(study: Study, kind: Kind, points: Sequence[Point]) -> str:
    """Return a sentence on the number of GCDs beyond which half of their time is lost.

    ``points`` are the measured points of ``kind``, by number of GCDs; with fewer than two, the
    sentence is empty.
    """
    if len(points) < 2:
        return ""
    efficient = [study.efficiency(point, kind) for point in points]
    # GCDs do not pay where half of their time is lost.
    pay = next((n for n, of in enumerate(efficient) if of < 0.5), len(points))
    at = min(pay, len(points) - 1)
    point, pays = points[at], points[pay - 1]
    train = f"each GCD trains {100 * efficient[at]:.0f} % of the graphs that it trains on"
    if point is pays:
        return f"{kind} scaling: {_on(pays)} pay: {train} {points[0].gcds}"
    side_by_side = number(point.gcds / pays.gcds * pays.throughput / point.throughput)
    return (
        f"{kind} scaling: beyond {_on(pays)} it does not pay: on {_on(point)} {train} "
        f"{points[0].gcds}; trials side by side on {_on(pays)} each train {side_by_side} times as "
        f"many together"
    )


def _on(point: Point) -> str:
    gcds = f"{point.gcds} GCD" + ("s" if point.gcds > 1 else "")
    return f"{gcds} of {point.nodes} nodes" if point.nodes > 1 else gcds


def scaling_figure(study: Study) -> Figure:
    """Draw throughput against GCDs, and the parts of a step of weak and of strong scaling.

    Parameters
    ----------
    study
        Study with at least one measured point.
    """
    figure = style.new_figure(style.WIDE, 3.6)
    (speed, *panels), table = figure.subplots(1, 3), scaling_table(study)
    colours = style.BLUE, style.GREEN, style.ORANGE, style.PURPLE
    for kind, colour, axes in zip(KINDS, colours, panels, strict=False):
        own = table[table["scaling"] == kind].set_index("GCDs")
        ideal = own["speed"].iloc[:1].sum() / own.index.min() * own.index
        speed.plot(own.index, ideal, "--", color=style.SOFT, lw=1.0, zorder=1)
        speed.plot(own.index, own["speed"], "o-", color=colour, label=kind)
        base = np.zeros(len(own))
        for name, look in zip(WORDS, colours, strict=True):
            axes.bar(own.index.astype(str), own[name], bottom=base, color=look, label=WORDS[name])
            base = base + own[name].to_numpy()
        axes.set(ylim=(0, 100), xlabel="GCDs", ylabel="part of a step [%]")
        axes.set_title(MEANINGS[kind], fontsize=11, color=style.INK, loc="left")
        style.tidy(axes, grid="y")
    style.value_axis(speed, "y", table["speed"].to_numpy())
    speed.set_xscale("log", base=2)
    speed.xaxis.set_major_locator(FixedLocator(sorted({*table["GCDs"]})))
    speed.xaxis.set_major_formatter(ScalarFormatter())
    speed.set(xlabel="GCDs", ylabel="graphs in a second")
    speed.legend(frameon=False, fontsize=10)
    style.tidy(speed)
    style.legend_above(figure, panels[0].get_legend_handles_labels()[0])
    return figure
