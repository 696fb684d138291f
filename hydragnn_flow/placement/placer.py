"""Placer: which of the segments that are ready run now, and on which GCDs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hydragnn_flow.placement.cost_model import Estimate, Gcd
from hydragnn_flow.placement.fleet import Fleet, Resident, Spot
from hydragnn_flow.placement.room import Room, room_of

# A segment of several GCDs that has waited for this many times the length of the longest is not
# overtaken any more: the estimates that let others overtake it have been wrong.
LATE = 20.0


_Same = TypeVar("_Same", bound="Placeable")


@dataclass(frozen=True, kw_only=True)
class Placeable:
    """A segment ready to run, as far as its place depends on it."""

    estimate: Estimate
    """Its seconds are those on one GCD."""
    width: int = 1
    """Number of GCDs it runs on, all of them to itself if there are several."""
    ready_since: float = 0.0
    """Time from which it could have run [s]."""
    is_urgent: bool = False
    """Whether it was cut short: its progress is of no use before it continues."""
    keeps_gcd: bool = False
    """Whether it shares its GCD with no other, if it gets one with nothing to do."""
    wider: tuple[Any, ...] = ()
    """The segment on more GCDs, which it may have where they are free; the most come last."""

    def shapes(self: _Same) -> list[_Same]:
        """The segment on each number of GCDs that it may have now, the most first."""
        return [*reversed(self.wider), self]

    @property
    def seconds(self) -> float:
        """Time that its GCDs will be busy [s]."""
        return self.estimate.seconds / self.width


Segment = TypeVar("Segment", bound=Placeable)


@dataclass(frozen=True)
class Placement(Generic[Segment]):
    """A segment that begins now."""

    segment: Segment
    resident: Resident
    """Its GCDs, rank by rank, on which the fleet has it already."""


def place(
    ready: Sequence[Segment],
    fleet: Fleet,
    now: float,
    most: float = math.inf,
    *,
    may_join: bool = True,
) -> tuple[list[Placement[Segment]], list[Segment]]:
    """Choose what begins now, and put it on GCDs of the fleet.

    Segments that were cut short go first, then the longest (Graham, SIAM J. Appl. Math. 17, 416
    (1969)). Each goes on a GCD with nothing to do, or on as many as it may have that are side by
    side. When none is left, segments of one GCD join others at work, where memory and computing
    time allow, on the GCD with the fewest; one that fills a GCD keeps it to itself. As soon as one
    of those on a GCD ends, another may join the rest.

    Among the segments of several GCDs, the one that has waited longest goes before all that were
    not cut short. If no node has enough free GCDs, or no block enough free nodes, it has a
    reservation of those that will have them first; segments that would not delay it start there
    before (EASY backfilling: Lifka, JSSPP 1995, LNCS 949, 295), and elsewhere any.

    No segment waits for ever: one that has waited for longer than any other takes goes before all
    others but those that were cut short. If it needs several GCDs and has waited very long, nothing
    overtakes it on the nodes that are kept for it, whatever the estimates say.

    Parameters
    ----------
    ready
        Segments that could run now.
    fleet
        The GCDs; changed by this call.
    now
        The time, by the clock of ``ready_since`` [s].
    most
        GCDs with nothing to do that may be given work.
    may_join
        Whether segments may join others at work, and others them.

    Returns
    -------
    placed, rest
        What begins now, and the segments left over.
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
    """The segment on as many GCDs as it may have and are free; on its own number at least."""
    for shape in segment.shapes():
        spots = room.take(shape.width, shape.seconds)
        if spots is not None:
            return shape, spots
    return segment, None


def _in_order(ready: Sequence[Segment], now: float, patience: float) -> list[Segment]:
    """Segments in the order in which they get GCDs; first those that wait for ``patience`` [s]."""
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
    """Whether a segment is expected not to fit the memory of a GCD even alone."""
    return estimate.memory_gib > gcd.memory_gib
