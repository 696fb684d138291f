"""Orders in which training draws graphs: endless, with random access to any section.

Every order goes through the graphs in passes: no graph of a data set is drawn a second time before
all of them have been drawn once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.branch_runs import BranchRuns

Ints = NDArray[np.int64]
# What numbers of a seed are for beside passes, so that none says anything about another.
_TURNS, _RESAMPLE = 2, 4
# Draws that are shuffled together, at least, where branches take turns.
_TOGETHER = 1024
# Up to here a permutation is kept: as fast, and as random as numpy's. It takes half a megabyte.
_KEPT = 2**16
_ROUNDS = 5


class Order(Protocol):
    """Endless order of the graphs of a split."""

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""


class _InPasses(Order):
    """An order of whole passes through all graphs.

    Parameters
    ----------
    size
        Number of graphs in the split or branch.
    seed
        Seed of the shuffles.
    bootstrap
        Whether as many graphs are drawn with replacement, the same in each pass.
    """

    def __init__(self, size: int, seed: int, bootstrap: bool = False) -> None:
        self._size, self._seed, self._bootstrap = size, seed, bootstrap

    def graphs(self, start: int, stop: int) -> Ints:
        """The graphs at places ``start`` to ``stop - 1``, [stop - start]."""
        found = [np.zeros(0, dtype=np.int64)]
        while start < stop:
            number, place = divmod(start, self._size)
            end = min(place + stop - start, self._size)
            found.append(self._of_pass(number, np.arange(place, end)))
            start += end - place
        return np.concatenate(found)

    @abstractmethod
    def _of_pass(self, number: int, places: Ints) -> Ints:
        """The graphs at some places of a pass, [n]."""


class Shuffled(_InPasses):
    """All graphs, shuffled anew for each pass.

    Parameters
    ----------
    size, seed, bootstrap
        Arguments of every order of passes.
    key
        Tells orders of one seed apart.
    """

    def __init__(self, size: int, seed: int, bootstrap: bool = False, *key: int) -> None:
        super().__init__(size, seed, bootstrap)
        self._key = key

    def _of_pass(self, number: int, places: Ints) -> Ints:
        graphs = permutation(self._size, self._seed, number, *self._key)(places)
        if self._bootstrap:
            graphs = _resampled(graphs, np.int64(self._size), self._seed + sum(self._key))
        return graphs


class InBlocks(_InPasses):
    """All graphs block by block, the blocks shuffled anew for each pass; for streams.

    Parameters
    ----------
    bounds
        First graph of each block, and the end of the last, [n_blocks + 1].
    seed, bootstrap
        Arguments of :class:`Shuffled`; a bootstrap draws from each block on its own.
    """

    def __init__(self, bounds: Ints, seed: int, bootstrap: bool = False) -> None:
        super().__init__(int(bounds[-1]), seed, bootstrap)
        self._bounds = bounds

    def _of_pass(self, number: int, places: Ints) -> Ints:
        n_blocks = len(self._bounds) - 1
        blocks = permutation(n_blocks, self._seed, number)(np.arange(n_blocks))
        ends = np.cumsum(np.diff(self._bounds)[blocks])
        turn = np.searchsorted(ends, places, side="right")
        first = self._bounds[blocks[turn]]
        size = self._bounds[blocks[turn] + 1] - first
        within: Ints = places - ends[turn] + size
        if self._bootstrap:
            within = _resampled(first + within, size, self._seed)
        return first + within


class InTurns:
    """Order that draws several branches in given proportions, each branch shuffled separately.

    Parameters
    ----------
    runs
        Ranges of graphs that belong to each branch.
    shares
        Branch -> number of its graphs in a cycle of ``sum(shares.values())`` draws.
    seed, bootstrap
        Arguments of :class:`Shuffled`; a bootstrap draws from each branch on its own.
    """

    def __init__(
        self, runs: BranchRuns, shares: Mapping[int, int], seed: int, bootstrap: bool = False
    ) -> None:
        self._seed = seed
        self._branches = [
            (runs.of_branch(branch), Shuffled(runs.graphs[branch], seed, bootstrap, 1 + branch))
            for branch in shares
        ]
        repeats = -(-_TOGETHER // sum(shares.values()))
        self._each = np.array([*shares.values()]) * repeats
        self._turns = np.repeat(np.arange(len(shares), dtype=np.int16), self._each)

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1``, [stop - start]."""
        length = len(self._turns)
        first, last = start // length, -(-stop // length)
        # In every round all proportions are exact.
        rounds = [
            np.random.default_rng([self._seed, number, 0, _TURNS]).permutation(self._turns)
            for number in range(first, last)
        ]
        branch = np.concatenate([self._turns[:0], *rounds])
        drawn = np.empty(len(branch), dtype=np.int64)
        for number, (members, order) in enumerate(self._branches):
            each = int(self._each[number])
            drawn[branch == number] = members.graphs(order.graphs(first * each, last * each))
        return drawn[start - first * length :][: stop - start]


# Branches of a split take turns, each with an order of its own.
@lru_cache(maxsize=64)
def permutation(size: int, *key: int) -> Callable[[Ints], Ints]:
    """The numbers at some places, [n] -> [n], of a shuffled order of all below ``size``.

    Parameters
    ----------
    size
        At least 1.
    key
        Numbers from 0 on; another key gives another order.
    """
    if size <= _KEPT:
        order = np.random.default_rng(key).permutation(size)
        return lambda places: order[places]
    bits, factors = (size - 1).bit_length(), _factors(*key)

    def computed(places: Ints) -> Ints:
        numbers = _mixed(places, factors, bits)
        # Numbers up to a power of two are mixed: the walk goes on from those that are too large.
        while (beyond := np.flatnonzero(numbers >= size)).size:
            numbers[beyond] = _mixed(numbers[beyond], factors, bits)
        return numbers

    return computed


def _resampled(numbers: Ints, size: np.int64 | Ints, seed: int) -> Ints:
    """A number below ``size`` for each number, at random, but always the same for it."""
    found: Ints = _mixed(numbers, _factors(seed, 0, 0, _RESAMPLE), 62) % size
    return found


def _factors(*key: int) -> NDArray[np.uint64]:
    """Odd factors of the rounds of :func:`_mixed`."""
    return np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64) | np.uint64(1)


def _mixed(numbers: Ints, factors: NDArray[np.uint64], bits: int) -> Ints:
    """Numbers below 2^bits, each mapped to another one; no two meet.

    Each round multiplies by an odd factor and mixes the upper half of the bits into the lower one,
    both of which can be undone, as the finaliser of SplitMix64 does (Steele et al., OOPSLA 2014).
    """
    mixed, mask = numbers.astype(np.uint64), np.uint64(2**bits - 1)
    for factor in factors:
        mixed *= factor
        mixed += factor >> np.uint64(7)
        mixed &= mask
        mixed ^= mixed >> np.uint64((bits + 1) // 2)
    return mixed.astype(np.int64)
