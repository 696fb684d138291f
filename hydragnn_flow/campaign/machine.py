"""Clock and workers of a campaign: those of a machine, or simulated ones."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from hydragnn_flow.execution import PoolName, RankGroup
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
    """The workers of a site, in its two pools; `Pools` are those that Parsl starts."""

    def update(self, gcd: int = 0, node: int = 0) -> None:
        """Have as many workers as the work needs; called about twice a second.

        Parameters
        ----------
        gcd, node
            Workers that each pool could use now, those at work among them.

        Raises
        ------
        InputError, CampaignStopped
            If none can be got, or none that does any work.
        """
        ...

    def free(self, pool: PoolName) -> int:
        """Workers that wait for something to do."""
        ...

    def waiting(self) -> str:
        """Sentence that says what the campaign waits for while it has no workers; or empty."""
        ...

    def run(self, pool: PoolName, groups: Sequence[RankGroup]) -> Future[list[SegmentResult]]:
        """Run segments side by side on a worker; how they ended, where it was lost too."""
        ...

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record how work on a node ended."""
        ...

    def avoid(self, node: str, reason: str) -> None:
        """Send no more work to a node that has refused some."""
        ...
