"""Results of the segments of a task, also where their worker was lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from parsl.executors.high_throughput.errors import ManagerLost

from hydragnn_flow.execution.pools.interchange import NeverCame
from hydragnn_flow.execution.workers.rank import Rank
from hydragnn_flow.segment import SegmentResult, TrainingOutcome


def results_of(task: Future[Any], ranks: Sequence[Rank]) -> list[SegmentResult]:
    """Results of the ranks of a task that has ended; if its worker was lost, they say so."""
    error = task.exception()
    if error is None:
        return list(task.result())
    if isinstance(error, NeverCame):
        outcome = TrainingOutcome.cut_short("interrupted", f"{error.hostname} took it no more")
    elif isinstance(error, ManagerLost):
        # The node went, or its whole batch job: nothing that a segment does.
        outcome = TrainingOutcome.cut_short("lost", f"its node {error.hostname} was lost")
    else:
        reason = f"its worker was lost ({type(error).__name__}: {error})"
        outcome = TrainingOutcome.cut_short("killed", reason)
    return [SegmentResult.of(spec, outcome) for rank in ranks for spec in rank.specs]
