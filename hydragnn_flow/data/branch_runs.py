"""Branch (heads of one data set) of each graph of a split, stored as runs of equal branches."""

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
    """Runs of consecutive graphs that belong to one branch (heads of one data set).

    A split has a few runs for each data set, however many graphs it has.
    """

    bounds: Ints
    """Index of the first graph of each run, then the number of all graphs, [n_runs + 1]."""
    branches: Ints
    """Number of the branch of each run, [n_runs]."""

    @classmethod
    def of(cls, pieces: Iterable[NDArray[np.integer]]) -> BranchRuns:
        """Return the runs of a split, given the branch of every graph.

        Parameters
        ----------
        pieces
            Branch numbers of consecutive graphs, which together are all graphs of the split.
        """
        pairs: list[tuple[int, int]] = []
        for piece in pieces:
            starts = _begins(piece)
            lengths = np.diff(starts, append=len(piece))
            pairs += zip(piece[starts].tolist(), lengths.tolist(), strict=True)
        return cls.of_pairs(pairs)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[int, int]]) -> BranchRuns:
        """Return the runs of a split, given pairs of a branch and its number of graphs.

        Consecutive pairs of the same branch become one run.
        """
        branches, lengths = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        starts = _begins(branches)
        return cls(np.append(bounds_of(lengths)[starts], lengths.sum()), branches[starts])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of branch and number of graphs, one for each run."""
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
        """Return the branches of graphs, given their indices in the split, [n] -> [n]."""
        return self.branches[np.searchsorted(self.bounds, graphs, side="right") - 1]

    def of_branch(self, branch: int) -> BranchMembers:
        """Return the graphs of one branch, which are then chosen by their number in it."""
        runs = np.flatnonzero(self.branches == branch)
        lengths = np.diff(self.bounds)[runs]
        return BranchMembers(self.bounds[runs], bounds_of(lengths)[:-1])


@dataclass(frozen=True, eq=False)
class BranchMembers:
    """Graphs of one branch, numbered from 0 in the order of the split."""

    starts: Ints
    """Index in the split of the first graph of each run of the branch, [n_runs]."""
    before: Ints
    """Number of the branch's graphs before each run, [n_runs]."""

    def graphs(self, numbers: Ints) -> Ints:
        """Return indices of graphs in the split, given their numbers in the branch, [n] -> [n]."""
        run = np.searchsorted(self.before, numbers, side="right") - 1
        return self.starts[run] + numbers - self.before[run]


def spread(runs: BranchRuns, most: int, run: int = 1) -> Iterator[Ints]:
    """Yield groups of neighbouring graphs, spread evenly over each branch, as indices in the split.

    Each branch gives the same number of groups, or all its graphs if it has fewer.

    Parameters
    ----------
    runs
        Runs of the split's branches.
    most
        Maximum number of graphs in total; each branch gives one group even if that exceeds it.
    run
        Number of graphs in a group; the last one of a branch may have fewer.
    """
    for branch, number in runs.graphs.items():
        members = runs.of_branch(branch)
        there = -(-number // run)
        wanted = max(1, most // run // len(runs.graphs))
        for one in np.unique(np.linspace(0, there - 1, min(there, wanted)).round().astype(int)):
            yield members.graphs(np.arange(one * run, min((one + 1) * run, number)))


def shares_of_branches(runs: BranchRuns, number: int) -> dict[int, int]:
    """Return the number of graphs to take of each branch: equal shares of a total.

    A branch with fewer graphs than its share gives all, and the other branches share the rest.

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
    """Return the index of the first of each run of equal values, [n_runs]."""
    first = np.ones(min(len(values), 1), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, values[1:] != values[:-1]]))
