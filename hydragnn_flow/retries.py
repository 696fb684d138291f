"""Retries: counts of the failures of a piece of work, after which it is given up."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Work that fails this often on its own is more likely the cause than the victim.
MOST_TRIES = 3
# Losses of a node or batch job are not the fault of the work there, unless they never end.
MOST_LOSSES = 10
# Statuses for which the work is not to blame.
LOST = ("lost", "refused", "interrupted")


@dataclass(frozen=True)
class Retries:
    """Failures of a piece of work since it last made progress."""

    tries: int = 0
    """Failures that the work itself may have caused."""
    losses: int = 0
    """Failures caused by the node or batch job."""
    nodes: frozenset[str] = frozenset()
    """Nodes on which the work may have failed by its own fault."""

    def after(self, status: str, node: str = "", of_nodes: int = 1) -> Retries:
        """Return the count after one more failure.

        Parameters
        ----------
        status
            Status with which the work ended.
        node
            Node on which it ran.
        of_nodes
            Number of nodes that may run it. A node where all work fails at once is the first to be
            free again: a second failure there is blamed on the node, while few others failed too.
        """
        if status == "interrupted" and not node:
            return self  # it never came there: its node's job was ending
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
        """Time to wait before the next try, so that a disk may recover [s]; five minutes in all."""
        return min(60, (1 << self.losses) - 1)

    @property
    def is_hopeless(self) -> bool:
        """True if the work is to be given up."""
        return self.tries >= MOST_TRIES or self.losses >= MOST_LOSSES

    def __str__(self) -> str:
        return f"{self.tries} of {MOST_TRIES} failures, {self.losses} of {MOST_LOSSES} losses"
