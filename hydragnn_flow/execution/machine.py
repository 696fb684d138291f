"""Clock and workers of a campaign: those of a machine, or simulated ones."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from hydragnn_flow.execution.workers.rank import Rank
from hydragnn_flow.placement import Host
from hydragnn_flow.segment import SegmentResult

Event = TypeVar("Event")


class Clock(Protocol):
    """Time, as the campaign sees it pass."""

    def monotonic(self) -> float:
        """Time since some moment [s], by a monotonic clock."""
        ...

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """The next event; None if none comes in that time. A simulated clock moves on here."""
        ...


class WallClock:
    """Time as it passes on this machine."""

    def monotonic(self) -> float:
        """Time since some moment [s], by a monotonic clock."""
        return time.monotonic()

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """The next event; None if none comes in that time."""
        try:
            return events.get(timeout=seconds, block=seconds > 0)
        except Empty:
            return None


class Workers(Protocol):
    """The workers of a site, one for each GCD; `Pool` has those that Parsl starts."""

    def update(self, demand: int) -> None:
        """Have as many workers as the work needs; called about twice a second.

        Parameters
        ----------
        demand
            Workers that could be used now, those at work among them.

        Raises
        ------
        InputError, CampaignStopped
            If none can be got, or none that does any work.
        """
        ...

    def hosts(self) -> Sequence[Host]:
        """The nodes that take work."""
        ...

    def waiting(self) -> str:
        """Sentence that says what the campaign waits for while it has no workers; or empty."""
        ...

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Run a segment, or ranks of one, on a node; how they ended, or that it was lost."""
        ...

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        """End the ranks of a gang on a node."""
        ...

    def release(self, node: str, attempt: str) -> None:
        """Have a segment that is on a node end by itself, with a checkpoint."""
        ...

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record how work on a node ended."""
        ...

    def avoid(self, node: str, reason: str) -> None:
        """Send no more work to a node that has refused some."""
        ...
