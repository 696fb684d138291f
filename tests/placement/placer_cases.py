"""Segments as the placer sees them, by name."""

from __future__ import annotations

from dataclasses import dataclass

from hydragnn_flow.placement import Estimate


@dataclass(frozen=True)
class Segment:
    item: int | str
    estimate: Estimate
    width: int = 1
    is_urgent: bool = False
    ready_since: float = 0.0


def segments(*estimates: tuple[float, float, float]) -> list[Segment]:
    """Segments of (seconds, GiB, busy), named by their position."""
    return [
        Segment(i, Estimate(s, gib, uncorrected_seconds=s, busy=busy))
        for i, (s, gib, busy) in enumerate(estimates)
    ]
