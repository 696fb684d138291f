"""Parts that all rows share: a store, segments that end where training would begin, and workers."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from parsl.providers import LocalProvider
from results import run_config

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.site import Options
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.placement import Gcd
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import EpochPlan, SegmentSpec, Start, StoreAccess

_SECONDS_TO_CONNECT = 900.0


def config(trials: int, sampler: str = "auto") -> RunConfig:
    """A search of so many trials."""
    values = run_config("execution")
    values["search"] |= {"trials": trials, "sampler": sampler}
    return RunConfig.model_validate(values)


def begun(folder: Path, campaign: RunConfig) -> tuple[RunDirectory, GraphStore]:
    """A run directory with its store."""
    directory = RunDirectory(folder)
    directory.record_start(campaign)
    return directory, prepare_store(campaign.data, 4.0, None, 0, directory.store)


def segments(folder: Path) -> Iterator[SegmentSpec]:
    """The first segments of trials of different networks."""
    campaign = config(trials=2)
    run, _ = begun(folder, campaign)
    mpnn_types = campaign.search.space["Architecture.mpnn_type"].choices or ()
    for number in itertools.count():
        mpnn_type = mpnn_types[number % len(mpnn_types)]
        parameters = {"Architecture.mpnn_type": mpnn_type, "Architecture.hidden_dim": 32 + number}
        yield SegmentSpec(
            kind="trial",
            number=number,
            directory=str(run.trial(number)),
            store=StoreAccess(path=str(run.store)),
            network=campaign.network_with(parameters),
            epochs=EpochPlan(until_epoch=6),
            rung=0,
            seed=number,
            attempt=uuid.uuid4().hex,
            start=Start(may_have_begun=False),
        )


def workers_of_this_machine(workers: int) -> Site:
    """A site like `local`, with as many workers as wanted, whatever the machine has."""
    each = Gcd(4.0, 3e10, 1.8e10, launch_seconds=1.5e-5, process_gib=0.6, most_segments=1)
    node = Node(tuple(str(gcd) for gcd in range(workers)), each, cores_per_gcd=1, device="cpu")
    executors = Executors(node, Options(heartbeat=3), LocalProvider, lambda: "127.0.0.1")
    return Site("local", 1, node, executors)


def connect(pools: Pool, workers: int) -> None:
    """Request workers, and wait for a number of them.

    Raises
    ------
    TimeoutError
        If they do not come.
    """
    give_up = time.monotonic() + _SECONDS_TO_CONNECT
    pools.update(workers)
    while pools.workers() < workers:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{pools.workers()} of {workers} workers have come")
        time.sleep(0.5)
        pools.update(workers)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it, and they, have started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU time of those that live, up to now [s]."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
