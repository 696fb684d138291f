"""Placer: chooses which ready segments (jobs of training) run now, and on which GCDs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hydragnn_flow.placement.cost_model import Estimate, Gcd
from hydragnn_flow.placement.fleet import Fleet, Node, Resident, Spot, lasts


class Room:
    """Idle GCDs (devices) of all nodes, which are given out to segments (jobs of training).

    GCDs of one segment are close to each other, since they communicate. A segment of one GCD goes
    to the node with the fewest idle GCDs, so that whole nodes stay for others. A segment of several
    GCDs goes to one node. A segment wider than a node goes to whole nodes of one block (batch job),
    or of several blocks if it is wider than a block. No segment goes to a node whose batch job ends
    before the segment could make progress.

    Parameters
    ----------
    fleet
        GCDs of all nodes. The caller registers assigned GCDs by :meth:`Fleet.begin`.
    now
        Current time [s], by the campaign's clock.
    most
        Maximum number of idle GCDs to assign.
    """

    def __init__(self, fleet: Fleet, now: float, most: float = math.inf) -> None:
        self._fleet, self._now, self._most = fleet, now, most
        self._taken = 0
        self._kept: _Reservation | None = None

    @property
    def free(self) -> int:
        """Number of idle GCDs (devices) that can still be assigned."""
        return int(min(self._fleet.free, self._most - self._taken))

    def take(self, width: int, seconds: float) -> list[Spot] | None:
        """Assign idle GCDs (devices), close to each other, to a segment (job of training).

        Parameters
        ----------
        width
            Number of GCDs that the segment needs.
        seconds
            Expected time of the segment on these GCDs [s].

        Returns
        -------
        list of Spot
            The GCDs in the order of the segment's ranks (processes); None if too few suitable GCDs
            are idle and not reserved for another segment.
        """
        if width > self.free:
            return None
        spots = self._on_one_node(width, seconds) if width <= self._fleet.size else None
        spots = spots or self._on_several(width, seconds)
        if spots is not None:
            self._taken += width
        return spots

    def join(self, estimate: Estimate, seconds: float) -> Spot | None:
        """Find a busy GCD (device) that a segment of one GCD can share; None if there is none.

        ``seconds`` is the expected time of the segment [s].
        """
        return self._fleet.shared(estimate, seconds, self._now)

    def reserve(self, width: int, is_late: bool) -> None:
        """Reserve GCDs (devices) for a segment that cannot start now, unless some are reserved.

        Parameters
        ----------
        width
            Number of GCDs that the segment needs. The nodes that are expected to have them idle
            first are reserved.
        is_late
            True to let no other segment start on the reserved nodes first, even one that should end
            in time. The nodes with the most idle GCDs are then reserved, because the number of idle
            GCDs on them only grows.
        """
        if self._kept is not None:
            return
        size = self._fleet.size
        if width <= size:
            choices = [[node] for node in self._fleet.nodes]
        else:
            number = math.ceil(width / size)
            first = _most_free if is_late else self._end
            groups = self._groups(width, [*self._fleet.nodes])
            choices = [sorted(group, key=first)[:number] for group in groups]
            choices = [choice for choice in choices if len(choice) == number]
        found = [_Reservation.of(choice, width, self._now) for choice in choices]
        found = [one for one in found if one.lasts(self._now)]
        if not found:
            return  # the GCDs for it have not come yet
        if is_late:
            best = max(found, key=lambda one: sum(node.free for node in one.nodes))
            best.seconds, best.spare = 0.0, 0
        else:
            best = min(found, key=lambda one: one.seconds)
        self._kept = best
        self._fleet.keep(best.nodes, is_kept=True)

    def close(self) -> None:
        """Release the GCDs (devices) that were reserved for a segment, if there are any."""
        if self._kept is not None:
            self._fleet.keep(self._kept.nodes, is_kept=False)
            self._kept = None

    def _on_one_node(self, width: int, seconds: float) -> list[Spot] | None:
        node = self._fleet.fullest(width, seconds, self._now)
        kept = self._kept
        if node is None and kept is not None and width <= self._fleet.size:
            suitable = [one for one in kept.nodes if one.free >= width]
            suitable = [one for one in suitable if lasts(one.host, seconds, self._now)]
            if suitable and kept.lets(width, seconds):
                node = min(suitable, key=lambda one: one.free)
        if node is None:
            return None
        empty = node.empty()
        return [next(empty) for _ in range(width)]

    def _on_several(self, width: int, seconds: float) -> list[Spot] | None:
        """Find wholly idle nodes for a segment that is wider than a node."""
        size = self._fleet.size
        if width <= size:
            return None
        nodes = [node for nodes in self._fleet.whole().values() for node in nodes]
        if self._kept is not None and seconds <= self._kept.seconds:
            nodes += [node for node in self._kept.nodes if node.free == size]
        nodes = [node for node in nodes if lasts(node.host, seconds, self._now)]
        number = math.ceil(width / size)
        groups = [group for group in self._groups(width, nodes) if len(group) >= number]
        if not groups:
            return None
        found = min(groups, key=len)[:number]
        return [spot for node in found for spot in node.empty()][:width]

    def _groups(self, width: int, nodes: Sequence[Node]) -> list[list[Node]]:
        """Group nodes by block (batch job); into one group if the segment is wider than a block."""
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            block = "" if width > self._fleet.gcds_of_a_block else node.host.block
            groups.setdefault(block, []).append(node)
        return list(groups.values())

    def _end(self, node: Node) -> float:
        """Return the expected time until all GCDs of a node are idle [s]."""
        return max(node.ends(self._now), default=0.0)


@dataclass
class _Reservation:
    """Nodes reserved for a segment, and the number of their GCDs that others may have."""

    nodes: list[Node]
    seconds: float
    """Time until the segment is expected to start [s]."""
    spare: int

    @classmethod
    def of(cls, nodes: list[Node], width: int, now: float) -> _Reservation:
        if len(nodes) > 1:  # all of their GCDs are to be free
            return cls(
                nodes, max((end for node in nodes for end in node.ends(now)), default=0.0), 0
            )
        (node,) = nodes
        ends = sorted(node.ends(now))
        seconds = ends[width - node.free - 1] if width > node.free else 0.0
        return cls(nodes, seconds, node.free + sum(end <= seconds for end in ends) - width)

    def lasts(self, now: float) -> bool:
        """True if the nodes last long enough for the segment to make progress."""
        return all(lasts(node.host, math.inf, now + self.seconds) for node in self.nodes)

    def lets(self, width: int, seconds: float) -> bool:
        """Return True if another segment may start here without delaying the reserved segment.

        GCDs that it still occupies when the reserved segment starts are subtracted from ``spare``.
        """
        if seconds <= self.seconds:
            return True
        if width > self.spare:
            return False
        self.spare -= width
        return True


def _most_free(node: Node) -> int:
    return -node.free


# A segment of several GCDs that has waited this many times the longest expected time is no longer
# overtaken: the estimates that let others overtake it have been wrong.
LATE = 20.0


_Same = TypeVar("_Same", bound="Placeable")


@dataclass(frozen=True, kw_only=True)
class Placeable:
    """Segment (job of training) that is ready to run, with what decides where it is placed."""

    estimate: Estimate
    """Predicted cost; its ``seconds`` are summed over the GCDs."""
    width: int = 1
    """Number of GCDs that the segment runs on; more than one are never shared."""
    ready_since: float = 0.0
    """Time from which the segment could have run, by the campaign's clock [s]."""
    is_urgent: bool = False
    """True if the segment was cut short, and its progress is of no use before it continues."""
    keeps_gcd: bool = False
    """True if no other segment may join the segment on the idle GCD on which it starts."""
    wider: tuple[Any, ...] = ()
    """Versions of the segment on more GCDs, used if that many are idle; the widest last."""

    def shapes(self: _Same) -> list[_Same]:
        """Return the segment's version for each number of GCDs (devices) it may use, widest first.

        The segment itself is the last.
        """
        return [*reversed(self.wider), self]

    @property
    def seconds(self) -> float:
        """Expected time that each of the segment's GCDs will be busy [s]."""
        return self.estimate.seconds / self.width


Segment = TypeVar("Segment", bound=Placeable)


@dataclass(frozen=True)
class Placement(Generic[Segment]):
    """Segment (job of training) that starts now, with the GCDs (devices) it was given."""

    segment: Segment
    resident: Resident
    """Record of the segment in the fleet, with its GCDs in the order of its ranks."""


def place(
    ready: Sequence[Segment],
    fleet: Fleet,
    now: float,
    most: float = math.inf,
    *,
    may_join: bool = True,
) -> tuple[list[Placement[Segment]], list[Segment]]:
    """Choose the segments (jobs of training) that start now, and assign GCDs (devices) to them.

    Segments that were cut short go first, then the longest (Graham, SIAM J. Appl. Math. 17, 416
    (1969)). Each gets an idle GCD, or as many neighbouring ones as it may have. When none is left,
    segments of one GCD join running ones where memory and computing time allow, on the GCD with
    the fewest segments; a segment that fills a GCD keeps it to itself. As soon as a co-located
    segment ends, another may take its place.

    Among the segments of several GCDs, the one that has waited longest goes before all that were
    not cut short. If no node has enough idle GCDs, or no block (batch job) enough idle nodes, it
    gets a reservation of the nodes that are expected to have enough first. Other segments may start
    on these nodes if they would not delay it (EASY backfilling: Lifka, JSSPP 1995, LNCS 949, 295),
    and on all other nodes.

    No segment starves: a segment that has waited longer than the longest expected time goes before
    all others except those that were cut short. If it needs several GCDs and has waited very long,
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
        Segments that start now with their GCDs, and the remaining segments.
    """
    patience = max((segment.seconds for segment in ready), default=0.0)
    if any(segment.width > 1 for segment in ready):
        patience = max(patience, fleet.longest(now))
    placed: list[Placement[Segment]] = []
    rest: list[Segment] = []
    with closing(Room(fleet, now, most)) as room:
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
    """Return whether a segment is expected to exceed the memory of a GCD (device) even alone."""
    return estimate.memory_gib > gcd.memory_gib
