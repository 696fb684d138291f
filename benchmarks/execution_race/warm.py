"""A segment on a worker that has run others, beside a new process for each trial."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from results import Line

from execution_race.on_node import FirstStep, to_first_step
from execution_race.processes import cpu_seconds, family
from execution_race.workplace import Segments, connect, workers_of_this_machine
from hydragnn_flow.execution.pools.pool import Pool

_ROW = "warm"
_WHAT = "segment on a warm worker to its first step"
_CPU = "the same, CPU time of all processes"
_OURS = "a warm worker"
# Of ours in each turn, so that its CPU time is much more than a tick of the system's clock.
_SEGMENTS = 5
_FRESH = "a new process each"
_IMPORTS = "a new process, imports alone"
_EVALUATOR = "DeepHyper's queued evaluator"
_ARGUMENTS = {
    _FRESH: ["-m", "execution_race.fresh"],
    # The least that a process needs for any training on graphs.
    _IMPORTS: [
        "-c",
        "import time, torch, torch_geometric.data; print(time.time())",
    ],
}
_AT_LEAST = {_FRESH: 30.0}


@dataclass(frozen=True)
class _Cost:
    """Of bringing one segment to its first step."""

    seconds: float
    cpu_seconds: float


class _Warm:
    """A node, with a trainer process that has trained before."""

    def __init__(self, pools: Pool, node: object, segments: Segments) -> None:
        self._pools, self._node, self._segments = pools, node, segments
        agent = pools.submit(os.getpid).result()
        self.spans: list[tuple[float, float]] = []
        """Seconds until the trainer process begins a segment, and from there to its first step."""
        self._run()
        self._processes = [*family(os.getpid()), *family(agent)]

    def turn(self) -> _Cost:
        """Cost of segments, one after the other: the wall time is the median of several."""
        before = cpu_seconds(self._processes)
        seconds = median(self._run() for _ in range(_SEGMENTS))
        return _Cost(seconds, (cpu_seconds(self._processes) - before) / _SEGMENTS)

    def _run(self) -> float:
        segment = self._segments.next()
        submitted = time.time()
        reached: FirstStep = self._pools.submit(to_first_step, self._node, segment).result()
        self.spans.append((reached.segment - submitted, reached.first_step - reached.segment))
        return reached.first_step - submitted


class _NewProcess:
    """A Python process for each segment."""

    def __init__(self, arguments: list[str], segments: Segments) -> None:
        self._arguments, self._segments = arguments, segments

    def turn(self) -> _Cost:
        """Cost of a segment."""
        spec = self._segments.next()
        before = _cpu_seconds_of_ended_children()
        submitted = time.time()
        process = subprocess.run(
            [sys.executable, *self._arguments],
            input=json.dumps(spec.to_dict()),
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
        )
        began = float(process.stdout.splitlines()[-1])
        return _Cost(began - submitted, _cpu_seconds_of_ended_children() - before)


class _Evaluator:
    """DeepHyper's evaluator, in a process of DeepHyper's own Python."""

    def __init__(self, python: Path, segments: Segments) -> None:
        self._segments = segments
        self._process = subprocess.Popen(
            [python.absolute(), "-m", "execution_race.deephyper_evaluator", sys.executable],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def turn(self) -> _Cost:
        """Cost of a segment."""
        assert self._process.stdin is not None and self._process.stdout is not None
        segment = json.dumps(self._segments.next().to_dict())
        submitted = time.time()
        self._process.stdin.write(f"{segment}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return _Cost(answer["began"] - submitted, answer["cpu"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def lines(
    folder: Path, turns: int, deephyper: Path | None, quiet: bool, say: Callable[[str], None]
) -> list[Line]:
    """From submitting a segment to where its first step begins.

    Parameters
    ----------
    folder
        For the run directory.
    turns
        Of each side, which take turns.
    deephyper
        An interpreter that has DeepHyper.
    quiet
        Whether wall times can be compared; CPU times can always.
    say
        Told what is being done.
    """
    segments = Segments(folder)
    site = workers_of_this_machine(1)
    with Pool(site, folder / "parsl") as pools, ExitStack() as stack:
        say("starting a worker")
        connect(pools, 1)
        warm = _Warm(pools, site.node, segments)
        sides: dict[str, _Warm | _NewProcess | _Evaluator] = {_OURS: warm}
        for name, arguments in _ARGUMENTS.items():
            sides[name] = _NewProcess(arguments, segments)
        if deephyper is not None:
            evaluator = _Evaluator(deephyper, segments)
            stack.callback(evaluator.close)
            sides[_EVALUATOR] = evaluator
        for side in sides.values():
            side.turn()  # from here on the programs are in the page cache
        warm.spans.clear()
        costs: dict[str, list[_Cost]] = {name: [] for name in sides}
        for turn in range(turns):
            say(f"turn {turn + 1} of {turns}")
            for name in sides if turn % 2 else reversed(sides):
                costs[name].append(sides[name].turn())
    until_trainer, in_trainer = (
        [1e3 * seconds for seconds in span] for span in zip(*warm.spans, strict=True)
    )
    own = [1e3 * cost.seconds for cost in costs[_OURS]]
    found = [
        Line(_ROW, _WHAT, median(own), "ms", at_most=100.0, spread=(min(own), max(own))),
        Line(_ROW, "of it, until the trainer process has it", median(until_trainer), "ms"),
        Line(_ROW, "of it, network, model, plan and first batch", median(in_trainer), "ms"),
    ]
    for peer in list(sides)[1:]:
        wall = [[cost.seconds for cost in costs[side]] for side in (_OURS, peer)]
        cpu = [[cost.cpu_seconds for cost in costs[side]] for side in (_OURS, peer)]
        if quiet:
            found.append(_compared(_WHAT, "1/s", peer, *wall))
        found.append(_compared(_CPU, "1/CPU-s", peer, *cpu))
    return found


def _compared(what: str, unit: str, peer: str, own: list[float], other: list[float]) -> Line:
    """As rates, of seconds; the ratio is the median of those within the turns."""
    ratios = [theirs / ours for ours, theirs in zip(own, other, strict=True)]
    return Line(
        _ROW,
        what,
        1 / median(own),
        unit,
        peer,
        1 / median(other),
        median(ratios),
        _AT_LEAST.get(peer),
        spread=(min(ratios), max(ratios)),
    )


def _cpu_seconds_of_ended_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
