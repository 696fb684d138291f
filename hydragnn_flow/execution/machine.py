"""Clock and workers of a campaign: real or simulated."""

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
    """Time as seen by the campaign."""

    def monotonic(self) -> float:
        """Monotonic time since some moment [s]."""
        ...

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """Return the next event; None if none comes in time. A simulated clock advances here."""
        ...


class WallClock:
    """Time as measured on this machine."""

    def monotonic(self) -> float:
        """Monotonic time since some moment [s]."""
        return time.monotonic()

    def next(self, events: SimpleQueue[Event], seconds: float) -> Event | None:
        """Return the next event; None if none comes in time."""
        try:
            return events.get(timeout=seconds, block=seconds > 0)
        except Empty:
            return None


class Workers(Protocol):
    """Workers of a site, one per GCD; `Pool` is the implementation with Parsl."""

    def update(self, demand: int) -> None:
        """Scale the pool to ``demand`` workers. Called about twice a second.

        Parameters
        ----------
        demand
            Number of workers that could be used now, busy ones included.

        Raises
        ------
        InputError, CampaignStopped
            If none come, or none that do any work.
        """
        ...

    def hosts(self) -> Sequence[Host]:
        """Return the nodes that take work."""
        ...

    def waiting(self) -> str:
        """Reason, in a sentence, why no workers have come yet; empty if there is none."""
        ...

    def run(self, ranks: Sequence[Rank], node: str) -> Future[list[SegmentResult]]:
        """Run ranks of a job on a node; the future has their results, or that they were lost."""
        ...

    def call_off(self, node: str, attempt: str, reason: str) -> None:
        """End the ranks of a gang on a node."""
        ...

    def release(self, node: str, attempt: str) -> None:
        """Stop a segment on a node at a checkpoint."""
        ...

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether work on a node succeeded."""
        ...

    def avoid(self, node: str, reason: str) -> None:
        """Send no further work to a node that refused some."""
        ...
