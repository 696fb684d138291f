"""Segments as the placer sees them, by name."""

from __future__ import annotations

from dataclasses import dataclass

from hydragnn_flow.placement import Estimate, Placeable


@dataclass(frozen=True, kw_only=True)
class Segment(Placeable):
    item: int


def segments(*estimates: tuple[float, float, float]) -> list[Segment]:
    """Segments of (seconds, GiB, busy), named by their position."""
    return [
        Segment(item=i, estimate=Estimate(s, gib, uncorrected_seconds=s, busy=busy))
        for i, (s, gib, busy) in enumerate(estimates)
    ]
