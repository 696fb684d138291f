"""A segment on a worker that has run others, beside a new process for each trial."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from results import Line

from execution_race.on_worker import sign_in
from execution_race.processes import cpu_seconds, family
from execution_race.workplace import Segments, connect, workers_of_this_machine
from hydragnn_flow.execution import Job, run_jobs
from hydragnn_flow.execution.pools.pools import Pools
from hydragnn_flow.training.segment import SegmentResult

_ROW = "warm"
_WHAT = "segment on a warm worker to its first step"
_OURS = "a warm worker"
# Of ours in each turn, so that its CPU time is much more than a tick of the system's clock.
_SEGMENTS = 5
_PEERS = {
    "a new process each": ["-m", "execution_race.fresh"],
    # The least that a process needs for any training on graphs.
    "a new process, imports alone": [
        "-c",
        "import time, torch, torch_geometric.data; print(time.time())",
    ],
}
_AT_LEAST = {"a new process each": 30.0}


@dataclass(frozen=True)
class _Cost:
    """Of bringing one segment to its first step."""

    seconds: float
    cpu_seconds: float


class _Warm:
    """One worker, with a lane that has trained before."""

    def __init__(self, pools: Pools, node: object, segments: Segments) -> None:
        self._pools, self._node, self._segments = pools, node, segments
        worker = pools.submit("gcd", sign_in, 0.0).result()
        self.parts: list[tuple[float, float]] = []
        """Seconds until the lane begins a segment, and from there to its first step."""
        self._run()
        self._processes = [*family(os.getpid()), *family(worker.manager)]

    def turn(self) -> _Cost:
        """What segments cost, one after the other: in wall time the median of some."""
        before = cpu_seconds(self._processes)
        seconds = median(self._run() for _ in range(_SEGMENTS))
        return _Cost(seconds, (cpu_seconds(self._processes) - before) / _SEGMENTS)

    def _run(self) -> float:
        job = Job(self._segments.next())
        submitted = time.time()
        future = self._pools.submit("gcd", run_jobs, self._node, "b1", [job])
        results: list[SegmentResult] = future.result()
        (result,) = results
        assert result.status == "interrupted", result.reason
        self.parts.append((result.started - submitted, result.ended - result.started))
        return result.ended - submitted


class _NewProcess:
    """A Python process for each segment."""

    def __init__(self, arguments: list[str], segments: Segments) -> None:
        self._arguments, self._segments = arguments, segments

    def turn(self) -> _Cost:
        """What a segment costs."""
        spec = self._segments.next()
        before = _cpu_seconds_of_ended_children()
        submitted = time.time()
        process = subprocess.run(
            [sys.executable, *self._arguments],
            input=json.dumps(spec.to_dict()),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        began = float(process.stdout.splitlines()[-1])
        return _Cost(began - submitted, _cpu_seconds_of_ended_children() - before)


def lines(folder: Path, turns: int, say: Callable[[str], None]) -> list[Line]:
    """From submitting a segment to where its first step begins.

    Parameters
    ----------
    folder
        For the run directory.
    turns
        Of each side, which take turns.
    say
        Told what is being done.
    """
    segments = Segments(folder)
    site = workers_of_this_machine(1)
    with Pools(site, folder / "parsl") as pools:
        say("starting a worker")
        connect(pools, 1)
        warm = _Warm(pools, site.node, segments)
        sides: dict[str, _Warm | _NewProcess] = {_OURS: warm}
        for name, arguments in _PEERS.items():
            sides[name] = _NewProcess(arguments, segments)
            sides[name].turn()  # from here on the programs are in the page cache
        warm.parts.clear()
        costs: dict[str, list[_Cost]] = {name: [] for name in sides}
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for name in sides if turn % 2 else reversed(sides):
                costs[name].append(sides[name].turn())
    own = 1e3 * median(cost.seconds for cost in costs[_OURS])
    until_lane, in_lane = (1e3 * median(part) for part in zip(*warm.parts, strict=True))
    lines = [
        Line(_ROW, _WHAT, own, "ms", at_most=100.0),
        Line(_ROW, "of it, until the lane has it", until_lane, "ms"),
        Line(_ROW, "of it, network, model, plan and first batch", in_lane, "ms"),
    ]
    for peer in _PEERS:
        wall = [[cost.seconds for cost in costs[side]] for side in (_OURS, peer)]
        cpu = [[cost.cpu_seconds for cost in costs[side]] for side in (_OURS, peer)]
        lines.append(_compared(_WHAT, "1/s", peer, *wall))
        lines.append(_compared("the same, CPU time of all processes", "1/CPU-s", peer, *cpu))
    return lines


def _compared(what: str, unit: str, peer: str, own: list[float], other: list[float]) -> Line:
    """As rates, of seconds; the ratio is the median of those within the turns."""
    ratio = median(theirs / ours for ours, theirs in zip(own, other, strict=True))
    rates = 1 / median(own), 1 / median(other)
    return Line(_ROW, what, rates[0], unit, peer, rates[1], ratio, _AT_LEAST.get(peer))


def _cpu_seconds_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
