"""Nodes of a block that only speak: what a site starts there in place of agents.

    python node_pools.py NODES MEDIAN-SECONDS STATISTICS-FOLDER PARSLS-ARGUMENTS...

One process has a socket for each node. It registers as Parsl's worker pools do, says that it lives,
takes segments, and answers each when its time is over. The times are log-normal. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import pickle
import platform
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import zmq
from parsl.curvezmq import ClientContext
from parsl.executors.high_throughput.interchange import PKL_HEARTBEAT_CODE
from parsl.serialize import serialize, unpack_apply_message
from parsl.version import VERSION

SIGMA = 0.5
"""Standard deviation of the logarithms of times."""
_SECONDS_BETWEEN_LOOKS = 0.25
_HEARTBEAT = pickle.dumps({"type": "heartbeat"})


class _End(NamedTuple):
    """When a segment's time is over."""

    at: float
    task: int
    node: int
    result: bytes


class Nodes:
    """The nodes of a block.

    Parameters
    ----------
    given
        Parsl's arguments.
    count
        Number of nodes.
    median
        Time of a segment [s].
    statistics
        File that is written each second.
    """

    def __init__(
        self, given: argparse.Namespace, count: int, median: float, statistics: Path
    ) -> None:
        self._median, self._statistics, self._block = median, statistics, given.block_id
        self._workers, self._period = int(given.max_workers_per_node), float(given.hb_period)
        context = ClientContext(given.cert_dir)
        context._ctx.set(zmq.MAX_SOCKETS, 2 * count)
        self._names = [f"node{n:05d}.{self._block}-{uuid4().hex[:12]}" for n in range(count)]
        self._sockets = [self._connected(context, name, given) for name in self._names]
        self._ends: list[_End] = []
        self._busy, self._most = [0] * count, [0] * count
        self._at_work = self._open = self._took = 0
        self._idle_seconds = self._busy_seconds = 0.0
        self._heard = time.monotonic()

    def _connected(self, context: Any, name: str, given: argparse.Namespace) -> Any:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://{given.addresses.partition(',')[0]}:{given.port}")
        socket.send(pickle.dumps({"type": "connection_probe"}))
        socket.send(self._registration(name))
        return socket

    def speak(self, patience: float) -> None:
        """Be there until nothing is heard any more for so long [s]."""
        began = wrote = turned = time.monotonic()
        beats = 0
        while (now := time.monotonic()) < self._heard + patience:
            self._idle_seconds += (self._open - self._at_work) * (now - turned)
            self._busy_seconds += self._at_work * (now - turned)
            turned = now
            due = int((now - began) / self._period * len(self._sockets))
            for number in range(beats, due):
                self._sockets[number % len(self._sockets)].send(_HEARTBEAT)
            beats = max(beats, due)
            for node, socket in enumerate(self._sockets):
                self._listen(node, socket, now)
            while self._ends and self._ends[0].at <= now:
                self._answer(heapq.heappop(self._ends))
            if now - wrote > 1.0:
                wrote = now
                self._write()
            time.sleep(max(0.0, now + _SECONDS_BETWEEN_LOOKS - time.monotonic()))

    def _listen(self, node: int, socket: Any, now: float) -> None:
        while True:
            try:
                message = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard = now
            if message and message != PKL_HEARTBEAT_CODE:
                for task in pickle.loads(message):
                    self._take(node, task, now)

    def _take(self, node: int, task: dict[str, Any], now: float) -> None:
        from execution_race.on_node import end_at_once
        from hydragnn_flow.execution.pools.calls import Answer

        _, (call,), _ = unpack_apply_message(task["buffer"])
        _, (kind, ranks) = pickle.loads(call)
        answer = Answer(self._block, pickle.dumps(end_at_once(kind, ranks)))
        result = {"type": "result", "task_id": task["task_id"], "result": serialize(answer)}
        seconds = self._median * random.lognormvariate(0.0, SIGMA)
        end = _End(now + seconds, task["task_id"], node, pickle.dumps(result))
        heapq.heappush(self._ends, end)
        self._took += 1
        self._at_work += 1
        self._busy[node] += 1
        if self._busy[node] > self._most[node]:
            self._most[node] += 1
            self._open += 1

    def _answer(self, end: _End) -> None:
        self._sockets[end.node].send(end.result)
        self._busy[end.node] -= 1
        self._at_work -= 1

    def _write(self) -> None:
        names = ("open", "took", "idle_seconds", "busy_seconds")
        line = {"time": time.time(), "nodes": len(self._sockets)}
        line |= {name: getattr(self, f"_{name}") for name in names}
        whole = self._statistics.with_suffix(".new")
        whole.write_text(json.dumps(line), encoding="utf-8")
        whole.replace(self._statistics)

    def _registration(self, name: str) -> bytes:
        said = {"type": "registration", "uid": name, "hostname": name.rpartition("-")[0]}
        versions = {"parsl_v": VERSION, "python_v": platform.python_version(), "packages": {}}
        size = {"worker_count": self._workers, "max_capacity": self._workers}
        times = {"start_time": time.time(), "drain_time": float("inf"), "prefetch_capacity": 0}
        machine = {"os": "Linux", "dir": "/", "cpu_count": 64, "total_memory": 1}
        parts = (said, versions, size, times, machine, {"block_id": self._block})
        return pickle.dumps({key: value for part in parts for key, value in part.items()})


def main() -> None:
    """Be a block's nodes."""
    count, median, folder, *parsls = sys.argv[1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("-a", dest="addresses")
    for name in ("port", "cert_dir", "block_id", "hb_period", "hb_threshold"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--max_workers_per_node")
    given, _ = parser.parse_known_args(parsls)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    file = Path(folder) / f"{os.getpid()}.json"
    Nodes(given, int(count), float(median), file).speak(float(given.hb_threshold))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
