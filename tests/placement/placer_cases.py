"""Segments as the placer sees them, by name, and fleets of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydragnn_flow.placement import Estimate, Fleet, Gcd, Host, Placeable, Resident, Spot, place

WHOLE = Estimate(1.0, 1.0, uncorrected_seconds=1.0, busy=1.0)


@dataclass(frozen=True, kw_only=True)
class Segment(Placeable):
    item: int


def segments(*estimates: tuple[float, float, float]) -> list[Segment]:
    """Segments of (seconds, GiB, busy), named by their position."""
    return [
        Segment(item=i, estimate=Estimate(s, gib, uncorrected_seconds=s, busy=busy))
        for i, (s, gib, busy) in enumerate(estimates)
    ]


def gang(width: int, seconds: float) -> Segment:
    """A segment that takes so long on so many GCDs."""
    estimate = Estimate(width * seconds, 1.0, uncorrected_seconds=width * seconds, busy=1.0)
    return Segment(item=100 + width, estimate=estimate, width=width)


def busy_until(fleet: Fleet, spots: Sequence[Spot], until: float) -> Resident:
    """Something that has GCDs to itself, and is expected to have them so long."""
    return fleet.begin(spots, WHOLE, until, 0.0, alone=True)


def one_node(gcd: Gcd, free: int, busy: Sequence[float] = ()) -> Fleet:
    """A node with so many free GCDs, and others that are busy for so long."""
    fleet = Fleet(gcd, free + len(busy))
    fleet.update([Host("node0", "block0")])
    for place_, seconds in enumerate(busy):
        busy_until(fleet, [Spot("node0", place_)], seconds)
    return fleet


def by_gcd(placed: Iterable[Any]) -> list[list[Any]]:
    """Segments that run side by side, GCD by GCD; one of several GCDs is there once."""
    found = defaultdict[Spot, list[Any]](list)
    for placement in placed:
        found[placement.resident.spots[0]].append(placement.segment)
    return [*found.values()]


def on_one_node(
    ready: Sequence[Any], gcd: Gcd, free: int, busy: Sequence[float] = ()
) -> tuple[list[list[Any]], list[Any]]:
    """What a node with so many free GCDs runs, and others that are busy for so long."""
    placed, rest = place(ready, one_node(gcd, free, busy), 0.0)
    return by_gcd(placed), rest
