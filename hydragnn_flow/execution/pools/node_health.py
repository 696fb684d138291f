"""Which nodes spoil the work that is sent to them."""

from __future__ import annotations

from collections import Counter

MOST_BAD_ENDS = 2


class NodeHealth:
    """How work has ended, node by node.

    A broken GPU or a full disk ends whatever is sent there within seconds, so that a single bad
    node gets through a campaign's segments faster than all the good ones.
    """

    def __init__(self) -> None:
        self._bad_ends: Counter[str] = Counter()
        self._of_no_use: set[str] = set()

    def note(self, node: str, worked: bool) -> None:
        """Take down how a segment on a node ended."""
        if worked:
            del self._bad_ends[node]
        else:
            self._bad_ends[node] += 1

    def condemn(self, node: str) -> None:
        """Take down that a node cannot do any work."""
        self._of_no_use.add(node)

    def is_of_no_use(self, node: str) -> bool:
        """Whether it is known to be unable to do any work."""
        return node in self._of_no_use

    def is_suspect(self, node: str) -> bool:
        """Whether that is known, or work has ended badly there several times in a row."""
        return self.is_of_no_use(node) or self._bad_ends[node] >= MOST_BAD_ENDS
