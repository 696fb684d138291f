"""Orders in which training draws graphs: endless, and any part of one is worked out alone.

Every order goes through the graphs again and again, in passes. No graph of a data set comes a
second time before all of it have come once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.branch_runs import BranchRuns
from hydragnn_flow.training.permutation import Ints, permutation

# What the numbers of a seed are for, so that none says anything about another.
_PASSES, _TURNS, _BLOCKS, _RESAMPLE = range(1, 5)
# Draws that are shuffled together, at least, where branches take turns.
_TOGETHER = 1024
# Rounds of such draws whose random numbers are drawn at once.
_CHAPTER = 16


class Order(Protocol):
    """An endless order of the graphs of a split."""

    def graphs(self, start: int, stop: int) -> Ints:
        """The graphs at places ``start`` to ``stop - 1``, [stop - start]."""


class Shuffled:
    """All graphs, shuffled anew for each pass.

    Parameters
    ----------
    size
        Number of graphs.
    seed
        Decides the order.
    bootstrap
        Whether as many graphs are drawn with replacement, the same in each pass.
    branch
        Tells orders of one seed apart.
    """

    def __init__(self, size: int, seed: int, bootstrap: bool = False, branch: int = 0) -> None:
        self._size, self._seed, self._bootstrap, self._branch = size, seed, bootstrap, branch

    def graphs(self, start: int, stop: int) -> Ints:
        """The graphs at places ``start`` to ``stop - 1``, [stop - start]."""
        return self.at(np.arange(start, stop))

    def at(self, places: Ints) -> Ints:
        """The graphs at some places, in ascending order, [n]."""
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
    """Graphs of several branches in given proportions, those of each shuffled on their own.

    Parameters
    ----------
    runs
        Which graphs belong to which branch.
    shares
        Branch -> graphs of it among as many draws as they are together.
    seed, bootstrap
        As :class:`Shuffled` takes them; a bootstrap draws from each branch on its own.
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
        """The graphs at places ``start`` to ``stop - 1``, [stop - start]."""
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
        """The branch of each draw of some rounds; in every round all proportions are exact."""
        found = [self._turns[:0]]
        for chapter in range(first // _CHAPTER, -(-last // _CHAPTER)):
            rng = np.random.default_rng([self._seed, _TURNS, chapter])
            found.append(rng.permuted(np.tile(self._turns, (_CHAPTER, 1)), axis=1).reshape(-1))
        begin = (first - first // _CHAPTER * _CHAPTER) * len(self._turns)
        return np.concatenate(found)[begin:][: (last - first) * len(self._turns)]


class InBlocks:
    """All graphs block by block, the blocks shuffled anew for each pass; for streams.

    Parameters
    ----------
    bounds
        First graph of each block, and the end of the last, [n_blocks + 1].
    seed, bootstrap
        As :class:`Shuffled` takes them; a bootstrap draws from each block on its own.
    """

    def __init__(self, bounds: Ints, seed: int, bootstrap: bool = False) -> None:
        self._bounds, self._seed, self._bootstrap = bounds, seed, bootstrap
        self._pass = lru_cache(maxsize=2)(self._shuffled)

    def graphs(self, start: int, stop: int) -> Ints:
        """The graphs at places ``start`` to ``stop - 1``, [stop - start]."""
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
        """Blocks in the order of a pass, and the place where each one ends."""
        rng = np.random.default_rng([self._seed, _BLOCKS, number])
        blocks = rng.permutation(len(self._bounds) - 1)
        return blocks, np.cumsum(np.diff(self._bounds)[blocks])


def _resampled(numbers: Ints, size: np.int64 | Ints, seed: int) -> Ints:
    """A number below ``size`` for each number, at random, but always the same for it.

    The finaliser of SplitMix64 (Steele et al., OOPSLA 2014), which any place can be asked of.
    """
    start = np.random.SeedSequence([seed, _RESAMPLE]).generate_state(1, np.uint64)
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed % np.asarray(size).astype(np.uint64)).astype(np.int64)
