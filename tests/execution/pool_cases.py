"""A site whose blocks are processes of this machine, for tests of pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from driver_cases import PATIENCE
from parsl import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.pools.pool import Pool


class Quick(LocalProvider):
    """Processes whose states may be asked for every second."""

    @property
    def status_polling_interval(self) -> int:
        return 1


def site(
    provider: type[LocalProvider] = Quick, *, blocks: int = 1, gcds: int = 2, **block: Any
) -> Site:
    def parsl_config(directory: Path) -> Config:
        executor = HighThroughputExecutor(
            label="gcd",
            address="127.0.0.1",
            encrypted=True,
            max_workers_per_node=gcds,
            cores_per_worker=1e-6,
            heartbeat_period=1,
            heartbeat_threshold=60,  # of a busy machine
            provider=provider(init_blocks=0, min_blocks=0, max_blocks=blocks, **block),
        )
        return Config(executors=[executor], run_dir=str(directory))

    node = replace(load_site("local").node, gcds=tuple(str(gcd) for gcd in range(gcds)))
    return Site("here", blocks, node, parsl_config, blocks=blocks)


def update_until(pools: Pool, reached: Callable[[], object], demand: int | None = None) -> None:
    """Update pools as a driver does until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, pools.waiting() or "it does not come to that"
        pools.update(demand)
        time.sleep(0.1)
