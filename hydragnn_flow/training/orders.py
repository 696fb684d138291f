"""Orders in which training draws graphs: endless, with random access to any section.

Every order goes through the graphs in passes: no graph of a data set is drawn a second time before
all of them have been drawn once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.branch_runs import BranchRuns
from hydragnn_flow.training.permutation import Ints, permutation

# Purposes of random numbers of one seed, so that none depends on another.
_PASSES, _TURNS, _BLOCKS, _RESAMPLE = range(1, 5)
# Least number of draws that are shuffled together when branches alternate.
_TOGETHER = 1024
# Number of such rounds whose random numbers are drawn at once.
_CHAPTER = 16


class Order(Protocol):
    """Endless order of the graphs of a split."""

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""


class Shuffled:
    """Order of all graphs, shuffled differently in each pass.

    Parameters
    ----------
    size
        Number of graphs in the split or branch.
    seed
        Seed of the shuffles.
    bootstrap
        If true, replace the graphs by as many drawn with replacement, the same in each pass.
    branch
        Number that distinguishes orders with the same seed.
    """

    def __init__(self, size: int, seed: int, bootstrap: bool = False, branch: int = 0) -> None:
        self._size, self._seed, self._bootstrap, self._branch = size, seed, bootstrap, branch

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""
        return self.at(np.arange(start, stop))

    def at(self, places: Ints) -> Ints:
        """Return the graphs at ascending positions, [n]."""
        if not len(places):
            return places
        number, place = np.divmod(places, self._size)
        first, last = int(number[0]), int(number[-1])
        bounds = np.searchsorted(number, np.arange(first, last + 2))
        found = np.empty_like(places)
        for turn in range(first, last + 1):
            mine = slice(bounds[turn - first], bounds[turn - first + 1])
            shuffled = permutation(self._size, self._seed, _PASSES, self._branch, turn)
            found[mine] = shuffled(place[mine])
        if self._bootstrap:
            found = _resampled(found, np.int64(self._size), self._seed + self._branch)
        return found


class InTurns:
    """Order that draws several branches in given proportions, each branch shuffled separately.

    Parameters
    ----------
    runs
        Ranges of graphs that belong to each branch.
    shares
        Branch -> number of its graphs in a cycle of ``sum(shares.values())`` draws.
    seed, bootstrap
        The same as for :class:`Shuffled`; a bootstrap resamples each branch separately.
    """

    def __init__(
        self, runs: BranchRuns, shares: Mapping[int, int], seed: int, bootstrap: bool = False
    ) -> None:
        self._seed = seed
        self._members = [runs.of_branch(branch) for branch in shares]
        self._orders = [
            Shuffled(runs.graphs[branch], seed, bootstrap, branch=1 + branch) for branch in shares
        ]
        repeats = -(-_TOGETHER // sum(shares.values()))
        self._each = np.array([*shares.values()], dtype=np.int64) * repeats
        self._turns = np.repeat(np.arange(len(shares), dtype=np.int16), self._each)

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""
        length = len(self._turns)
        first, last = start // length, -(-stop // length)
        branch = self._branches(first, last)
        drawn = np.empty(len(branch), dtype=np.int64)
        by_branch = np.argsort(branch, kind="stable")
        each = self._each * (last - first)
        for number, ends in enumerate(np.cumsum(each).tolist()):
            mine = by_branch[ends - each[number] : ends]
            places = self._each[number] * first + np.arange(len(mine))
            drawn[mine] = self._members[number].graphs(self._orders[number].at(places))
        return drawn[start - first * length :][: stop - start]

    def _branches(self, first: int, last: int) -> NDArray[np.int16]:
        """Return the branch of each draw in some rounds; proportions are exact in every round."""
        found = [self._turns[:0]]
        for chapter in range(first // _CHAPTER, -(-last // _CHAPTER)):
            rng = np.random.default_rng([self._seed, _TURNS, chapter])
            found.append(rng.permuted(np.tile(self._turns, (_CHAPTER, 1)), axis=1).reshape(-1))
        begin = (first - first // _CHAPTER * _CHAPTER) * len(self._turns)
        return np.concatenate(found)[begin:][: (last - first) * len(self._turns)]


class InBlocks:
    """Order for streams: block by block, the blocks shuffled differently in each pass.

    Parameters
    ----------
    bounds
        First graph of each block, and the end of the last one, [n_blocks + 1].
    seed, bootstrap
        The same as for :class:`Shuffled`; a bootstrap resamples each block separately.
    """

    def __init__(self, bounds: Ints, seed: int, bootstrap: bool = False) -> None:
        self._bounds, self._seed, self._bootstrap = bounds, seed, bootstrap
        self._pass = lru_cache(maxsize=2)(self._shuffled)

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""
        size, found = int(self._bounds[-1]), [np.zeros(0, dtype=np.int64)]
        while start < stop:
            number, place = divmod(start, size)
            count = min(stop - start, size - place)
            found.append(self._of_pass(number, place, place + count))
            start += count
        return np.concatenate(found)

    def _of_pass(self, number: int, start: int, stop: int) -> Ints:
        blocks, ends = self._pass(number)
        places = np.arange(start, stop)
        turn = np.searchsorted(ends, places, side="right")
        block = blocks[turn]
        first = self._bounds[block]
        size = self._bounds[block + 1] - first
        within = places - ends[turn] + size
        if self._bootstrap:
            within = _resampled(first + within, size, self._seed)
        return first + within

    def _shuffled(self, number: int) -> tuple[Ints, Ints]:
        """Return the blocks in the order of a pass, and the position where each one ends."""
        rng = np.random.default_rng([self._seed, _BLOCKS, number])
        blocks = rng.permutation(len(self._bounds) - 1)
        return blocks, np.cumsum(np.diff(self._bounds)[blocks])


def _resampled(numbers: Ints, size: np.int64 | Ints, seed: int) -> Ints:
    """Map each number to a pseudo-random number below ``size`` that depends on it and the seed.

    Finaliser of SplitMix64 (Steele et al., OOPSLA 2014), which gives random access.
    """
    start = np.random.SeedSequence([seed, _RESAMPLE]).generate_state(1, np.uint64)
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed % np.asarray(size).astype(np.uint64)).astype(np.int64)
