"""A worker pool on each of many nodes takes a file descriptor of the interchange."""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from parsl.executors.high_throughput.manager_selector import RandomManagerSelector
from parsl.executors.high_throughput.zmq_pipes import (
    CommandClient,
    ResultsIncoming,
    TasksOutgoing,
)
from pool_cases import site

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.pools import interchange
from hydragnn_flow.execution.pools.pools import Pools

SOFT, NODES = 64, 120


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Of an interchange that was started with a low soft limit."""
    pipes: list[Any] = [
        pipe("127.0.0.1", (30_000, 60_000))
        for pipe in (TasksOutgoing, ResultsIncoming, CommandClient)
    ]
    config = {
        "client_address": "127.0.0.1",
        "client_ports": tuple(pipe.port for pipe in pipes),
        "interchange_address": "127.0.0.1",
        "worker_port": None,
        "worker_port_range": (30_000, 60_000),
        "hub_address": None,
        "hub_zmq_port": None,
        "logdir": str(tmp_path),
        "heartbeat_threshold": 60,
        "poll_period": 10,
        "logging_level": 30,
        "cert_dir": None,
        "manager_selector": RandomManagerSelector(),
        "run_id": "run",
        "log_config": None,
        "_check_python_mismatch": True,
    }
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    started = subprocess.Popen(
        [sys.executable, "-m", interchange.__name__],
        stdin=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard)),
    )
    assert started.stdin is not None
    with started.stdin as stdin:
        stdin.write(pickle.dumps(config))
    yield pipes[2].run("WORKER_BINDS", timeout_s=120)
    started.kill()
    started.wait()
    for pipe in pipes:
        pipe.close()


def test_more_nodes_are_let_in_than_the_soft_limit_would(port: int) -> None:
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 2 * NODES)
        pools = [context.socket(zmq.DEALER) for _ in range(NODES)]
        for number, pool in enumerate(pools):
            pool.linger = 0
            pool.setsockopt(zmq.IDENTITY, f"node{number}".encode())
            pool.connect(f"tcp://127.0.0.1:{port}")
            pool.send(pickle.dumps({"type": "connection_probe"}))
        waiting, give_up = pools, time.monotonic() + 30
        while waiting and time.monotonic() < give_up:
            waiting = [pool for pool in waiting if not pool.poll(10)]
        for pool in pools:
            pool.close()
    assert not waiting, f"{len(waiting)} of {NODES} were not let in"


def test_more_nodes_than_the_hard_limit_allows_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    many = replace(site(), nodes=8192)
    with pytest.raises(InputError, match=r"site here: 8192 nodes take 8292 .* may have 4096"):
        Pools(many, tmp_path / "parsl")
    assert not (tmp_path / "parsl").exists()
    Pools(replace(site(), nodes=3996), tmp_path / "parsl")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    Pools(many, tmp_path / "parsl")
