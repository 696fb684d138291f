"""Room: the GCDs of a fleet that can be assigned now, and those reserved for a waiting segment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hydragnn_flow.placement.cost_model import Estimate
from hydragnn_flow.placement.fleet import Fleet, Node, Spot, lasts


class Room:
    """GCDs that can be assigned, so that ranks which communicate are close.

    A segment of one GCD goes where the fewest are idle, on the node and in its block, so that whole
    nodes stay for others. One of several GCDs goes on one node; one wider than a node on whole
    nodes of one block, or of several blocks if none has enough. None goes to a node whose batch
    job ends before it could make progress.

    Parameters
    ----------
    fleet
        All GCDs. The caller registers assigned ones by :meth:`Fleet.begin`.
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
        """Number of idle GCDs that can still be assigned."""
        return int(min(self._fleet.free, self._most - self._taken))

    def take(self, width: int, seconds: float) -> list[Spot] | None:
        """Assign idle GCDs to a segment.

        Parameters
        ----------
        width
            Number of GCDs that it needs.
        seconds
            Expected time on them [s].

        Returns
        -------
        list of Spot
            The GCDs in the order of the ranks; None if they are busy or reserved for another
            segment.
        """
        if width > self.free:
            return None
        spots = self._on_one_node(width, seconds) if width <= self._fleet.size else None
        spots = spots or self._on_several(width, seconds)
        if spots is not None:
            self._taken += width
        return spots

    def join(self, estimate: Estimate, seconds: float) -> Spot | None:
        """Find a busy GCD that a segment can join; None if there is none."""
        return self._fleet.shared(estimate, seconds, self._now)

    def reserve(self, width: int, is_late: bool) -> None:
        """Reserve GCDs for a segment that cannot start now, unless there is a reservation.

        Parameters
        ----------
        width
            Number of GCDs that it needs. Those that are expected to be idle first are reserved.
        is_late
            True if no other segment may start on them first, even if it is expected to end in
            time. The nodes with the most idle GCDs are then reserved: that number only grows.
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

    def leave(self) -> None:
        """Release the reservation."""
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
        """Group nodes so that a segment wider than any of them may span a group."""
        groups: dict[str, list[Node]] = {}
        for node in nodes:
            block = "" if width > self._fleet.gcds_of_a_block else node.host.block
            groups.setdefault(block, []).append(node)
        return list(groups.values())

    def _end(self, node: Node) -> float:
        """Time until all GCDs of a node are expected to be idle [s]."""
        return max(node.ends(self._now), default=0.0)


@contextmanager
def room_of(fleet: Fleet, now: float, most: float = math.inf) -> Iterator[Room]:
    """Make a :class:`Room` whose reservation ends with the ``with`` block."""
    room = Room(fleet, now, most)
    try:
        yield room
    finally:
        room.leave()


@dataclass
class _Reservation:
    """Nodes reserved for a segment, with the number of GCDs that it leaves to others."""

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
        """Admit another segment on these nodes now, if it does not delay the reserved one."""
        if seconds <= self.seconds:
            return True
        if width > self.spare:
            return False
        self.spare -= width
        return True


def _most_free(node: Node) -> int:
    return -node.free
