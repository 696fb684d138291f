"""Retries: how often a piece of work has failed, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Work that fails this often by its own doing is more likely the cause than the victim.
MOST_TRIES = 3
# A node or batch job that is lost is no fault of the work there, unless it never ends.
MOST_LOSSES = 10


@dataclass(frozen=True)
class Retries:
    """Failures of a piece of work that never got further in between."""

    tries: int = 0
    """Failures that may be its own."""
    losses: int = 0
    """Failures of the place it ran on."""

    def failed(self) -> Retries:
        """The count after a failure that may be its own."""
        return replace(self, tries=self.tries + 1)

    def lost(self) -> Retries:
        """The count after a failure of the place it ran on."""
        return replace(self, losses=self.losses + 1)

    @property
    def total(self) -> int:
        """Number of failures."""
        return self.tries + self.losses

    @property
    def pause(self) -> int:
        """Time to let pass first, in which a disk may come back: five minutes in all [s]."""
        return min(60, (1 << self.losses) - 1)

    @property
    def is_hopeless(self) -> bool:
        """Whether the work has had its chances."""
        return self.tries >= MOST_TRIES or self.losses >= MOST_LOSSES

    def __str__(self) -> str:
        return f"{self.tries} of {MOST_TRIES} failures, {self.losses} of {MOST_LOSSES} losses"
