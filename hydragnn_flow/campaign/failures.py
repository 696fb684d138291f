"""Failures of segments, and their consequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.search import Failures
from hydragnn_flow.segment import SegmentResult


def is_final(failures: Failures, network: NetworkConfig, end: SegmentResult) -> bool:
    """Return whether a failure belongs to the trial, to be recorded and not retried.

    Parameters
    ----------
    failures
        Policies for failures.
    network
        Network of the trial.
    end
        Result of its last segment.
    """
    if end.status == "diverged":
        return failures.diverged == "record"
    if end.status == "out_of_memory":
        more = takes_more(failures, network, end.accumulation_steps, end.batches)
        return failures.out_of_memory != "retry" and not more
    # An interrupted or refused segment says nothing about its trial.
    return failures.lost == "record" and end.status not in ("ok", "interrupted", "refused")


def takes_more(failures: Failures, network: NetworkConfig, steps: int, batches: int = 1) -> bool:
    """Return whether a step of ``batches`` may have more than ``steps`` micro-batches.

    More of them give the same gradient with less memory.
    """
    training = network.Training
    by_graphs = training.Batching is None or training.Batching.mode == "fixed"
    # A step that is limited by atoms or edges is divided as far as one of 64 graphs.
    most = batches * (training.batch_size if by_graphs else 64)
    # RMSE does not add over micro-batches, so it cannot be accumulated.
    is_sum = training.loss_function_type != "rmse"
    return failures.out_of_memory == "resize" and is_sum and steps < most


def times_too_large(failures: Failures, results: Sequence[SegmentResult]) -> int:
    """Number of times that a segment ran out of memory and should need less afterwards."""
    if failures.out_of_memory != "resize":
        return 0
    return sum(result.status == "out_of_memory" for result in results)


def fewest_micro_batches(
    failures: Failures, results: Sequence[SegmentResult], width: int, batches: int = 1
) -> int:
    """Number of micro-batches on each of ``width`` GCDs after segments that ran out of memory.

    Each has half as many graphs as the smallest that did not fit; the number is 1 if all fitted.
    A step has ``batches``.
    """
    if not times_too_large(failures, results):
        return 1
    too_few = max(
        Fraction(result.accumulation_steps * max(1, len(result.gcds)), result.batches)
        for result in results
        if result.status == "out_of_memory"
    )
    return math.ceil(2 * too_few * batches / width)
