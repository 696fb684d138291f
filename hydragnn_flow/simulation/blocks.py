"""Simulated batch jobs: they wait in the queue, their nodes start, fail and end."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution import Site
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS, Clock
from hydragnn_flow.execution.pools.waits import WAITS, drain_seconds
from hydragnn_flow.placement import Host

Event = TypeVar("Event")
# Longest time that passes at once while nothing happens [s]; it doubles whenever the campaign finds
# nothing to do. The campaign has to look in between, as it may act on the time alone: after a while
# running segments may get more GCDs.
_JUMP = 15.0
# Successive looks of a campaign with no event to come, after which the simulation fails.
_MOST_LOOKS = 1_000


@dataclass(order=True)
class Appointment:
    """Action that is scheduled for a virtual time of a simulation, and can be cancelled."""

    when: float
    _order: int
    action: Callable[[], None] | None = field(compare=False)

    def call_off(self) -> None:
        """Cancel the scheduled action, so that it does not happen."""
        self.action = None


class VirtualClock(Clock):
    """Clock of a simulated campaign: time passes only while the campaign waits, then at once."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._coming: list[Appointment] = []
        self._in_vain = 0
        self._jump = _JUMP

    def monotonic(self) -> float:
        """Return the virtual time since the simulation started [s]."""
        return self._now

    def at(self, when: float, action: Callable[[], None]) -> Appointment:
        """Schedule an action for a virtual time [s]; return the appointment, to cancel it.

        Actions for the same time happen in the order in which they were scheduled.
        """
        appointment = Appointment(max(when, self._now), next(self._order), action)
        heapq.heappush(self._coming, appointment)
        return appointment

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """Let virtual time pass until an action puts an event into the queue; return the event.

        The result is None if no event comes within ``seconds`` [s]. While the campaign only polls
        for ended segments, longer and longer times pass at once, until something happens.

        Raises
        ------
        CampaignStopped
            If the campaign keeps waiting although no action is scheduled.
        """
        until = self._now + seconds
        if seconds >= SECONDS_BETWEEN_CHECKS and events.empty():
            if (coming := self._first()) < math.inf:
                until = max(until, min(coming, self._now + self._jump))
            self._in_vain = self._in_vain + 1 if coming == math.inf else 0
            if self._in_vain > _MOST_LOOKS:
                raise CampaignStopped(
                    "the simulated campaign waits for something that does not come; nothing runs, "
                    "and no node is on its way"
                )
        while events.empty() and self._first() <= until:
            self._happen()
        if events.empty():
            self._now = until
            self._jump *= 2
            return None
        self._jump = _JUMP
        return events.get()

    def _happen(self) -> None:
        appointment = heapq.heappop(self._coming)
        self._now = appointment.when
        if appointment.action is not None:
            appointment.action()

    def _first(self) -> float:
        """Return the time of the next scheduled action [s]; infinite if there is none."""
        while self._coming and self._coming[0].action is None:
            heapq.heappop(self._coming)
        return self._coming[0].when if self._coming else math.inf


@dataclass(frozen=True)
class Conditions:
    """Conditions of a simulated machine: queue waits, node starts and losses, noise of times."""

    queue_seconds: float = 0.0
    """Mean time that a batch job waits in the queue [s]; times are exponentially distributed."""
    node_seconds: float = 30.0
    """Median time from the start of a batch job until one of its nodes takes work [s]."""
    losses: float = 0.0
    """Mean number of failures of each node in an hour [1/h]."""
    noise: float = 0.05
    """Standard deviation of the logarithm of a segment's time."""
    interference: float = 0.03
    """Slowdown of a segment by each other segment on its GCD, as a fraction."""


@dataclass(eq=False)
class _Block:
    name: str
    to_come: int
    """Number of nodes that have not started yet."""
    begun: float = math.inf
    ends: float = math.inf
    hosts: dict[str, Host] = field(default_factory=dict)
    at_work: int = 0
    """Number of segments on its nodes."""
    idle_since: float = math.inf
    leaving: bool = False
    """True if its end is so near that its nodes take no further work."""


class Blocks:
    """Simulated batch jobs of a campaign: they wait in a queue, start nodes, lose nodes and end.

    Parameters
    ----------
    site
        Site of the simulated machine.
    clock
        Virtual clock of the campaign.
    conditions
        Properties of the machine other than its speed.
    drawn
        Generator of random numbers.
    lost
        Function called with the name of each lost node.
    """

    def __init__(
        self,
        site: Site,
        clock: VirtualClock,
        conditions: Conditions,
        drawn: np.random.Generator,
        lost: Callable[[str], None],
    ) -> None:
        self._site, self._clock, self._conditions = site, clock, conditions
        self._drawn, self._lost = drawn, lost
        self._blocks: list[_Block] = []
        self._block_of: dict[str, _Block] = {}
        self._hosts: list[Host] | None = None
        self._over = 0.0
        self.asked = 0
        """Number of batch jobs that were requested."""

    @property
    def node_seconds(self) -> float:
        """Time for which batch jobs have held nodes until now, summed over nodes [s]."""
        now = self._clock.monotonic()
        running = sum(max(0.0, now - block.begun) for block in self._blocks)
        return self._over + running * self._nodes

    @property
    def _nodes(self) -> int:
        return self._site.nodes // self._site.blocks

    def hosts(self) -> list[Host]:
        """Return the simulated nodes that have started and whose batch job is not about to end."""
        if self._hosts is None:
            staying = [block for block in self._blocks if not block.leaving]
            self._hosts = [host for block in staying for host in block.hosts.values()]
        return self._hosts

    def update(self, demand: int) -> None:
        """Request simulated batch jobs, or end idle ones, so that there are ``demand`` GCDs.

        Raises
        ------
        CampaignStopped
            If all nodes are lost, and no others can be requested.
        """
        if self._site.scheduler is None and self.asked and not self._blocks:
            raise CampaignStopped("all simulated nodes are lost; simulate fewer losses")
        each = self._site.gcds_of_a_block
        wanted = min(self._site.blocks, max(1, math.ceil(demand / each)))
        staying = [block for block in self._blocks if not block.leaving]
        number = len(staying)
        for block in staying:
            idle = self._clock.monotonic() - block.idle_since
            if number > wanted and idle >= WAITS.idle:
                self._end(block)
                number -= 1
        for _ in range(number, wanted):
            self._ask()

    def begin_work(self, node: str) -> bool:
        """Record that a segment starts on a node; return False if the node takes no more work."""
        block = self._block_of.get(node)
        if block is None or block.leaving:
            return False
        block.at_work += 1
        block.idle_since = math.inf
        return True

    def end_work(self, node: str) -> None:
        """Record that a segment on a simulated node has ended."""
        block = self._block_of.get(node)
        if block is not None:
            block.at_work -= 1
            self._see_whether_idle(block)

    def _see_whether_idle(self, block: _Block) -> None:
        if not block.at_work:
            block.idle_since = self._clock.monotonic()
            if block.leaving:
                self._clock.at(block.idle_since, partial(self._end, block))
            elif self._site.blocks > 1:  # wakes the campaign, which then gives the job back
                self._clock.at(block.idle_since + WAITS.idle, lambda: None)

    def _ask(self) -> None:
        block = _Block(f"job{self.asked}", self._nodes)
        self.asked += 1
        self._blocks.append(block)
        wait = 0.0
        if self._site.scheduler is not None:
            wait = self._conditions.queue_seconds * self._drawn.standard_exponential()
        self._clock.at(self._clock.monotonic() + wait, partial(self._begin, block))

    def _begin(self, block: _Block) -> None:
        now = block.begun = self._clock.monotonic()
        spread = np.exp(0.3 * self._drawn.standard_normal(self._nodes))
        for number, factor in enumerate(spread.tolist()):
            node = f"{block.name}-node{number}"
            start = now + self._conditions.node_seconds * factor
            self._clock.at(start, partial(self._join, block, node))
        if self._site.walltime < math.inf:
            block.ends = now + self._site.walltime
            last_work = block.ends - drain_seconds(self._site.walltime)
            self._clock.at(last_work, partial(self._drain, block))
            self._clock.at(block.ends, partial(self._end, block))

    def _drain(self, block: _Block) -> None:
        block.leaving = True
        self._hosts = None
        if not block.at_work:
            self._end(block)

    def _join(self, block: _Block, node: str) -> None:
        block.to_come -= 1
        if block not in self._blocks:
            return
        block.hosts[node] = Host(node, block.name, block.ends)
        self._block_of[node] = block
        self._hosts = None
        if self._conditions.losses > 0:
            hours = self._drawn.exponential(1 / self._conditions.losses)
            self._clock.at(self._clock.monotonic() + 3600 * hours, partial(self._lose, block, node))
        if block.at_work == 0:
            self._see_whether_idle(block)

    def _lose(self, block: _Block, node: str) -> None:
        if node not in block.hosts:
            return
        self._gone(block, node)
        if not block.hosts and not block.to_come:
            self._end(block)

    def _end(self, block: _Block) -> None:
        if block not in self._blocks:
            return
        self._over += (self._clock.monotonic() - block.begun) * self._nodes
        self._blocks.remove(block)
        for node in [*block.hosts]:
            self._gone(block, node)

    def _gone(self, block: _Block, node: str) -> None:
        del block.hosts[node], self._block_of[node]
        self._hosts = None
        self._lost(node)
