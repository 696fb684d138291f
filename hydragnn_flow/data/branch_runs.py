"""Branch of each graph of a split, as compact as the graphs were written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import bounds_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BranchRuns:
    """Runs of consecutive graphs of one branch: a few per source, however many graphs."""

    bounds: Ints
    """First graph of each run, and the end of the last, [n_runs + 1]."""
    branches: Ints
    """Branch of each run, [n_runs]."""

    @classmethod
    def of(cls, pieces: Iterable[NDArray[np.integer]]) -> BranchRuns:
        """Return the runs of a split from the branch of every graph.

        Parameters
        ----------
        pieces
            Branch of every graph, in consecutive pieces.
        """
        pairs: list[tuple[int, int]] = []
        for piece in pieces:
            starts = _begins(piece)
            lengths = np.diff(starts, append=len(piece))
            pairs += zip(piece[starts].tolist(), lengths.tolist(), strict=True)
        return cls.of_pairs(pairs)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[int, int]]) -> BranchRuns:
        """Return the runs of a split from consecutive branches and numbers of graphs.

        A branch may continue from one pair to the next.
        """
        branches, lengths = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        starts = _begins(branches)
        return cls(np.append(bounds_of(lengths)[starts], lengths.sum()), branches[starts])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Branch and number of graphs of each run."""
        return [*zip(self.branches.tolist(), np.diff(self.bounds).tolist(), strict=True)]

    @cached_property
    def graphs(self) -> dict[int, int]:
        """Number of graphs of each branch that occurs."""
        lengths = np.diff(self.bounds)
        return {
            int(branch): int(lengths[self.branches == branch].sum())
            for branch in np.unique(self.branches)
        }

    def branch_of(self, graphs: Ints) -> Ints:
        """Return the branch of some graphs from their indices in the split, [n] -> [n]."""
        return self.branches[np.searchsorted(self.bounds, graphs, side="right") - 1]

    def of_branch(self, branch: int) -> BranchMembers:
        """Return the graphs of a branch."""
        runs = np.flatnonzero(self.branches == branch)
        lengths = np.diff(self.bounds)[runs]
        return BranchMembers(self.bounds[runs], bounds_of(lengths)[:-1])


@dataclass(frozen=True, eq=False)
class BranchMembers:
    """Graphs of one branch, numbered from 0."""

    starts: Ints
    """First graph of each run of the branch, [n_runs]."""
    before: Ints
    """Number of graphs of the branch before each run, [n_runs]."""

    def graphs(self, numbers: Ints) -> Ints:
        """Return the indices in the split of some of them, [n] -> [n]."""
        run = np.searchsorted(self.before, numbers, side="right") - 1
        return self.starts[run] + numbers - self.before[run]


def spread(runs: BranchRuns, most: int, run: int = 1) -> Iterator[Ints]:
    """Yield indices of graphs spread evenly over each branch, equally many of each if not all.

    Parameters
    ----------
    runs
        Runs of the split's branches.
    most
        Maximum number of graphs, unless a branch would have less than one run.
    run
        Number of neighbouring graphs that are taken together.
    """
    for branch, number in runs.graphs.items():
        members = runs.of_branch(branch)
        there = -(-number // run)
        wanted = max(1, most // run // len(runs.graphs))
        for one in np.unique(np.linspace(0, there - 1, min(there, wanted)).round().astype(int)):
            yield members.graphs(np.arange(one * run, min((one + 1) * run, number)))


def shares_of_branches(runs: BranchRuns, number: int) -> dict[int, int]:
    """Return equal numbers of graphs of each branch, but no more than a branch has.

    Parameters
    ----------
    runs
        Runs of the split's branches.
    number
        Total number of graphs, at least one for each branch.
    """
    found: dict[int, int] = {}
    left = number
    for place, branch in enumerate(sorted(runs.graphs, key=runs.graphs.__getitem__)):
        found[branch] = min(runs.graphs[branch], max(1, left // (len(runs.graphs) - place)))
        left -= found[branch]
    return found


def _begins(values: NDArray[np.integer]) -> Ints:
    """Return the indices at which the value changes."""
    first = np.ones(min(len(values), 1), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, values[1:] != values[:-1]]))
