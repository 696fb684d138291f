"""Executors as batch sites have them, on blocks of this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from parsl.providers import LocalProvider
from pool_cases import PATIENCE, update_until

from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.options import Options
from hydragnn_flow.execution.pools.pools import Pools
from hydragnn_flow.execution.sites.batch import Executors

pytestmark = pytest.mark.xdist_group("processes")


def test_the_newest_block_is_filled_first(tmp_path: Path) -> None:
    node = replace(load_site("local").node, gcds=("0",))
    run = Options(nodes=2, blocks=2, heartbeat=3)
    executors = Executors(node, run, LocalProvider, lambda: "127.0.0.1")
    with Pools(Site("here", 2, node, executors, blocks=2), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers("gcd") == 2, gcd=2)
        used = [
            pools.submit("gcd", os.getenv, "PARSL_WORKER_BLOCK_ID").result(PATIENCE)
            for _ in range(8)
        ]
    assert used == ["1"] * 8
