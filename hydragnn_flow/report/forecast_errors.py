"""Predicted against actual times of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.segment import SegmentResult


@dataclass(frozen=True)
class ForecastErrors:
    """Segments that did all they were sent for, and what was predicted for them."""

    segments: list[SegmentResult]
    predicted: NDArray[np.float64]
    """[n_segments, s]."""
    actual: NDArray[np.float64]
    """[n_segments, s]."""
    mape: float
    """Mean of |predicted − actual| / actual."""
    with_interval: int
    """Segments for which an interval was predicted."""
    held: float
    """Fraction of these that ended within it; NaN if there are none."""


def forecast_errors(segments: Sequence[SegmentResult]) -> ForecastErrors | None:
    """How well the times of segments were predicted; None if none can be compared.

    Parameters
    ----------
    segments
        Of trials and members. One that was cut short, ended early, or was trained fused with others
        was not predicted.
    """
    predicted_ones = [s for s in segments if s.predicted_seconds and s.fused == 1]
    whole = [s for s in predicted_ones if s.is_whole and s.seconds > 0]
    if not whole:
        return None
    predicted = np.array([s.predicted_seconds for s in whole], dtype=float)
    actual = np.array([s.seconds for s in whole])
    inside = [
        s.predicted_low <= s.seconds <= s.predicted_high
        for s in whole
        if s.predicted_low is not None and s.predicted_high is not None
    ]
    return ForecastErrors(
        whole,
        predicted,
        actual,
        float(np.mean(np.abs(predicted - actual) / actual)),
        len(inside),
        float(np.mean(inside)) if inside else float("nan"),
    )
