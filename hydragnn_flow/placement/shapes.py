"""Shapes: more GCDs for segments that would end last, where GCDs would idle."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hydragnn_flow.placement.fleet import Fleet, Node, Resident
from hydragnn_flow.placement.placer import Segment

# A segment at work is stopped and placed anew where that saves this much of the time to its end
# [s], and this fraction of it. To stop, to read the checkpoint and to join takes a part of that.
LEAST_SAVED, LEAST_SAVED_FRACTION = 60.0, 0.25

Shapes = Callable[[Segment], Sequence[Segment]]
"""A segment -> the same segment on each number of GCDs that it may have, itself first."""


def useful_widths(gcds_of_a_node: int, most: int) -> Iterator[int]:
    """Numbers of GCDs that a segment may have: powers of two in a node, then of whole nodes.

    Parameters
    ----------
    gcds_of_a_node
        Their number on a node.
    most
        The largest number.
    """
    width = 1
    while width < min(gcds_of_a_node, most + 1):
        yield width
        width *= 2
    width = gcds_of_a_node
    while width <= most:
        yield width
        width *= 2


def widened(
    ready: Sequence[Segment], gcds: int, shapes: Shapes[Segment], enough: float = 0.0
) -> list[Segment]:
    """Let segments have more GCDs than one, so that the last of them ends as early as it can.

    Again and again the segment that would end last gets its next larger number of GCDs, as long as
    there are any. The others keep what they have once it can have no more: it would be the last in
    any case.

    Parameters
    ----------
    ready
        Segments that could run now.
    gcds
        GCDs for them all.
    shapes
        What each may be.
    enough
        Time that others will be at work anyway [s]; nothing needs to end before.

    Returns
    -------
    list of Segment
        The same segments, those that may have more GCDs with the shapes up to that number.
    """
    left = gcds - sum(segment.width for segment in ready)
    if left <= 0:
        return [*ready]
    may_be: dict[int, Sequence[Segment]] = {}
    last = [(-segment.seconds, place, 0) for place, segment in enumerate(ready)]
    heapq.heapify(last)
    taken = [0] * len(ready)
    while last and left > 0 and -last[0][0] > enough:
        _, place, level = heapq.heappop(last)
        options = may_be.setdefault(place, shapes(ready[place]))
        if level + 1 == len(options):
            break
        more = options[level + 1].width - options[level].width
        if more <= left:
            left -= more
            taken[place] = level + 1
            heapq.heappush(last, (-options[level + 1].seconds, place, level + 1))
    return [
        replace(segment, wider=tuple(may_be[place][1 : taken[place] + 1]))
        if taken[place]
        else segment
        for place, segment in enumerate(ready)
    ]


@dataclass(frozen=True)
class AtWork:
    """A segment at work that may go on over more GCDs."""

    resident: Resident
    seconds: Sequence[tuple[int, float]]
    """(GCDs, time [s]) of all of the segment, for each number of GCDs that it may have; those it
    has come first."""


def to_place_anew(at_work: Sequence[AtWork], fleet: Fleet, now: float) -> list[Resident]:
    """Choose segments at work that are to stop at a checkpoint and go on over more GCDs.

    For a time in which GCDs have nothing to do and nothing is ready. The segment that would end
    last is the first; each gets the largest number of GCDs that are free beside its own.

    Parameters
    ----------
    at_work
        Segments at work on GCDs of their own.
    fleet
        The GCDs.
    now
        The time [s].

    Returns
    -------
    list of Resident
        Those to be stopped.
    """
    idle = _Idle(fleet)
    chosen = []
    order = sorted(at_work, key=lambda one: -one.resident.remaining(now))
    for one in order:
        remaining = one.resident.remaining(now)
        if remaining < LEAST_SAVED or not idle.gcds:
            break
        (_, whole), *wider = one.seconds
        for width, seconds in reversed(wider):
            saved = remaining * (1 - seconds / whole)
            if saved < max(LEAST_SAVED, LEAST_SAVED_FRACTION * remaining):
                continue
            if idle.take(width, one.resident):
                chosen.append(one.resident)
                break
    return chosen


class _Idle:
    """GCDs with nothing to do, by node, of which some are promised."""

    def __init__(self, fleet: Fleet) -> None:
        self._size = fleet.size
        self._nodes: dict[str, Node] = {node.host.name: node for node in fleet.nodes}
        self._free = {name: node.free for name, node in self._nodes.items()}
        self.gcds = sum(self._free.values())

    def take(self, width: int, resident: Resident) -> bool:
        """Promise GCDs to a segment, those it has among them; says whether there are enough."""
        free = dict(self._free)
        for spot in resident.spots:
            if spot.node in free:
                free[spot.node] += 1
        if width <= self._size:
            found = [name for name in free if free[name] >= width]
            taken = [min(found, key=lambda name: free[name])] if found else []
            each = width
        else:
            taken, each = self._whole(free, -(-width // self._size)), self._size
        if not taken:
            return False
        for name in taken:
            free[name] -= each
        self._free = free
        self.gcds = sum(free.values())
        return True

    def _whole(self, free: dict[str, int], number: int) -> list[str]:
        """Whole nodes of one block."""
        blocks: dict[str, list[str]] = {}
        for name, left in free.items():
            if left == self._size:
                blocks.setdefault(self._nodes[name].host.block, []).append(name)
        return next((names[:number] for names in blocks.values() if len(names) >= number), [])
