"""The interchange of a whole machine: as many worker pools as it has nodes, which only speak.

The worker pools are sockets of one process here; the interchange, its encryption and its channels
to the driver are real. Nothing is trained.
"""

from __future__ import annotations

import pickle
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from graph_store.workspace import in_fresh_process
from parsl import curvezmq
from results import Line

from execution_race.processes import cpu_seconds
from hydragnn_flow.execution.pools.interchange import HOLD, SPARE_DESCRIPTORS
from hydragnn_flow.execution.sites.batch import MISSED_HEARTBEATS

_CASES = Path(__file__).resolve().parents[2] / "tests" / "execution"
_ROW = "interchange"
_PEER = "Parsl's interchange"
_PARSLS = "parsl.executors.high_throughput.interchange"
_WORKERS = 8
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_AT_MOST = 300.0


@dataclass
class Kept:
    """What became of worker pools that were there all the time."""

    nodes: int
    let_in: float = float("inf")
    """Time until the last was answered for the first time [s]."""
    beats: int = 0
    waited: list[float] = field(default_factory=list)
    """Times until heartbeats were answered [s]."""
    cpu: float = 0.0
    """CPU time of the interchange, of a core."""
    lost: int = 0
    """Worker pools that counted as lost."""
    placing: float = float("inf")
    """Time until each worker had a task [s]."""
    holding: float = float("inf")
    """Time of the command that gives seven eighths of the nodes nothing more [s]."""
    noticing: float = float("inf")
    """Time from the last sign of life of any until the driver had all tasks back [s]."""


def lines(nodes: int, seconds: float, heartbeat: float, say: Callable[[str], None]) -> list[Line]:
    """Keep worker pools, with our interchange and with Parsl's own.

    Parameters
    ----------
    nodes
        Worker pools, as far as this machine has file descriptors.
    seconds
        Time of heartbeats.
    heartbeat
        Time between two of a node [s].
    say
        Told what is being done.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY:
        nodes = min(nodes, most - 2 * SPARE_DESCRIPTORS)
    say(f"{nodes:,} nodes")
    ours = in_fresh_process(keep, nodes, seconds, heartbeat, None)
    say(f"{nodes:,} nodes, {_PEER}")
    theirs = in_fresh_process(keep, nodes, seconds, heartbeat, _PARSLS)

    def beside(what: str, unit: str, value: Callable[[Kept], float], **target: float) -> Line:
        return _line(nodes, what, value(ours), unit, _PEER, value(theirs), **target)

    def alone(what: str, unit: str, value: float, **target: float) -> Line:
        return _line(nodes, what, value, unit, "", None, **target)

    return [
        beside("the last is let in after", "s", lambda kept: kept.let_in),
        beside("heartbeats that are answered", "%", _answered, at_least=100),
        beside("longest wait for an answer", "s", lambda kept: max(kept.waited, default=0.0)),
        beside("nodes that count as lost", "", lambda kept: kept.lost, at_most=0),
        beside("CPU of the interchange", "% of a core", lambda kept: 100 * kept.cpu, at_most=60),
        alone("tasks to free workers", "1/s", _WORKERS * nodes / ours.placing, at_least=400),
        alone("7 of 8 are held after", "s", ours.holding, at_most=2),
        alone("all silent: all tasks are back after", "s", ours.noticing, at_most=90),
    ]


def _line(
    nodes: int,
    what: str,
    value: float,
    unit: str,
    peer: str,
    theirs: float | None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Line:
    what = f"{nodes:,} nodes: {what}"
    return Line(_ROW, what, value, unit, peer, theirs, at_least=at_least, at_most=at_most)


def _answered(kept: Kept) -> float:
    return 100 * len(kept.waited) / kept.beats


def keep(nodes: int, seconds: float, heartbeat: float, module: str | None) -> Kept:
    """Have an interchange keep worker pools.

    Parameters
    ----------
    nodes, seconds, heartbeat
        As for :func:`lines`.
    module
        Of another interchange than ours, whose end is that of the heartbeats.
    """
    if str(_CASES) not in sys.path:
        sys.path.append(str(_CASES))
    cases: Any = import_module("interchange_cases")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        certificates = str(curvezmq.create_certificates(folder))
        settings: dict[str, Any] = {"module": module} if module else {}
        with (
            cases.Interchange(
                Path(folder), MISSED_HEARTBEATS * heartbeat, most, certificates, **settings
            ) as interchange,
            cases.worker_pools(interchange.port, nodes, certificates) as pools,
        ):
            speakers = _Speakers(cases, pools, heartbeat)
            speakers.register()
            process = [psutil.Process(interchange.process.pid)]
            before = cpu_seconds(process)
            speakers.go_on(seconds, lambda: False)
            kept = speakers.kept
            kept.cpu = (cpu_seconds(process) - before) / seconds
            kept.lost = kept.nodes - len(speakers.waiting) - len(interchange.managers())
            if module is None:
                _give_work(interchange, speakers)
            return kept


def _give_work(interchange: Any, speakers: _Speakers) -> None:
    """Give each worker a task, take the nodes back, and fall silent."""
    kept = speakers.kept
    tasks = _WORKERS * kept.nodes
    begin = time.monotonic()
    for number in range(tasks):
        interchange.tasks.put({"task_id": number, "context": {}, "buffer": b""})
    speakers.go_on(_SECONDS_AT_MOST, lambda: speakers.tasks == tasks)
    kept.placing = time.monotonic() - begin
    begin = time.monotonic()
    interchange.ask((HOLD, speakers.names[: 7 * kept.nodes // 8]))
    kept.holding = time.monotonic() - begin
    back, begin = 0, time.monotonic()
    while back < tasks and time.monotonic() < begin + _SECONDS_AT_MOST:
        back += interchange.results.get(timeout_ms=1000) is not None
    if back == tasks:
        kept.noticing = time.monotonic() - begin


class _Speakers:
    """Worker pools that say what Parsl's do, and listen.

    Parameters
    ----------
    cases
        The tests' worker pools.
    pools
        Sockets by name.
    heartbeat
        Time between two signs of life of one [s].
    """

    def __init__(self, cases: Any, pools: dict[str, Any], heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._cases, self._pools, self.names = cases, pools, list(pools)
        self.waiting = set(pools)
        """Those that have had no answer yet."""
        self.tasks = 0
        """Tasks that have come."""
        self.kept = Kept(len(pools))
        self._said: dict[str, deque[float]] = {name: deque() for name in pools}
        self._begin = time.monotonic()

    def register(self) -> None:
        """Say what a worker pool says first."""
        probe = pickle.dumps({"type": "connection_probe"})
        self._begin = time.monotonic()
        for name, pool in self._pools.items():
            pool.send(probe)
            pool.send(self._cases.registration(name, _WORKERS))

    def go_on(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Say that they live, for a time or until it is enough."""
        begin = looked = time.monotonic()
        while time.monotonic() < begin + seconds and not enough():
            self._speak()
            if time.monotonic() > looked + _SECONDS_BETWEEN_LOOKS:
                self._listen()
                looked = time.monotonic()
            time.sleep(0.01)
        self._listen()

    def _speak(self) -> None:
        due = int((time.monotonic() - self._begin) / self._heartbeat * self.kept.nodes)
        for number in range(self.kept.beats, due):
            name = self.names[number % self.kept.nodes]
            self._pools[name].send(self._cases.HEARTBEAT)
            self._said[name].append(time.monotonic())
        self.kept.beats = max(self.kept.beats, due)

    def _listen(self) -> None:
        now = time.monotonic()
        for name, pool in self._pools.items():
            for message in self._cases.received(pool):
                if not message:
                    self.waiting.discard(name)
                    if not self.waiting:
                        self.kept.let_in = now - self._begin
                elif isinstance(said := pickle.loads(message), list):
                    self.tasks += len(said)
                else:
                    self.kept.waited.append(now - self._said[name].popleft())
