"""Functions that Parsl workers run for the benchmark; they need no torch, like our own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from execution_race.processes import start_of
from hydragnn_flow.execution import Node, RankGroup, run_rank_groups
from hydragnn_flow.segment import SegmentResult


class Worker(NamedTuple):
    """The process that ran a task, and the one that started it."""

    pid: int
    manager: int


class FirstSegment(NamedTuple):
    """Unix times on the way of a block's first segment [s]."""

    manager: float
    """When Parsl's worker pool was started."""
    worker: float
    """When it started this worker."""
    task: float
    """When the worker began its first task."""
    segment: float
    """When the trainer process began the segment."""
    first_step: float


def sign_in(seconds: float) -> Worker:
    """Keep a worker busy for a time, so that others get the other tasks; returns its name."""
    time.sleep(seconds)
    return Worker(os.getpid(), os.getppid())


def end_at_once(node: Node, groups: Sequence[RankGroup]) -> list[SegmentResult]:
    """In place of `run_rank_groups`: results of segments that did nothing."""
    results = []
    for group in groups:
        spec, now = group.spec, time.time()
        # The best learning rate is 1e-3.
        rate = spec.network.Training.Optimizer.learning_rate
        loss = abs(rate - 1e-3) + 1.0 / spec.until_epoch
        result = SegmentResult(
            kind=spec.kind,
            number=spec.number,
            rung=spec.rung,
            from_epoch=spec.after_epoch,
            to_epoch=spec.until_epoch,
            status="ok",
            best_val_error=loss,
            best_epoch=spec.until_epoch,
            history=[
                [e, loss, loss, loss] for e in range(spec.after_epoch + 1, spec.until_epoch + 1)
            ],
            seconds=600.0,
            started=now,
            ended=now,
            node="here",
            gcds=[node.gcds[0]],
        )
        results.append(result)
    return results


def run_first(node: Node, group: RankGroup) -> FirstSegment:
    """Run the first segment of a new worker, and say when what began."""
    task = time.time()
    (result,) = run_rank_groups(node, [group])
    return FirstSegment(
        start_of(os.getppid()), start_of(os.getpid()), task, result.started, result.ended
    )
