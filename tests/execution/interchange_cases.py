"""The interchange as a driver starts it, and worker pools that only speak Parsl's protocol."""

from __future__ import annotations

import os
import pickle
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import zmq
from parsl.executors.high_throughput.interchange import PKL_HEARTBEAT_CODE
from parsl.executors.high_throughput.manager_selector import BlockIdManagerSelector
from parsl.executors.high_throughput.zmq_pipes import (
    CommandClient,
    ResultsIncoming,
    TasksOutgoing,
)
from parsl.version import VERSION

from hydragnn_flow.execution.pools import interchange

PORTS = (30_000, 60_000)
SECONDS = 120
STEPPED_CLOCK = Path(__file__).with_name("stepped_clock.py")
HEARTBEAT = pickle.dumps({"type": "heartbeat"})
LIVES = pickle.loads(PKL_HEARTBEAT_CODE)
"""What the interchange answers to it, unpickled."""


class Interchange:
    """A process, and the driver's three channels to it.

    Parameters
    ----------
    folder
        Of its log.
    threshold
        Silence after which a worker pool counts as lost [s].
    descriptors
        Soft limit of its file descriptors.
    clock
        File with the seconds by which its wall clock is ahead; that of this machine if not given.
    """

    def __init__(
        self,
        folder: Path,
        threshold: float = 60.0,
        descriptors: int = 0,
        clock: Path | None = None,
    ) -> None:
        self.tasks = TasksOutgoing("127.0.0.1", PORTS)
        self.results = ResultsIncoming("127.0.0.1", PORTS)
        self._commands = CommandClient("127.0.0.1", PORTS)
        pipes = self.tasks, self.results, self._commands
        config = {
            "client_address": "127.0.0.1",
            "client_ports": tuple(pipe.port for pipe in pipes),
            "interchange_address": "127.0.0.1",
            "worker_port": None,
            "worker_port_range": PORTS,
            "hub_address": None,
            "hub_zmq_port": None,
            "logdir": str(folder),
            "heartbeat_threshold": threshold,
            "poll_period": 10,
            "logging_level": 30,
            "cert_dir": None,
            "manager_selector": BlockIdManagerSelector(),
            "run_id": "run",
            "log_config": None,
            "_check_python_mismatch": True,
        }
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        of_process = ["-m", interchange.__name__] if clock is None else [str(STEPPED_CLOCK)]
        self.process = subprocess.Popen(
            [sys.executable, *of_process, str(os.getpid()), str(clock)],
            stdin=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (descriptors or soft, hard)
            ),
        )
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(pickle.dumps(config))

    def __enter__(self) -> Interchange:
        return self

    @property
    def port(self) -> int:
        """At which worker pools reach it."""
        return int(self.ask("WORKER_BINDS"))

    def ask(self, command: Any) -> Any:
        """Its answer."""
        return self._commands.run(command, timeout_s=SECONDS)

    def managers(self) -> dict[str, dict[str, Any]]:
        """The worker pools that it knows."""
        return {one["manager"]: one for one in self.ask("MANAGERS")}

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.tasks, self.results, self._commands):
            pipe.close()


@contextmanager
def worker_pools(port: int, number: int) -> Iterator[dict[str, Any]]:
    """Sockets of as many worker pools, by identifier; none has said anything."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * number)
    try:
        pools = {f"node{k}": context.socket(zmq.DEALER) for k in range(number)}
        for name, pool in pools.items():
            pool.setsockopt(zmq.IDENTITY, name.encode())
            pool.connect(f"tcp://127.0.0.1:{port}")
        yield pools
    finally:
        context.destroy(linger=0)


def registration(name: str, drain_time: float = float("inf")) -> bytes:
    """What a worker pool says first."""
    return pickle.dumps(
        {
            "type": "registration",
            "parsl_v": VERSION,
            "python_v": platform.python_version(),
            "packages": {},
            "worker_count": 8,
            "max_capacity": 8,
            "uid": name,
            "block_id": "0",
            "start_time": time.time(),
            "drain_time": drain_time,
            "prefetch_capacity": 0,
            "os": "Linux",
            "hostname": name,
            "dir": "/",
            "cpu_count": 8,
            "total_memory": 1,
        }
    )


def received(pool: Any) -> list[bytes]:
    """All messages that have come to a worker pool."""
    messages = []
    with suppress(zmq.Again):
        while True:
            messages.append(pool.recv(zmq.NOBLOCK))
    return messages


def flush(pools: dict[str, Any]) -> None:
    """Wait until the kernel has what was sent: one thread of a context writes it, in order."""
    context = next(iter(pools.values())).context
    with context.socket(zmq.PAIR) as last, context.socket(zmq.PAIR) as seen:
        last.connect(f"tcp://127.0.0.1:{seen.bind_to_random_port('tcp://127.0.0.1')}")
        last.send(b"")
        assert seen.poll(1000 * SECONDS)
