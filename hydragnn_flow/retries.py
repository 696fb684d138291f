"""Retries: how often a piece of work has failed, and when it is given up."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Work that fails this often by its own doing is more likely the cause than the victim.
MOST_TRIES = 3
# A node or batch job that is lost is no fault of the work there, unless it never ends.
MOST_LOSSES = 10
# Ends that say nothing of the work.
LOST = ("lost", "refused", "interrupted")


@dataclass(frozen=True)
class Retries:
    """Failures of a piece of work that never got further in between."""

    tries: int = 0
    """Failures that may be its own."""
    losses: int = 0
    """Failures of the place it ran on."""
    nodes: frozenset[str] = frozenset()
    """Nodes of the failures that may be its own."""

    def after(self, status: str, node: str = "", of_nodes: int = 1) -> Retries:
        """The count after one more failure.

        Parameters
        ----------
        status
            How the work ended.
        node
            Where it ran.
        of_nodes
            Nodes that it may be sent to. One where all work fails at once is the first to be free
            again: a second failure there is the node's, as long as it has failed on few others.
        """
        on_others = node in self.nodes and len(self.nodes) < min(MOST_TRIES, of_nodes)
        if status in LOST or on_others:
            return replace(self, losses=self.losses + 1)
        return replace(self, tries=self.tries + 1, nodes=self.nodes | {node})

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
