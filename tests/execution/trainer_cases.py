"""A node of two GCDs, and what tests do with the trainer processes of this process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from driver_cases import PATIENCE

from hydragnn_flow.execution import Node, Rank, merged, run_ranks
from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess, Trainers
from hydragnn_flow.placement import Gcd
from hydragnn_flow.segment import Call, SegmentResult, SegmentSpec
from hydragnn_flow.training.checkpoints.checkpoint import checkpoints, furthest

LONG = 100_000
"""Epochs that no test waits for."""

NODE = Node(gcds=("0", "1"), gcd=Gcd(8, 1e10, 1e10, 1e-5, 0.5, 4), cores_per_gcd=1, device="cpu")


def run_alone(rank: Rank) -> SegmentResult:
    """A segment of one GCD."""
    (result,) = run_ranks(NODE, [rank])
    return result


def call(function: str, argument: Mapping[str, Any], **names: Any) -> Call:
    """A job that calls a function."""
    job = Call(kind="check", number=0, directory="", function=function, argument=argument)
    return replace(job, **names)


def called(
    function: str, argument: Mapping[str, Any], gcd: int = 0, node: Node = NODE
) -> SegmentResult:
    """How a call ends."""
    (result,) = run_ranks(node, [Rank(call(function, argument), gcd=gcd)])
    return result


def run_together(specs: Sequence[SegmentSpec]) -> list[SegmentResult]:
    """Segments that share a GCD."""
    return Running([Rank(spec, gcd=0) for spec in specs]).results()


def two_ranks(spec: SegmentSpec) -> list[Rank]:
    """The ranks of a segment on two GCDs, each sending with an attempt of its own."""
    sent = replace(spec, attempt=uuid.uuid4().hex)
    return [Rank(sent, number, world=2, gcd=number) for number in range(2)]


def run_on_two(spec: SegmentSpec) -> SegmentResult:
    """A segment on two GCDs."""
    return merged(run_ranks(NODE, two_ranks(spec)))


def trainer_of(gcd: int, place: int = -1, node: Node = NODE) -> TrainerProcess:
    """The idle trainer process that ran the last segment on a GCD, or another of them."""
    return worker.trainers_of(node).idle(gcd)[place]


def end_all(trainers: Trainers) -> None:
    """End trainer processes, at work or not."""
    for gcd, lent in trainers._lent.items():
        for trainer in (*(one.trainer for one in lent), *trainers._idle[gcd]):
            trainer.kill()
        trainers._idle[gcd].clear()


def until(reached: Callable[[], object], what: str = "it") -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(0.02)


def checkpoint(folder: Path) -> Path:
    """The file of a segment, which is there as soon as its training is worth keeping."""
    until(lambda: checkpoints(folder), str(folder))
    return checkpoints(folder)[0]


class Running:
    """A segment, or segments side by side, that threads of this process wait for."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        groups = [ranks] if ranks[0].in_gang else [[rank] for rank in ranks]
        threads = ThreadPoolExecutor(len(groups))
        self._ends = [threads.submit(run_ranks, NODE, group) for group in groups]

    def results(self) -> list[SegmentResult]:
        """Once all have ended; none is left waiting."""
        return [result for end in self._ends for result in end.result(PATIENCE)]


def trainers_below(process: psutil.Process) -> list[psutil.Process]:
    """Trainer processes that a process has started."""
    found = []
    for child in process.children(recursive=True):
        # What has ended and is not yet waited for has no command line any more.
        command = [] if child.status() == psutil.STATUS_ZOMBIE else child.cmdline()
        title = " ".join(command)
        if title.startswith("hydragnn_flow: ") or "workers.trainer_main" in title:
            found.append(child)
    return found


def trainer_pids() -> list[int]:
    return [trainer.pid for trainer in trainers_below(psutil.Process())]


def epochs_saved(spec: SegmentSpec) -> int:
    found = furthest(checkpoints(spec.folder))
    assert found is not None
    epochs: int = found[1]["progress"]["epoch"]
    return epochs
