"""Choice of the segments that run together on a GCD."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hydragnn_flow.placement.cost_model import Estimate, Gcd

# A little over full: two half-busy segments rarely wait for each other at the same moment.
FULL = 1.05
# Part of a GCD's memory that estimates may fill; they are estimates.
MEMORY_FRACTION = 0.9
# A bundle ends with its longest segment, so segments share a GCD only with others about as long.
LONGEST_TO_SHORTEST = 3.0
# A segment of several GCDs that has waited for this many times the length of the longest is not
# overtaken any more: the estimates that let others overtake it have been wrong.
LATE = 20.0
# Positions behind the first of a bundle that are searched for others: thousands would take minutes.
_SEARCHED = 512


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

    @property
    def seconds(self) -> float:
        """Time that its GCDs will be busy [s]."""
        return self.estimate.seconds / self.width


Segment = TypeVar("Segment", bound=Placeable)


def next_bundles(
    ready: Sequence[Segment],
    gcd: Gcd,
    free_gcds: int,
    busy: Sequence[float] = (),
    now: float = 0.0,
) -> tuple[list[list[Segment]], list[Segment]]:
    """Choose what the free GCDs run.

    Segments that were cut short go first, then the longest (Graham, SIAM J. Appl. Math. 17, 416
    (1969)). Others near the first of a bundle in that order join it while there are more segments
    than free GCDs, and while memory, computing time and similar length allow; a segment that fills
    a GCD keeps it to itself.

    Among the segments of several GCDs, the one that has waited longest goes before all that were
    not cut short. If too few GCDs are free it has a reservation for the moment when enough will be;
    segments that would not delay it start before (EASY backfilling: Lifka, JSSPP 1995, LNCS 949,
    295).

    No segment waits for ever: one that has waited for longer than any other takes goes before all
    others but those that were cut short. If it needs several GCDs and has waited very long, nothing
    overtakes it, whatever the estimates say.

    Parameters
    ----------
    ready
        Segments that could run now.
    gcd
        The GCD, as all others of the site.
    free_gcds
        GCDs with nothing to do.
    busy
        For each of the others, how long it is expected to be busy [s].
    now
        The time, by the clock of ``ready_since`` [s].

    Returns
    -------
    bundles, rest
        The segments to run side by side, bundle by bundle, and those left over. A segment of
        several GCDs is a bundle of its own.
    """
    patience = max((*busy, *(segment.seconds for segment in ready)), default=0.0)
    queue, by_length = _in_order(ready, now, patience)
    ends = list(busy)
    narrow = sum(segment.width == 1 for segment in queue)
    least = _Least.of(queue)
    bundles: list[list[Segment]] = []
    rest: list[Segment] = []
    joined: set[int] = set()
    reservation: _Reservation | None = None
    for position, head in enumerate(queue):
        if position in joined:
            continue
        if free_gcds == 0:
            rest.append(head)
            continue
        if head.width > free_gcds:
            is_late = now - head.ready_since > LATE * patience
            reservation = reservation or _Reservation.of(head.width, free_gcds, ends, is_late)
            rest.append(head)
            continue
        if reservation is not None and not reservation.lets(head):
            rest.append(head)
            continue
        bundle = [head]
        free_gcds -= head.width
        if head.width == 1:
            narrow -= 1
            members = _joining(
                queue, position, joined, least, gcd, most=narrow - free_gcds, by_length=by_length
            )
            joined.update(members)
            narrow -= len(members)
            bundle += [queue[member] for member in members]
        ends += [max(segment.seconds for segment in bundle)] * head.width
        bundles.append(bundle)
    return bundles, rest


def _in_order(ready: Sequence[Segment], now: float, patience: float) -> tuple[list[Segment], int]:
    """Segments in the order in which they get GCDs, and from where on that is the order of length.

    Parameters
    ----------
    ready
        Segments that could run now.
    now
        The time [s].
    patience
        How long a segment waits before it goes first [s].
    """
    wide = [segment for segment in ready if segment.width > 1]
    oldest = min(wide, key=lambda segment: segment.ready_since, default=None)

    def place(segment: Segment) -> tuple[int, float]:
        if segment.is_urgent:
            return 0, -segment.seconds
        if now - segment.ready_since > patience:
            return 1, segment.ready_since
        return (2, 0.0) if segment is oldest else (3, -segment.seconds)

    places = sorted(((*place(segment), i) for i, segment in enumerate(ready)))
    return [ready[i] for *_, i in places], sum(rank < 3 for rank, *_ in places)


@dataclass
class _Reservation:
    """When a segment that has to wait will find its GCDs, and how many others will be free then."""

    seconds: float
    spare: int

    @classmethod
    def of(cls, width: int, free: int, busy: Sequence[float], is_late: bool) -> _Reservation:
        ends = sorted(busy)
        if width > free + len(ends):
            return cls(math.inf, 0)  # the GCDs for it are yet to come
        if is_late:
            return cls(0.0, 0)  # others took longer than they were expected to
        seconds = ends[width - free - 1]
        return cls(seconds, free + sum(end <= seconds for end in ends) - width)

    def lets(self, other: Placeable) -> bool:
        """Whether another segment may start now, going by its estimate."""
        if other.seconds <= self.seconds:
            return True
        if other.width > self.spare:
            return False
        self.spare -= other.width
        return True


@dataclass
class _Least:
    """Least load that any segment from each position of the queue on adds to a shared GCD."""

    busy: list[float]
    memory: list[float]

    @classmethod
    def of(cls, queue: Sequence[Placeable]) -> _Least:
        least = cls([], [])
        busy = memory = math.inf
        for segment in reversed(queue):
            if segment.width == 1:
                busy = min(busy, segment.estimate.busy)
                memory = min(memory, segment.estimate.memory_gib)
            least.busy.append(busy)
            least.memory.append(memory)
        least.busy.reverse()
        least.memory.reverse()
        return least


@dataclass
class Filling:
    """How many of the free GCDs some segments need at least, however they are bundled.

    Parameters
    ----------
    gcd
        The GCD, as all others of the site.
    free_gcds
        GCDs with nothing to do.
    """

    gcd: Gcd
    free_gcds: int
    _places: float = 0.0
    _busy: float = 0.0
    _memory: float = 0.0

    def add(self, estimate: Estimate, width: int) -> None:
        """Count one more; of more GCDs than are free it waits, and others run meanwhile."""
        if 1 < width <= self.free_gcds:
            self._places += width
            self._busy += width
            self._memory += width
            return
        self._places += 1 / self.gcd.most_segments
        if width == 1:
            self._busy += estimate.busy
            self._memory += min(1, estimate.memory_gib / (MEMORY_FRACTION * self.gcd.memory_gib))

    @property
    def is_full(self) -> bool:
        """Whether no GCD would be left for another."""
        return max(self._places, self._busy, self._memory) >= self.free_gcds


def _joining(
    queue: Sequence[Segment],
    head: int,
    taken: Collection[int],
    least: _Least,
    gcd: Gcd,
    most: int,
    by_length: int,
) -> list[int]:
    """Positions in the queue of those that share the GCD of its ``head``."""
    first, members = queue[head], list[int]()
    busy, memory = first.estimate.busy, first.estimate.memory_gib
    room = MEMORY_FRACTION * gcd.memory_gib
    shortest = first.seconds / LONGEST_TO_SHORTEST
    longest = first.seconds * LONGEST_TO_SHORTEST
    for position in range(head + 1, min(len(queue), head + 1 + _SEARCHED)):
        if len(members) >= most or len(members) + 1 == gcd.most_segments:
            break
        if busy + least.busy[position] > FULL or memory + least.memory[position] > room:
            break
        candidate = queue[position]
        if candidate.seconds < shortest and position >= by_length:
            break  # and so is every one behind it
        estimate = candidate.estimate
        if (
            position not in taken
            and candidate.width == 1
            and shortest <= candidate.seconds <= longest
            and busy + estimate.busy <= FULL
            and memory + estimate.memory_gib <= room
        ):
            busy += estimate.busy
            memory += estimate.memory_gib
            shortest = max(shortest, candidate.seconds / LONGEST_TO_SHORTEST)
            longest = min(longest, candidate.seconds * LONGEST_TO_SHORTEST)
            members.append(position)
    return members


def too_large(estimate: Estimate, gcd: Gcd) -> bool:
    """Whether a segment is expected not to fit the memory of a GCD even alone."""
    return estimate.memory_gib > gcd.memory_gib
