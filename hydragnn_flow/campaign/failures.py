"""Failures of segments, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydragnn_flow.config import RunConfig
from hydragnn_flow.config.search import Failures
from hydragnn_flow.training.segment import SegmentResult

# Of a step whose size is a budget of atoms or edges, and so says nothing of its graphs.
_MOST_PARTS = 64


def is_final(config: RunConfig, parameters: Mapping[str, Any], end: SegmentResult) -> bool:
    """Whether a bad end is the trial's own, to be recorded and not tried again.

    Parameters
    ----------
    config
        Says what becomes of failures.
    parameters
        Of the trial.
    end
        How its last segment ended.
    """
    failures = config.search.failures
    if end.status == "diverged":
        return failures.diverged == "record"
    if end.status == "out_of_memory":
        network = config.network_values(parameters)
        return failures.out_of_memory != "retry" and not takes_more(failures, network, end.parts)
    # What ends a segment early, or has no place for it, says nothing of it.
    return failures.lost == "record" and end.status not in ("ok", "interrupted", "refused")


def takes_more(failures: Failures, network: Mapping[str, Any], parts: int) -> bool:
    """Whether steps may be taken in more parts, which changes nothing but their memory."""
    training = network["Training"]
    most = _MOST_PARTS if training.get("Batching") else training["batch_size"]
    # The root of a step's mean square is not made of its parts' roots.
    is_sum = training.get("loss_function_type") != "rmse"
    return failures.out_of_memory == "resize" and is_sum and parts < most


def times_too_large(failures: Failures, results: Sequence[SegmentResult]) -> int:
    """Number of times that a segment ran out of memory and is now to need less."""
    if failures.out_of_memory != "resize":
        return 0
    return sum(result.status == "out_of_memory" for result in results)
