"""The real campaign loop on a real node, whose segments end at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from results import Line
from rich.console import Console

from execution_race.on_node import end_at_once
from execution_race.processes import cpu_seconds, family
from execution_race.workplace import config, connect, workers_of_this_machine
from hydragnn_flow.campaign.context import Context
from hydragnn_flow.campaign.dispatch import Dispatch
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Rank, Site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

_ROW = "throughput"
_AT_LEAST = 300.0
# The sampler that takes no time shows the cost of execution.
_SAMPLERS = ("random", "batched_tpe")
_PEER = "tasks alone"


class _WithoutTraining(Pool):
    """Pool whose workers end every segment at once."""

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        return self.submit(end_at_once, self._site.node, ranks, manager=node)


@dataclass(frozen=True)
class _Cost:
    """Cost of one segment or task [s]."""

    seconds: float
    cpu_seconds: dict[str, float]
    """CPU time of the driver, of Parsl's interchange, and of the node's agent."""


class _Meter:
    """Tells what running many segments takes, each.

    Parameters
    ----------
    agent
        The processes of the node.
    """

    def __init__(self, agent: list[psutil.Process]) -> None:
        driver, *interchanges = family(os.getpid())
        self._groups = {"driver": [driver], "interchange": interchanges, "agent": agent}

    def measure(self, count: int, action: Callable[[], object]) -> _Cost:
        """Cost of an action that runs a number of segments."""
        began, before = time.monotonic(), self._cpu_seconds()
        action()
        seconds, after = time.monotonic() - began, self._cpu_seconds()
        each = {name: (after[name] - before[name]) / count for name in after}
        return _Cost(seconds / count, each)

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(processes) for name, processes in self._groups.items()}


def lines(
    folder: Path, workers: int, trials: int, rounds: int, say: Callable[[str], None]
) -> list[Line]:
    """Run searches with one segment for each trial.

    Parameters
    ----------
    folder
        For the run directories.
    workers
        GCDs that take segments.
    trials
        Of each search.
    rounds
        Searches with each sampler, which take turns.
    say
        Told what is being done.
    """
    site = workers_of_this_machine(workers)
    costs: dict[str, list[_Cost]] = {name: [] for name in (_PEER, *_SAMPLERS)}
    with _WithoutTraining(site, folder / "parsl") as pools:
        say("starting an agent")
        connect(pools, workers)
        meter = _Meter(family(pools.submit(os.getpid).result()))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}, tasks without a campaign")
            costs[_PEER].append(meter.measure(trials, lambda: _tasks(pools, workers, trials)))
            for sampler in _SAMPLERS:
                say(f"round {number + 1} of {rounds}, campaign, {sampler}")
                context = _context(folder / f"{sampler}-{number}", config(trials, sampler), site)
                costs[sampler].append(meter.measure(trials, partial(_search, context, pools)))
    found = []
    for sampler in _SAMPLERS:
        what = f"{workers} GCDs, {trials:,} segments that end at once, {sampler}"
        found += _lines(what, costs[sampler], costs[_PEER])
    found[0] = replace(found[0], at_least=_AT_LEAST)
    return found


def _lines(what: str, ours: list[_Cost], alone: list[_Cost]) -> list[Line]:
    """Medians of rounds; the ratio is that of the ratios within them."""
    rates = [1 / cost.seconds for cost in ours]
    limit = 1 / median(cost.seconds for cost in alone)
    ratios = [one.seconds / mine.seconds for mine, one in zip(ours, alone, strict=True)]
    of_each = {
        name: [1e3 * cost.cpu_seconds[name] for cost in ours] for name in ours[0].cpu_seconds
    }
    rate = median(rates)
    return [
        Line(_ROW, what, rate, "1/s", spread=(min(rates), max(rates))),
        Line(
            *(_ROW, what, rate, "1/s", _PEER, limit, median(ratios)),
            spread=(min(ratios), max(ratios)),
        ),
        *(
            Line(
                *(_ROW, f"CPU time of a segment, {name}", median(times), "ms"),
                spread=(min(times), max(times)),
            )
            for name, times in of_each.items()
        ),
    ]


def _search(context: Context, pools: Pool) -> None:
    records = TrialPhase(context).run(Dispatch(context, pools))
    assert {record.state for record in records} == {"complete"}
    assert len(records) == context.config.search.trials


def _context(folder: Path, campaign: RunConfig, site: Site) -> Context:
    directory = RunDirectory(folder)
    directory.record_start(campaign)
    store = prepare_store(campaign.data, 4.0, None, 0, directory.store)
    return Context(campaign, site, directory, store, "token", CampaignView(Console(quiet=True)))


def _tasks(pools: Pool, at_a_time: int, count: int) -> None:
    """Run tasks that do nothing, as many at a time as there are GCDs."""
    running: set[Future[Any]] = set()
    (host,) = pools.hosts()
    for _ in range(count):
        if len(running) == at_a_time:
            _, running = wait(running, return_when=FIRST_COMPLETED)
        running.add(pools.submit(os.getpid, manager=host.name))
    wait(running)
