"""From asking for a block to the first training step in it.

    python -m execution_race.start SITE FOLDER STARTS

prints the times as JSON, for :mod:`execution_race.private_slurm`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

from results import Cell, Number, Table

from execution_race.on_node import to_first_step
from execution_race.workplace import Segments, connect
from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.pools.pool import Pool


@dataclass(frozen=True)
class Stages:
    """Stages of the time from asking for a block to the first step in it [s]."""

    launch: float
    agent: float
    trainer: float
    store: float
    model: float


_MEANING = {
    "launch": "scheduler and launcher, until the node's agent starts",
    "agent": "agent's imports, until the driver has noticed it and its first task begins",
    "trainer": "trainer process's imports, torch among them",
    "store": "opening the store, and all that is done once in a process",
    "model": "network, model, plan and first batch",
}


def measure(folder: Path, site: Site, starts: int, say: Callable[[str], None]) -> list[Stages]:
    """Some blocks, each the first of a driver.

    Parameters
    ----------
    folder
        For the run directory, where driver and workers can see it.
    site
        Where the blocks are.
    starts
        How many blocks.
    say
        Told what is being done.
    """
    segments = Segments(folder)
    found: list[Stages] = []
    for start in range(starts):
        say(f"block {start + 1} of {starts}, {site.name}")
        found.append(_start(folder / "parsl", site, segments))
    return found


def table(starts: Mapping[str, Sequence[Stages]]) -> Table:
    """Medians, smallest and largest of the blocks of each site."""
    rows: list[list[Cell]] = [["all of it"]]
    rows += [[_MEANING[field.name]] for field in fields(Stages)]
    for of_site in starts.values():
        values = [[sum(vars(stages).values()) for stages in of_site]]
        values += [[getattr(stages, field.name) for stages in of_site] for field in fields(Stages)]
        for row, seconds in zip(rows, values, strict=True):
            row.append(Number(median(seconds), "", min(seconds), max(seconds)))
    title = "from asking for a block to its first step [s]"
    return Table(["", *starts], rows, "blocks", title)


def _start(directory: Path, site: Site, segments: Segments) -> Stages:
    with Pool(site, directory) as pools:
        asked = time.time()
        connect(pools, 1)
        first, again = (
            pools.submit(to_first_step, site.node, segments.next()).result() for _ in range(2)
        )
    # With all imported and the store open, what remains of a segment is its own.
    model = again.first_step - again.segment
    return Stages(
        launch=first.agent - asked,
        agent=first.task - first.agent,
        trainer=first.segment - first.task,
        store=first.first_step - first.segment - model,
        model=model,
    )


if __name__ == "__main__":
    measured = measure(Path(sys.argv[2]), load_site(sys.argv[1]), int(sys.argv[3]), lambda _: None)
    print(json.dumps([asdict(stages) for stages in measured]))
