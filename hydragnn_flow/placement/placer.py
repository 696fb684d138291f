"""Placer: chooses which of the ready segments run now, and on which GCDs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hydragnn_flow.placement.cost_model import Estimate, Gcd
from hydragnn_flow.placement.fleet import Fleet, Resident, Spot
from hydragnn_flow.placement.room import Room, room_of

# A segment of several GCDs that has waited this many times the longest expected time is no longer
# overtaken: the estimates that let others overtake it have been wrong.
LATE = 20.0


_Same = TypeVar("_Same", bound="Placeable")


@dataclass(frozen=True, kw_only=True)
class Placeable:
    """Segment that is ready to run, with the properties that its placement depends on."""

    estimate: Estimate
    """Estimated cost; its seconds are those on one GCD."""
    width: int = 1
    """Number of GCDs it runs on; several are never shared."""
    ready_since: float = 0.0
    """Time from which it could have run [s]."""
    is_urgent: bool = False
    """True if it was cut short: its progress is of no use before it continues."""
    keeps_gcd: bool = False
    """True if it does not share a GCD that was idle when it started."""
    wider: tuple[Any, ...] = ()
    """Versions of the segment on more GCDs, for when they are idle; the widest last."""

    def shapes(self: _Same) -> list[_Same]:
        """Versions of the segment on each number of GCDs that it may have now, widest first."""
        return [*reversed(self.wider), self]

    @property
    def seconds(self) -> float:
        """Time that each of its GCDs will be busy [s]."""
        return self.estimate.seconds / self.width


Segment = TypeVar("Segment", bound=Placeable)


@dataclass(frozen=True)
class Placement(Generic[Segment]):
    """Segment that starts now."""

    segment: Segment
    resident: Resident
    """GCDs of the segment, rank by rank, as registered in the fleet."""


def place(
    ready: Sequence[Segment],
    fleet: Fleet,
    now: float,
    most: float = math.inf,
    *,
    may_join: bool = True,
) -> tuple[list[Placement[Segment]], list[Segment]]:
    """Choose the segments that start now, and put them on GCDs of the fleet.

    Segments that were cut short go first, then the longest (Graham, SIAM J. Appl. Math. 17, 416
    (1969)). Each gets an idle GCD, or as many neighbouring ones as it may have. When none is left,
    segments of one GCD join running ones where memory and computing time allow, on the GCD with
    the fewest; one that fills a GCD keeps it to itself. As soon as a co-located segment ends,
    another may take its place.

    Among the segments of several GCDs, the one that has waited longest goes before all that were
    not cut short. If no node has enough idle GCDs, or no block enough idle nodes, it gets a
    reservation of those that are expected to have them first. Segments that would not delay it
    start there before it (EASY backfilling: Lifka, JSSPP 1995, LNCS 949, 295), and elsewhere any.

    No segment starves: one that has waited longer than the longest expected time goes before all
    others except those that were cut short. If it needs several GCDs and has waited very long,
    nothing overtakes it on the nodes reserved for it, whatever the estimates say.

    Parameters
    ----------
    ready
        Segments that could run now.
    fleet
        GCDs of the campaign; changed by this call.
    now
        Current time, by the clock of ``ready_since`` [s].
    most
        Maximum number of idle GCDs to fill.
    may_join
        False if no segment may share a GCD with another.

    Returns
    -------
    placed, rest
        Segments that start now, and the remaining segments.
    """
    patience = max((segment.seconds for segment in ready), default=0.0)
    if any(segment.width > 1 for segment in ready):
        patience = max(patience, fleet.longest(now))
    placed: list[Placement[Segment]] = []
    rest: list[Segment] = []
    with room_of(fleet, now, most) as room:
        for segment in _in_order(ready, now, patience):
            shape, spots = _widest(segment, room)
            alone = shape.width > 1 or shape.keeps_gcd or not may_join
            if spots is None and segment.width == 1 and may_join:
                spot = room.join(segment.estimate, segment.seconds)
                spots, alone = (None if spot is None else [spot]), False
            if spots is None:
                if segment.width > 1:
                    is_late = now - segment.ready_since > LATE * patience
                    room.reserve(segment.width, is_late=is_late)
                rest.append(segment)
                continue
            resident = fleet.begin(spots, shape.estimate, now + shape.seconds, now, alone=alone)
            placed.append(Placement(shape, resident))
    return placed, rest


def _widest(segment: Segment, room: Room) -> tuple[Segment, list[Spot] | None]:
    """Return the widest version that fits on idle GCDs, with its GCDs; None if none fits."""
    for shape in segment.shapes():
        spots = room.take(shape.width, shape.seconds)
        if spots is not None:
            return shape, spots
    return segment, None


def _in_order(ready: Sequence[Segment], now: float, patience: float) -> list[Segment]:
    """Sort segments by priority; those that waited longer than ``patience`` [s] come early."""
    wide = [segment for segment in ready if segment.width > 1]
    oldest = min(wide, key=lambda segment: segment.ready_since, default=None)

    def place_of(segment: Segment) -> tuple[int, float]:
        if segment.is_urgent:
            return 0, -segment.seconds
        if now - segment.ready_since > patience:
            return 1, segment.ready_since
        return (2, 0.0) if segment is oldest else (3, -segment.seconds)

    return sorted(ready, key=place_of)


def too_large(estimate: Estimate, gcd: Gcd) -> bool:
    """True if a segment is expected not to fit in a GCD's memory even alone."""
    return estimate.memory_gib > gcd.memory_gib
