"""Failures of segments, and their consequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.config.search import Failures
from hydragnn_flow.segment import SegmentResult

# Largest number of micro-batches if a step is limited by atoms or edges instead of graphs.
_MOST_MICRO_BATCHES = 64


def is_final(config: RunConfig, parameters: Mapping[str, Any], end: SegmentResult) -> bool:
    """Return whether a failure belongs to the trial, to be recorded and not retried.

    Parameters
    ----------
    config
        Configuration with the policies for failures.
    parameters
        Hyper-parameters of the trial.
    end
        Result of its last segment.
    """
    failures = config.search.failures
    if end.status == "diverged":
        return failures.diverged == "record"
    if end.status == "out_of_memory":
        network = config.network_with(parameters)
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
    most = batches * (training.batch_size if by_graphs else _MOST_MICRO_BATCHES)
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
