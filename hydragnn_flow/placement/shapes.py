"""Shapes: more GCDs for segments (jobs of training) that would end last, while GCDs would idle."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from hydragnn_flow.placement.fleet import Fleet, Node, Resident, Spot, lasts
from hydragnn_flow.placement.placer import Segment

# A running segment is stopped and resharded if that saves this much time [s] and this fraction of
# its remaining time. Stopping, reading the checkpoint and joining cost some of it.
LEAST_SAVED, LEAST_SAVED_FRACTION = 60.0, 0.25
SURELY_BEFORE = 0.4
"""Fraction of another segment's time below which a segment is sure to end before it."""

Shapes = Callable[[Segment], Sequence[Segment]]
"""Function from a segment to its versions on each number of GCDs that it may have, itself first."""


def useful_widths(gcds_of_a_node: int, most: int) -> Iterator[int]:
    """Yield the numbers of GCDs (devices) that may be given to a segment, in increasing order.

    The numbers are powers of two within a node, then the GCDs of one, two, four nodes and so on.

    Parameters
    ----------
    gcds_of_a_node
        Number of GCDs on a node.
    most
        Largest number of GCDs to yield.
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
    """Let segments have several GCDs (devices), so that the last segment ends as soon as possible.

    Repeatedly the segment that would end last gets its next larger number of GCDs. Where too few
    GCDs are left for that, the segment that would end next to last gets more, and so frees its GCDs
    earlier. Once the segment that would end last can have no more GCDs, the others get none: that
    would not help.

    Parameters
    ----------
    ready
        Segments that could run now.
    gcds
        Number of GCDs for all ready segments together.
    shapes
        Function that returns the versions of a segment by number of GCDs, itself first.
    enough
        Time for which other segments will run anyway [s]; no ready segment needs to end earlier.

    Returns
    -------
    list of Segment
        The same segments in the same order. A segment that may have more GCDs has its versions up
        to that number in :attr:`Placeable.wider`.
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
        if more > left:
            continue
        left -= more
        taken[place] = level + 1
        heapq.heappush(last, (-options[level + 1].seconds, place, level + 1))
    return [
        replace(segment, wider=tuple(may_be[place][1 : taken[place] + 1]))
        if taken[place]
        else segment
        for place, segment in enumerate(ready)
    ]


Times = Sequence[tuple[int, float]]
"""Pairs (number of GCDs, time [s]) of a segment, for each number it may have; its present one
first."""


def to_place_anew(
    at_work: Iterable[Resident],
    times: Callable[[Resident], Times],
    fleet: Fleet,
    now: float,
) -> list[Resident]:
    """Choose running segments that are to stop at a checkpoint and continue on more GCDs (devices).

    Call it when GCDs are idle and no segment is ready. The segment that would end last is
    considered first. Each chosen one may get as many GCDs as are idle, its own included. Segments
    that surely end before the last of the chosen ones are left alone.

    Parameters
    ----------
    at_work
        Running segments that may have more GCDs.
    times
        Function that returns the time of a whole segment [s] for each number of GCDs it may have.
    fleet
        GCDs of the campaign.
    now
        Current time [s], by the campaign's clock.
    """
    idle = _Idle(fleet, now)
    chosen: list[Resident] = []
    last = 0.0
    # A segment that has just started already got all the GCDs there were for it.
    settled = [one for one in at_work if now - one.since >= LEAST_SAVED]
    for resident in sorted(settled, key=lambda one: -one.remaining(now)):
        remaining = resident.remaining(now)
        if remaining < max(LEAST_SAVED, SURELY_BEFORE * last) or not idle.gcds:
            break
        (_, whole), *wider = times(resident)
        for width, seconds in reversed(wider):
            new = remaining * seconds / whole
            if remaining - new < max(LEAST_SAVED, LEAST_SAVED_FRACTION * remaining):
                continue
            if idle.take(width, resident):
                chosen.append(resident)
                remaining = new
                break
        last = max(last, remaining)
    return chosen


def to_part(at_work: Iterable[Resident], now: float) -> list[Resident]:
    """Choose segments that share a GCD (device) and are to stop at a checkpoint.

    Call this if sharing a GCD does not pay.

    On each shared GCD the segment that would end last continues. So do segments that started less
    than a minute ago, or should end within a minute.
    """
    packs: defaultdict[Spot, list[Resident]] = defaultdict(list)
    for resident in at_work:
        if not resident.alone:
            packs[resident.spots[0]].append(resident)
    chosen: list[Resident] = []
    for residents in packs.values():
        *others, _ = sorted(residents, key=lambda one: one.remaining(now))
        chosen += [one for one in others if min(one.remaining(now), now - one.since) >= LEAST_SAVED]
    return chosen


class _Idle:
    """Idle GCDs of each node, without GCDs that were promised to segments."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self._size, self.gcds = fleet.size, 0
        self._nodes: dict[str, Node] = {}
        self._by_free: list[dict[str, None]] = [{} for _ in range(fleet.size + 1)]
        self._whole: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._free: dict[str, int] = {}
        for node in fleet.nodes:
            if lasts(node.host, math.inf, now):
                self._nodes[node.host.name] = node
                self._set(node.host.name, node.free)

    def take(self, width: int, resident: Resident) -> bool:
        """Promise ``width`` GCDs to a running segment, its present GCDs included.

        Return False, and promise none, if there are too few.
        """
        own = [
            spot.node
            for spot in resident.spots
            if spot.node in self._nodes
            and len(self._nodes[spot.node].gcds[spot.gcd].residents) == 1
        ]
        for name in own:
            self._set(name, self._free[name] + 1)
        taken, each = self._found(width)
        for name in taken:
            self._set(name, self._free[name] - each)
        if not taken:
            for name in own:
                self._set(name, self._free[name] - 1)
        return bool(taken)

    def _found(self, width: int) -> tuple[list[str], int]:
        """Return names of nodes with ``width`` idle GCDs, and the number of GCDs to take on each.

        There are no names if too few GCDs are idle.
        """
        if width <= self._size:
            fitting = (names for names in self._by_free[width:] if names)
            return [next(iter(names)) for names in islice(fitting, 1)], width
        number = -(-width // self._size)
        blocks = (names for names in self._whole.values() if len(names) >= number)
        return [*islice(next(blocks, {}), number)], self._size

    def _set(self, name: str, free: int) -> None:
        before = self._free.get(name, 0)
        self._by_free[before].pop(name, None)
        self._by_free[free][name] = None
        whole = self._whole[self._nodes[name].host.block]
        whole.pop(name, None)
        if free == self._size:
            whole[name] = None
        self.gcds += free - before
        self._free[name] = free
