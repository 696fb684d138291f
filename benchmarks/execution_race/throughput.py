"""The real campaign loop on real workers, whose segments end at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

import psutil
from graph_store.report import Line
from rich.console import Console

from execution_race.on_worker import Worker, end_at_once, sign_in
from execution_race.processes import cpu_seconds, family
from execution_race.workplace import config, connect, workers_of_this_machine
from hydragnn_flow.campaign.segments import Context
from hydragnn_flow.campaign.trials import TrialPhase
from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Site
from hydragnn_flow.execution.pools import PoolName, Pools
from hydragnn_flow.report.progress import CampaignView
from hydragnn_flow.run_directory import RunDirectory

_ROW = "throughput"
# Long enough for all tasks to be with their workers before the first ends.
_SECONDS_TO_SIGN_IN = 0.5
_AT_LEAST = 300.0
# What execution takes is told by the sampler that takes nothing.
_SAMPLERS = ("random", "batched_tpe")
_PEER = "tasks alone"


class _WithoutTraining(Pools):
    """Pools whose workers end every segment at once."""

    def submit(self, pool: PoolName, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        return super().submit(pool, end_at_once, *arguments)


class _Clock:
    """Wall and CPU time from its making on."""

    def __init__(self, workers: list[psutil.Process]) -> None:
        driver, *interchanges = family(os.getpid())
        self._groups = {"driver": [driver], "interchange": interchanges, "workers": workers}
        self._began, self._before = time.monotonic(), self._cpu_seconds()

    def read(self) -> tuple[float, dict[str, float]]:
        """Seconds passed, and CPU seconds of the driver, of Parsl's interchanges, of workers."""
        seconds, now = time.monotonic() - self._began, self._cpu_seconds()
        return seconds, {name: now[name] - self._before[name] for name in now}

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(processes) for name, processes in self._groups.items()}


def lines(folder: Path, workers: int, trials: int, say: Callable[[str], None]) -> list[Line]:
    """Run searches of so many trials, one segment each.

    Parameters
    ----------
    folder
        For the run directory.
    workers
        Processes that take segments.
    trials
        Of each search.
    say
        Told what is being done.
    """
    site = workers_of_this_machine(workers)
    with _WithoutTraining(site, folder / "parsl") as pools:
        say(f"starting {workers} workers")
        connect(pools, workers)
        processes = family(_signed_in(pools, workers))
        say(f"{trials:,} tasks without a campaign")
        clock = _Clock(processes)
        _tasks(pools, workers, trials)
        limit = trials / clock.read()[0]
        lines = []
        for sampler in _SAMPLERS:
            say(f"{trials:,} trials of a segment each, {sampler}")
            context = _context(folder / sampler, config(trials, sampler), site)
            clock = _Clock(processes)
            records = TrialPhase(context).run(pools)
            seconds, cpu = clock.read()
            assert [record.state for record in records] == ["complete"] * trials
            what = f"{workers} workers, {trials:,} segments that end at once, {sampler}"
            least = _AT_LEAST if sampler == _SAMPLERS[0] else None
            rate = trials / seconds
            lines += [
                Line(_ROW, what, rate, "1/s", at_least=least),
                Line(_ROW, what, rate, "1/s", _PEER, limit, rate / limit),
                *(
                    Line(_ROW, f"CPU time of a segment, {name}", 1e3 * value / trials, "ms")
                    for name, value in cpu.items()
                ),
            ]
    return lines


def _context(folder: Path, campaign: RunConfig, site: Site) -> Context:
    directory = RunDirectory(folder)
    directory.claim(campaign)
    store = prepare_store(campaign.data, 4.0, None, 0, directory.store)
    return Context(campaign, site, directory, store, "token", CampaignView(Console(quiet=True)))


def _signed_in(pools: Pools, workers: int) -> int:
    """Have every worker do something; returns the process they all are started by."""
    seen: set[Worker] = set()
    while len(seen) < workers:
        tasks = [Pools.submit(pools, "gcd", sign_in, _SECONDS_TO_SIGN_IN) for _ in range(workers)]
        seen.update(task.result() for task in tasks)
    (manager,) = {worker.manager for worker in seen}
    return manager


def _tasks(pools: Pools, at_a_time: int, count: int) -> None:
    """Run tasks that do nothing, as many at a time as there are workers."""
    running: set[Future[Any]] = set()
    for _ in range(count):
        if len(running) == at_a_time:
            _, running = wait(running, return_when=FIRST_COMPLETED)
        running.add(Pools.submit(pools, "gcd", sign_in, 0.0))
    wait(running)
