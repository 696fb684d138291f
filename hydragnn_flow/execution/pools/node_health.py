"""Health of nodes: detection of those that spoil the work sent to them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Set

from hydragnn_flow.errors import InputError

# Number of failures on a node, with no success since, that make it suspect. If one trial in ten is
# faulty, eight GCDs that start together seldom see this many.
MOST_BAD_ENDS = 4.0
# Weight of the loss of a node's worker pool, which loses all its work.
BLAME_FOR_LOSS = 2.0
# Number of nodes that refuse work in a row before the campaign stops, as they are not to blame.
MOST_REFUSING = 3


class NodeHealth:
    """Health of nodes, computed from the results of their work.

    A broken GPU or a full disk ends whatever is sent there within seconds, so a single bad node
    spoils a campaign's segments faster than all the good ones train them. A bad segment fails
    wherever it is sent, and is sent several times. So the number of different segments that failed
    on a node counts, and those that failed elsewhere as well count little.
    """

    def __init__(self) -> None:
        self._nodes: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._failures: defaultdict[str, set[Hashable]] = defaultdict(set)
        self._losses: Counter[str] = Counter()
        self._of_no_use: set[str] = set()
        self._refusals: dict[str, str] = {}

    def record(self, node: str, work: Hashable, worked: bool) -> None:
        """Record whether work on a node succeeded.

        Parameters
        ----------
        node
            Name of the node.
        work
            Name of the work; the same for each attempt.
        worked
            True if it succeeded, which clears the node.
        """
        if worked:
            self._failures.pop(node, None)
            self._losses.pop(node, None)
            self._refusals.clear()
        else:
            self._nodes[work].add(node)
            self._failures[node].add(work)

    def record_loss(self, node: str) -> None:
        """Record that a node lost its worker pool while other nodes did not."""
        self._losses[node] += 1

    def suspect(self, node: str) -> None:
        """Record that a node was bad for an earlier driver; a success there clears it."""
        self._losses[node] = math.ceil(MOST_BAD_ENDS / BLAME_FOR_LOSS)

    def condemn(self, node: str, reason: str) -> bool:
        """Record that a node cannot do any work; return whether that is new."""
        is_news = node not in self._of_no_use
        self._of_no_use.add(node)
        self._refusals[node] = reason
        return is_news

    def check(self, nodes: int, at_work: Set[str]) -> None:
        """Check whether any node can be expected to work.

        Parameters
        ----------
        nodes
            Number of nodes at a time.
        at_work
            Nodes with work; those not condemned may yet succeed.

        Raises
        ------
        InputError
            If several nodes in a row were condemned, and no work has succeeded since or still may.
        """
        if len(self._refusals) >= min(MOST_REFUSING, nodes) and at_work <= self._of_no_use:
            raise InputError([*self._refusals.values()][-1])

    def reason(self, node: str) -> str:
        """Reason why a node is suspect, in words."""
        if node in self._of_no_use:
            return "it refuses work"
        failed = sorted(map(_in_words, self._failures.get(node, ())))
        reasons = [f"failed there: {', '.join(failed)}"] if failed else []
        if self._losses[node]:
            reasons.append(f"its workers alone were lost {self._losses[node]} times")
        return "; ".join(reasons)

    def is_of_no_use(self, node: str) -> bool:
        """True if the node is known to be unable to do any work."""
        return node in self._of_no_use

    def is_suspect(self, node: str) -> bool:
        """True if that is known, or likely from successive failures there."""
        blame = BLAME_FOR_LOSS * self._losses[node]
        for work in self._failures.get(node, ()):
            # What failed on several nodes is hardly their fault, but two bad nodes must not excuse
            # each other.
            blame += 1.0 if len(self._nodes[work]) == 1 else 0.25
        return self.is_of_no_use(node) or blame >= MOST_BAD_ENDS


def _in_words(work: Hashable) -> str:
    return " ".join(map(str, work)) if isinstance(work, tuple) else str(work)
