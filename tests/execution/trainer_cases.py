"""A node of two GCDs, and what tests do with the trainer processes of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from hydragnn_flow.execution import Node, RankGroup, run_rank_groups
from hydragnn_flow.execution.workers import worker
from hydragnn_flow.execution.workers.trainer_process import TrainerProcess
from hydragnn_flow.placement import Gcd
from hydragnn_flow.segment import SegmentResult, SegmentSpec
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint

PATIENCE = 120.0
LONG = 100_000
"""Epochs that no test waits for."""

NODE = Node(
    gcds=("0", "1"),
    gcd=Gcd(8, 1e10, 1e10, 1e-5, 0.5, 4),
    cores_per_gcd=1,
    device="cpu",
)


def run_together(specs: Sequence[SegmentSpec]) -> list[SegmentResult]:
    """Segments that share the worker's own GCD."""
    return run_rank_groups(NODE, [RankGroup(spec) for spec in specs])


def trainer_of(position: int, slot: int = 0) -> TrainerProcess:
    """The trainer process that ran the last segment there."""
    return worker._trainers[position, slot]


def until(reached: Callable[[], object], what: str = "it") -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(0.02)


def checkpoint(folder: Path) -> Path:
    """The file of a segment, which is there as soon as its training is worth keeping."""
    file = folder / FILE
    until(file.exists, str(file))
    return file


class Running:
    """Jobs that a thread of this worker runs."""

    def __init__(self, groups: Sequence[RankGroup]) -> None:
        self._found: list[SegmentResult] = []
        self._thread = threading.Thread(
            target=lambda: self._found.extend(run_rank_groups(NODE, groups))
        )
        self._thread.start()

    def results(self) -> list[SegmentResult]:
        """Once all have ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a segment was left waiting"
        return self._found


def trainer_pids() -> list[int]:
    return [
        child.pid
        for child in psutil.Process().children(recursive=True)
        # What has ended and is not yet waited for has no command line any more.
        if child.status() != psutil.STATUS_ZOMBIE
        and "hydragnn_flow.execution.workers.trainer_main" in child.cmdline()
    ]


def epochs_saved(spec: SegmentSpec) -> int:
    epochs: int = load_checkpoint(spec.folder / FILE)["progress"]["epoch"]
    return epochs
