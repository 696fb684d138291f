"""From asking for a block to the first training step in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

from results import Line

from execution_race.on_worker import run_first
from execution_race.workplace import Segments, connect
from hydragnn_flow.execution import Job, Site, run_jobs
from hydragnn_flow.execution.pools.pools import Pools

_ROW = "start"


@dataclass(frozen=True)
class _Parts:
    """Of the time from asking for a block to the first step in it [s]."""

    launch: float
    worker_pool: float
    notice: float
    worker: float
    lane: float
    store: float
    model: float


_MEANING = {
    "launch": "scheduler and launcher, until Parsl's worker pool starts",
    "worker_pool": "worker pool, until it starts its workers",
    "notice": "until the driver has noticed",
    "worker": "worker's imports, until it begins its first task",
    "lane": "lane's imports, torch among them",
    "store": "opening the store, and all that is done once in a process",
    "model": "network, model, plan and first batch",
}


def lines(folder: Path, site: Site, starts: int, say: Callable[[str], None]) -> list[Line]:
    """Medians over some blocks, each the first of a driver.

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
    found: list[_Parts] = []
    for start in range(starts):
        say(f"block {start + 1} of {starts}, {site.name}")
        found.append(_start(folder / "parsl", site, segments))
    totals = [sum(vars(parts).values()) for parts in found]
    return [
        Line(_ROW, f"block to first step, site {site.name}", median(totals), "s"),
        *(
            Line(
                _ROW,
                f"of it, {_MEANING[field.name]}",
                median(getattr(parts, field.name) for parts in found),
                "s",
            )
            for field in fields(_Parts)
        ),
    ]


def _start(directory: Path, site: Site, segments: Segments) -> _Parts:
    with Pools(site, directory) as pools:
        asked = time.time()
        connect(pools, 1)
        seen = time.time()
        first = pools.submit("gcd", run_first, site.node, Job(segments.next())).result()
        # With all imported and the store open, what remains of a segment is its own.
        (again,) = pools.submit("gcd", run_jobs, site.node, "b2", [Job(segments.next())]).result()
    model = again.ended - again.started
    return _Parts(
        launch=first.manager - asked,
        worker_pool=first.worker - first.manager,
        notice=seen - first.worker,
        worker=first.task - seen,
        lane=first.segment - first.task,
        store=first.first_step - first.segment - model,
        model=model,
    )
