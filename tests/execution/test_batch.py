"""Executors as batch sites have them, on blocks of this machine."""

import os
from dataclasses import replace

import pytest
from parsl.providers import LocalProvider
from pool_cases import PATIENCE, update_until

from hydragnn_flow.execution import Site, load_site
from hydragnn_flow.execution.pools.pool import Pool
from hydragnn_flow.execution.site import Options
from hydragnn_flow.execution.sites.batch import Executors
from hydragnn_flow.testing.sites import executors_of

pytestmark = pytest.mark.xdist_group("processes")


def test_parsls_logs_of_many_nodes_stay_there(tmp_path):
    few = executors_of(load_site("frontier", account="ABC123", nodes=64), tmp_path)["gcd"]
    many = executors_of(load_site("frontier", account="ABC123", nodes=65), tmp_path)["gcd"]
    assert few.worker_logdir_root is None
    assert many.worker_logdir_root.startswith("/tmp/")


def test_the_newest_block_is_filled_first(tmp_path):
    node = replace(load_site("local").node, gcds=("0",))
    run = Options(nodes=2, blocks=2, heartbeat=3)
    executors = Executors(node, run, LocalProvider, lambda: "127.0.0.1")
    with Pool(Site("here", 2, node, executors, blocks=2), tmp_path / "parsl") as pools:
        update_until(pools, lambda: pools.workers() == 2, 2)
        used = [pools.submit(os.getenv, "PARSL_WORKER_BLOCK_ID").result(PATIENCE) for _ in range(8)]
    assert used == ["1"] * 8


@pytest.mark.parametrize(("nodes", "seconds"), [(None, 30), (100, 32), (9408, 218)])
def test_many_nodes_have_longer_to_reach_the_driver(nodes, seconds, tmp_path):
    """Parsl's 30 s are over before all nodes of a large job have had their answer."""
    run = Options(nodes=nodes)
    executors = Executors(load_site("local").node, run, LocalProvider, lambda: "127.0.0.1")
    (executor,) = executors(tmp_path).executors
    assert executor.address_probe_timeout == seconds
