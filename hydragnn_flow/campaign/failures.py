"""Failures of segments, and their consequences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.segment import SegmentResult


def is_final(resizes: bool, network: NetworkConfig, end: SegmentResult) -> bool:
    """Return whether a failure belongs to the trial, to be recorded and not retried.

    Parameters
    ----------
    resizes
        True if a segment without memory continues with more micro-batches, `RunConfig.resizes`.
    network
        Network of the trial.
    end
        Result of its last segment.
    """
    if end.status == "out_of_memory":
        return not takes_more(resizes, network, end.accumulation_steps, end.batches)
    # An interrupted, refused or lost segment says nothing about its trial.
    return end.status == "diverged"


def takes_more(resizes: bool, network: NetworkConfig, steps: int, batches: int = 1) -> bool:
    """Return whether a step of ``batches`` may have more than ``steps`` micro-batches.

    More of them give the same gradient with less memory.
    """
    training = network.Training
    by_graphs = training.Batching is None or training.Batching.mode == "fixed"
    # A step that is limited by atoms or edges has no number of graphs to divide.
    most = batches * (training.batch_size if by_graphs else 64)
    # RMSE does not add over micro-batches, so it cannot be accumulated.
    is_sum = training.loss_function_type != "rmse"
    return resizes and is_sum and steps < most


def times_too_large(resizes: bool, results: Sequence[SegmentResult]) -> int:
    """Number of times that a segment ran out of memory and should need less afterwards."""
    return sum(result.status == "out_of_memory" for result in results) if resizes else 0


def fewest_micro_batches(
    resizes: bool, results: Sequence[SegmentResult], width: int, batches: int = 1
) -> int:
    """Number of micro-batches on each of ``width`` GCDs after segments that ran out of memory.

    Each has half as many graphs as the smallest that did not fit; the number is 1 if all fitted.
    A step has ``batches``.
    """
    if not times_too_large(resizes, results):
        return 1
    too_few = max(
        Fraction(result.accumulation_steps * max(1, len(result.gcds)), result.batches)
        for result in results
        if result.status == "out_of_memory"
    )
    return math.ceil(2 * too_few * batches / width)
