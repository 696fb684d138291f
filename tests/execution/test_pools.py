"""Pools: what a campaign hears of a scheduler that starts nothing."""

from __future__ import annotations

from concurrent.futures import wait
from pathlib import Path

import pytest
from parsl import Config
from parsl.errors import ParslError
from parsl.executors import HighThroughputExecutor
from parsl.jobs.error_handlers import windowed_error_handler
from parsl.providers import LocalProvider

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.pools import Pools


class _Refusing(LocalProvider):
    """A scheduler that takes no job, as one does that does not know the account."""

    def submit(self, *_: object, **__: object) -> str:
        raise ParslError("submission failed\nsbatch: error: Invalid account\n")

    @property
    def status_polling_interval(self) -> int:
        return 1


def _refusing_site() -> Site:
    def parsl_config(directory: Path) -> Config:
        return Config(
            executors=[
                HighThroughputExecutor(
                    label=label,
                    address="127.0.0.1",
                    encrypted=True,
                    max_workers_per_node=1,
                    cores_per_worker=1e-6,
                    block_error_handler=windowed_error_handler,
                    provider=_Refusing(init_blocks=0, min_blocks=0, max_blocks=1),
                )
                for label in ("gcd", "node")
            ],
            run_dir=str(directory),
            strategy="simple",
            strategy_period=0.2,
        )

    return Site("refusing", 1, load_site("local").node, parsl_config)


def test_a_scheduler_that_refuses_jobs_is_quoted(tmp_path: Path) -> None:
    with Pools(_refusing_site(), tmp_path) as pools:
        pools.check()
        future = pools.submit("gcd", abs, -1)
        wait([future], timeout=60)
        with pytest.raises(InputError, match="'gcd': sbatch: error: Invalid account"):
            pools.check()
