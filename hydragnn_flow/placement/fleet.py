"""Fleet: the GCDs of a campaign's nodes, and the segments (jobs of training) on each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

from hydragnn_flow.placement.cost_model import Estimate, Experience, Gcd

# Slightly over 1: two half-busy segments rarely wait for each other at the same moment.
FULL = 1.05
MEMORY_FRACTION = 0.9
"""Fraction of a GCD's memory that segments may fill by estimate; the rest allows for its error."""
# Least time left of its batch job with which a node gets a segment that the end will cut short [s]:
# enough to start a process there and to make progress.
SECONDS_TO_GET_FURTHER = 180.0
# Fraction of a GCD's time that nearly every segment needs.
_LEAST_BUSY = 0.1
_LEVELS = 20


class Host(NamedTuple):
    """Node that takes jobs, with the batch job that holds it."""

    name: str
    block: str
    """Identifier of the block (batch job) that the node belongs to."""
    ends: float = math.inf
    """Time at which the batch job ends, by the campaign's clock [s]."""


class Spot(NamedTuple):
    """Position of one GCD (device): the name of its node, and its index there."""

    node: str
    gcd: int
    """Position of the GCD on its node, from 0."""


@dataclass(eq=False)
class Resident:
    """Running segment (job of training), with the GCDs (devices) that it occupies."""

    spots: Sequence[Spot]
    busy: float
    memory_gib: float
    until: float
    """Time at which the segment is expected to end, by the campaign's clock [s]."""
    alone: bool
    """True if no other segment may share its GCDs; False if others may."""
    since: float
    _crowd: float = 0.0

    def remaining(self, now: float) -> float:
        """Return the expected time until the segment ends [s].

        A segment that is late is assumed to need as long again as it is late.
        """
        return abs(self.until - now)


@dataclass(eq=False)
class _Gcd:
    """Segments on a GCD, and their number integrated over time."""

    residents: list[Resident] = field(default_factory=list)
    crowd: float = 0.0
    since: float = 0.0

    def count(self, now: float) -> float:
        self.crowd += len(self.residents) * (now - self.since)
        self.since = now
        return self.crowd


@dataclass(eq=False)
class Node:
    """Node of the :class:`Fleet`, with the segments (jobs of training) on its GCDs (devices)."""

    host: Host
    gcds: list[_Gcd]
    takes_work: bool = True
    free: int = 0
    """Number of idle GCDs."""
    is_kept: bool = False
    """True if the node is reserved for a segment that needs several GCDs."""

    def ends(self, now: float) -> list[float]:
        """Return the expected time until each busy GCD (device) of the node is idle [s]."""
        return [
            max(resident.remaining(now) for resident in gcd.residents)
            for gcd in self.gcds
            if gcd.residents
        ]

    def empty(self) -> Iterator[Spot]:
        """Yield the positions of the idle GCDs (devices) of the node."""
        for position, gcd in enumerate(self.gcds):
            if not gcd.residents:
                yield Spot(self.host.name, position)


class Fleet:
    """GCDs (devices) of a campaign's nodes, with the segments on each and their expected ends.

    The time that a change takes does not depend on the number of running segments.

    Parameters
    ----------
    gcd
        Speed and memory of one GCD.
    gcds_of_a_node
        Number of GCDs on a node.
    gcds_of_a_block
        Number of GCDs in a complete batch job.
    """

    def __init__(self, gcd: Gcd, gcds_of_a_node: int, gcds_of_a_block: float = math.inf) -> None:
        self.gcd, self.size, self.gcds_of_a_block = gcd, gcds_of_a_node, gcds_of_a_block
        self.sharing_pays = True
        """True if a segment may join others on a GCD; False if each gets a GCD of its own."""
        self._nodes: dict[str, Node] = {}
        self._hosts: list[Host] = []
        self.at_work = 0
        """Number of busy GCDs, including those of nodes that take no further work."""
        self.free = 0
        """Number of idle GCDs on nodes that take work."""
        self.packs = 0
        """Number of GCDs with more than one segment."""
        # Nodes by their number of idle GCDs and by block.
        self._by_free: list[defaultdict[str, dict[str, Node]]] = [
            defaultdict(dict) for _ in range(gcds_of_a_node + 1)
        ]
        self._free_of_block: defaultdict[str, int] = defaultdict(int)
        # GCDs that others may join, by their number of segments and the level of their idle time.
        self._shared: defaultdict[tuple[int, int], dict[Spot, _Gcd]] = defaultdict(dict)

    @property
    def nodes(self) -> Iterable[Node]:
        """Nodes of the fleet that take new segments (jobs of training)."""
        return (node for node in self._nodes.values() if node.takes_work)

    def update(self, hosts: Sequence[Host]) -> None:
        """Set the nodes that take jobs from now on; segments on other nodes continue."""
        if hosts == self._hosts:
            return
        coming = {host.name: host for host in hosts}
        for name, node in [*self._nodes.items()]:
            host = coming.pop(name, None)
            if host is None:
                self._set(node, node.host, takes_work=False)
            elif not node.takes_work or host != node.host:
                self._set(node, host, takes_work=True)
        for name, host in coming.items():
            node = self._nodes[name] = Node(host, [_Gcd() for _ in range(self.size)], False)
            node.free = self.size
            self._set(node, host, takes_work=True)
        self._hosts = [*hosts]

    def begin(
        self, spots: Sequence[Spot], estimate: Estimate, until: float, now: float, *, alone: bool
    ) -> Resident:
        """Register a segment (job of training) as running on given GCDs; return its record.

        Parameters
        ----------
        spots
            GCDs of nodes in the fleet, rank by rank.
        estimate
            Estimated cost of the segment.
        until, now
            Expected end of the segment, and the current time, by the campaign's clock [s].
        alone
            True if no other segment may share the GCDs.
        """
        resident = Resident(spots, estimate.busy, estimate.memory_gib, until, alone, now)
        for spot in spots:
            gcd = self._nodes[spot.node].gcds[spot.gcd]
            crowd = gcd.count(now)
            if spot is spots[0]:
                resident._crowd = crowd
            self._change(spot, gcd, lambda gcd: gcd.residents.append(resident))
        return resident

    def end(self, resident: Resident, spots: Sequence[Spot], now: float) -> None:
        """Remove a segment from those of its GCDs (devices), ``spots``, on which it has ended."""
        for spot in spots:
            gcd = self._nodes[spot.node].gcds[spot.gcd]
            gcd.count(now)
            self._change(spot, gcd, lambda gcd: gcd.residents.remove(resident))
            self._forget(self._nodes[spot.node])

    def together(self, resident: Resident, now: float) -> float:
        """Return the mean number of segments on a segment's first GCD (device) while it ran.

        The segment itself counts, so 1 means that it was alone. Call it before :meth:`end` removes
        the segment.
        """
        if resident.alone:
            return 1.0
        first = resident.spots[0]
        crowd = self._nodes[first.node].gcds[first.gcd].count(now) - resident._crowd
        # Exactly one for a segment that was alone all the time.
        return max(1.0, round(crowd / (now - resident.since), 6)) if now > resident.since else 1.0

    def ends(self, node: str) -> float:
        """Return the time at which the batch job of a node ends, by the campaign's clock [s]."""
        return self._nodes[node].host.ends

    def longest(self, now: float) -> float:
        """Return the expected time until all GCDs (devices) are idle [s]; 0 if they are."""
        return max((end for node in self.nodes for end in node.ends(now)), default=0.0)

    def fullest(self, width: int, seconds: float, now: float) -> Node | None:
        """Find the node with the fewest idle GCDs (devices) that still has ``width`` of them.

        Equally full nodes are ranked by their block (batch job): the fewest idle GCDs come first.
        Reserved nodes are left out, and nodes whose batch job ends too early for a segment of
        ``seconds``. None if no node is suitable.
        """
        for number in range(width, self.size + 1):
            blocks = [block for block, nodes in self._by_free[number].items() if nodes]
            for block in sorted(blocks, key=lambda block: (self._free_of_block[block], block)):
                node = next(iter(self._by_free[number][block].values()))
                if lasts(node.host, seconds, now):
                    return node
        return None

    def whole(self) -> dict[str, list[Node]]:
        """Return the unreserved nodes whose GCDs (devices) are all idle, by block (batch job)."""
        return {block: [*nodes.values()] for block, nodes in self._by_free[self.size].items()}

    def shared(self, estimate: Estimate, seconds: float, now: float) -> Spot | None:
        """Find a busy GCD (device) that a segment of one GCD can join; None if there is none.

        It is one with as few segments as possible. The GCD's memory and idle time suffice by
        ``estimate``, and its node lasts long enough for a segment of ``seconds``. There is none if
        sharing does not pay.
        """
        if not self.sharing_pays:
            return None
        room = MEMORY_FRACTION * self.gcd.memory_gib - estimate.memory_gib
        for number in range(1, self.gcd.most_segments):
            for level in range(_level(estimate.busy), _LEVELS + 2):
                candidates = self._shared.get((number, level), {})
                # The memory of some of a kind is looked at: the search must stay short.
                for spot, gcd in islice(candidates.items(), 64):
                    node = self._nodes[spot.node]
                    if (
                        sum(resident.memory_gib for resident in gcd.residents) <= room
                        and _left(gcd) >= estimate.busy
                        and not node.is_kept
                        and lasts(node.host, seconds, now)
                    ):
                        return spot
        return None

    @property
    def may_share(self) -> bool:
        """True if another segment (job of training) might find room on a busy GCD (device)."""
        return self.sharing_pays and any(self._shared.values())

    def keep(self, nodes: Iterable[Node], is_kept: bool) -> None:
        """Reserve nodes for one segment if ``is_kept`` is True, else end their reservation."""
        for node in nodes:
            self._unlist(node)
            node.is_kept = is_kept
            self._list(node)

    def _set(self, node: Node, host: Host, takes_work: bool) -> None:
        self._unlist(node)
        node.host, node.takes_work = host, takes_work
        self._list(node)
        for position, gcd in enumerate(node.gcds):
            self._list_shared(Spot(host.name, position), gcd, node)
        self._forget(node)

    def _forget(self, node: Node) -> None:
        """Remove a node that takes no further work, once nothing runs there."""
        if not node.takes_work and node.free == self.size:
            self._nodes.pop(node.host.name, None)

    def _change(self, spot: Spot, gcd: _Gcd, how: Callable[[_Gcd], None]) -> None:
        node = self._nodes[spot.node]
        was_free, was_pack = not gcd.residents, len(gcd.residents) > 1
        self._unlist_shared(spot, gcd)
        how(gcd)
        self.packs += (len(gcd.residents) > 1) - was_pack
        more = bool(was_free) - (not gcd.residents)
        if more:
            self._unlist(node)
            node.free -= more
            self._list(node)
            self.at_work += more
        self._list_shared(spot, gcd, node)

    def _list(self, node: Node) -> None:
        if node.takes_work and not node.is_kept:
            self._by_free[node.free][node.host.block][node.host.name] = node
        if node.takes_work:
            self._free_of_block[node.host.block] += node.free
            self.free += node.free

    def _unlist(self, node: Node) -> None:
        self._by_free[node.free][node.host.block].pop(node.host.name, None)
        if node.takes_work:
            self._free_of_block[node.host.block] -= node.free
            self.free -= node.free

    def _list_shared(self, spot: Spot, gcd: _Gcd, node: Node) -> None:
        if (
            node.takes_work
            and 0 < len(gcd.residents) < self.gcd.most_segments
            and not any(resident.alone for resident in gcd.residents)
            and (left := _left(gcd)) >= _LEAST_BUSY
        ):
            self._shared[len(gcd.residents), _level(left)][spot] = gcd
        else:
            self._unlist_shared(spot, gcd)

    def _unlist_shared(self, spot: Spot, gcd: _Gcd) -> None:
        self._shared[len(gcd.residents), _level(_left(gcd))].pop(spot, None)


def lasts(host: Host, seconds: float, now: float) -> bool:
    """Return True if a node's batch job lasts for ``seconds``, or for 180 s if that is less.

    In 180 s a segment makes progress.
    """
    return host.ends - now >= min(seconds, SECONDS_TO_GET_FURTHER)


def _left(gcd: _Gcd) -> float:
    """Return the fraction of a GCD's time that its segments leave idle, by estimate."""
    return FULL - sum(resident.busy for resident in gcd.residents)


def _level(busy: float) -> int:
    return max(0, int(busy * _LEVELS))


@dataclass(frozen=True)
class Power:
    """Mean power of GCDs (devices) that run segments, and of the rest of their nodes [W]."""

    gcd_watts: float
    """Mean power of a GCD that runs segments [W]."""
    segments: int
    """Number of measured segments from which ``gcd_watts`` follows."""
    rest_watts: float | None = None
    """Power of a node outside its segments, idle or not [W]; None if nothing has counted it."""

    def joules(self, gcd_seconds: float, node_seconds: float) -> float | None:
        """Compute the energy of nodes [J]; None if their power outside segments is unknown.

        ``gcd_seconds`` is the busy time summed over GCDs, ``node_seconds`` the time summed over
        nodes [s].
        """
        if self.rest_watts is None:
            return None
        return gcd_seconds * self.gcd_watts + node_seconds * self.rest_watts


def measured_power(experience: Experience | None) -> Power | None:
    """Compute the power of GCDs and nodes from segments with counted energy; None without any.

    A segment that shared its GCD counts with its share of the GCD's energy and time.

    Parameters
    ----------
    experience
        Measurements on one machine; None if there are none.
    """
    if experience is None:
        return None
    taken = [
        (one.joules, one.seconds * one.width / one.together)
        for one in chain(*experience.segments.values(), *experience.packs.values())
        if one.is_sound and one.joules is not None and 0 <= one.joules < math.inf
    ]
    if not taken:
        return None
    joules, seconds = map(sum, zip(*taken, strict=True))
    return Power(joules / seconds, len(taken), experience.rest_watts)
