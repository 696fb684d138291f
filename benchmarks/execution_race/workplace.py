"""Parts that all rows share: a store, segments that end where training would begin, and workers."""

from __future__ import annotations

import itertools
import time
import uuid
from pathlib import Path
from typing import Any

from parsl.providers import LocalProvider

from hydragnn_flow.config import RunConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.execution import Node, Site
from hydragnn_flow.execution.options import Options
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.placement import Gcd
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentSpec

# As often as a campaign's driver looks.
SECONDS_BETWEEN_CHECKS = 0.5
SECONDS_TO_CONNECT = 900.0
HEARTBEAT = 3
_NETWORK: dict[str, Any] = {
    "Architecture": {
        "mpnn_type": "SchNet",
        "hidden_dim": 64,
        "num_conv_layers": 3,
        "radius": 4.0,
        "num_gaussians": 20,
        "enable_interatomic_potential": True,
        "energy_peratom_weight": 1.0,
        "force_weight": 1.0,
        "output_heads": {"node": {"num_headlayers": 2, "dim_headlayers": [64, 64]}},
    },
    "Variables_of_interest": {"output_names": ["energy"], "type": ["node"]},
    "Training": {"num_epoch": 6, "batch_size": 16, "Optimizer": {"learning_rate": 1e-3}},
}
# Few networks: each that is new to a driver is first counted, which takes longer than all else.
_SPACE: dict[str, dict[str, Any]] = {
    "Architecture.mpnn_type": {"choices": ["SchNet", "PNA", "EGNN"]},
    "Architecture.hidden_dim": {"choices": [32, 64]},
    "Training.Optimizer.learning_rate": {"float": [1e-5, 1e-2], "log": True},
    "Training.Optimizer.weight_decay": {"float": [1e-6, 1e-1], "log": True},
}


def config(trials: int, sampler: str = "auto") -> RunConfig:
    """A search for a potential of alloys, its trials one segment each."""
    return RunConfig.model_validate(
        {
            "name": "benchmark",
            "seed": 0,
            "data": {
                "source": {"format": "emt_alloys", "structures": 60, "atoms": [8, 16]},
                "split": {"val": 0.2, "test": 0.2},
            },
            "network": _NETWORK,
            "search": {
                "trials": trials,
                "sampler": sampler,
                "rungs": "none",
                "space": _SPACE,
            },
            "ensemble": {"size": 2, "epochs": 6},
        }
    )


class Segments:
    """Segments of trials of different networks.

    Parameters
    ----------
    folder
        To work in.
    """

    def __init__(self, folder: Path) -> None:
        self._run = RunDirectory(folder)
        self._config = config(trials=2)
        self._run.record_start(self._config)
        prepare_store(self._config.data, 4.0, None, 0, self._run.store)
        self._numbers = itertools.count()

    def next(self) -> SegmentSpec:
        """The first segment of a new trial."""
        number = next(self._numbers)
        mpnn_types = _SPACE["Architecture.mpnn_type"]["choices"]
        network = self._config.network_with(
            {
                "Architecture.mpnn_type": mpnn_types[number % len(mpnn_types)],
                "Architecture.hidden_dim": 32 + number,
            }
        )
        return SegmentSpec(
            kind="trial",
            number=number,
            directory=str(self._run.trial(number)),
            store=str(self._run.store),
            network=network,
            until_epoch=6,
            rung=0,
            seed=number,
            attempt=uuid.uuid4().hex,
            may_have_begun=False,
            mode="memory",
        )


def workers_of_this_machine(workers: int) -> Site:
    """A site like `local`, with as many workers as wanted, whatever the machine has."""
    each = Gcd(4.0, 3e10, 1.8e10, launch_seconds=1.5e-5, process_gib=0.6, most_segments=1)
    node = Node(tuple(str(gcd) for gcd in range(workers)), each, cores_per_gcd=1, device="cpu")
    executors = Executors(node, Options(heartbeat=HEARTBEAT), LocalProvider, lambda: "127.0.0.1")
    return Site("local", 1, node, executors)


def connect(pools: Pool, workers: int) -> None:
    """Request workers of the `gcd` pool, and wait for a number of them.

    Raises
    ------
    TimeoutError
        If they do not come.
    """
    give_up = time.monotonic() + SECONDS_TO_CONNECT
    pools.update(workers)
    while pools.workers() < workers:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{pools.workers()} of {workers} workers have come")
        time.sleep(SECONDS_BETWEEN_CHECKS)
        pools.update(workers)
