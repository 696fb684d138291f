"""Virtual time: a clock that jumps from event to event."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeVar

from hydragnn_flow.errors import CampaignStopped
from hydragnn_flow.execution.jobs import SECONDS_BETWEEN_CHECKS

Event = TypeVar("Event")
# Longest time that passes at once while nothing happens [s]; it doubles whenever the campaign finds
# nothing to do. The campaign has to look in between, as it may act on the time alone: after a while
# running segments may get more GCDs.
_JUMP = 15.0
# Successive looks of a campaign with no event to come, after which the simulation fails.
_MOST_LOOKS = 1_000


@dataclass(order=True)
class Appointment:
    """Action scheduled for a time, unless it is cancelled."""

    when: float
    _order: int
    action: Callable[[], None] | None = field(compare=False)

    def call_off(self) -> None:
        """Cancel the action."""
        self.action = None


class VirtualClock:
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
        """Let virtual time pass until a scheduled action puts an event into a queue; return it.

        None if no event comes within ``seconds``. While the campaign only polls for ended segments,
        longer and longer times pass at once, until something happens.

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
        """Time of the next scheduled action [s]; infinite if there is none."""
        while self._coming and self._coming[0].action is None:
            heapq.heappop(self._coming)
        return self._coming[0].when if self._coming else math.inf
