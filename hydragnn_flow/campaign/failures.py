"""Failures of segments, and their consequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from hydragnn_flow.config import NetworkConfig, RunConfig
from hydragnn_flow.config.search import Failures
from hydragnn_flow.segment import SegmentResult

# A step's size may be a budget of atoms or edges, which says nothing about its number of graphs.
_MOST_MICRO_BATCHES = 64


def is_final(config: RunConfig, parameters: Mapping[str, Any], end: SegmentResult) -> bool:
    """Whether a bad end is the trial's own, to be recorded and not tried again.

    Parameters
    ----------
    config
        Says how failures are treated.
    parameters
        Of the trial.
    end
        How its last segment ended.
    """
    failures = config.search.failures
    if end.status == "diverged":
        return failures.diverged == "record"
    if end.status == "out_of_memory":
        network = config.network_with(parameters)
        more = takes_more(failures, network, end.accumulation_steps, end.batches)
        return failures.out_of_memory != "retry" and not more
    # An interrupted or refused segment tells nothing about its trial.
    return failures.lost == "record" and end.status not in ("ok", "interrupted", "refused")


def takes_more(failures: Failures, network: NetworkConfig, steps: int, batches: int = 1) -> bool:
    """Whether more than ``steps`` micro-batches may be accumulated: same gradient, less memory.

    A step has ``batches``.
    """
    training = network.Training
    by_graphs = training.Batching is None or training.Batching.mode == "fixed"
    most = batches * (training.batch_size if by_graphs else _MOST_MICRO_BATCHES)
    # RMSE does not add over micro-batches, so it cannot be accumulated.
    is_sum = training.loss_function_type != "rmse"
    return failures.out_of_memory == "resize" and is_sum and steps < most


def times_too_large(failures: Failures, results: Sequence[SegmentResult]) -> int:
    """Number of times that a segment ran out of memory and is now to need less."""
    if failures.out_of_memory != "resize":
        return 0
    return sum(result.status == "out_of_memory" for result in results)


def fewest_micro_batches(
    failures: Failures, results: Sequence[SegmentResult], width: int, batches: int = 1
) -> int:
    """Number of micro-batches of each of ``width`` GCDs after segments that ran out of memory.

    With half as many graphs each as the smallest that did not fit; 1 if all did. A step has
    ``batches``.
    """
    if not times_too_large(failures, results):
        return 1
    too_few = max(
        Fraction(result.accumulation_steps * max(1, len(result.gcds)), result.batches)
        for result in results
        if result.status == "out_of_memory"
    )
    return math.ceil(2 * too_few * batches / width)
