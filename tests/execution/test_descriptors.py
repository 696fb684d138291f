"""A worker pool on each of many nodes takes a file descriptor of the interchange."""

import pickle
import resource
from dataclasses import replace

import pytest
from interchange_cases import Interchange, until, worker_pools
from pool_cases import site

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools.pool import Pool

SOFT, NODES = 64, 120


def test_more_nodes_are_let_in_than_the_soft_limit_would(tmp_path):
    with (
        Interchange(tmp_path, descriptors=SOFT) as interchange,
        worker_pools(interchange.port, NODES) as pools,
    ):
        for pool in pools.values():
            pool.send(pickle.dumps({"type": "connection_probe"}))
        until(lambda: all(pool.poll(0) for pool in pools.values()), 30)
        waiting = [name for name, pool in pools.items() if not pool.poll(0)]
    assert not waiting, f"{len(waiting)} of {NODES} were not let in"


def test_more_nodes_than_the_hard_limit_allows_are_refused_before_anything_starts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    many = replace(site(), nodes=8192)
    with pytest.raises(InputError, match=r"site here: 8192 nodes take 8292 .* may have 4096"):
        Pool(many, tmp_path / "parsl")
    assert not (tmp_path / "parsl").exists()
    Pool(replace(site(), nodes=3996), tmp_path / "parsl")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    Pool(many, tmp_path / "parsl")
