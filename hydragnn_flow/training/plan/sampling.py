"""Sampling of training graphs in endless shuffled orders, and choice of validation graphs.

Every order goes through the graphs in passes: no graph of a data set is drawn a second time before
all of them have been drawn once.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import TRAIN
from hydragnn_flow.data import GraphSplit, Manifest
from hydragnn_flow.data.columns import BranchRuns, shares_of_branches
from hydragnn_flow.data.reading.split import Split, SplitPart
from hydragnn_flow.data.store.manifest import SplitSize
from hydragnn_flow.errors import InputError
from hydragnn_flow.segment import Sampling

Ints = NDArray[np.int64]
# Largest size whose permutation is numpy's, kept in half a megabyte; larger ones are computed.
_KEPT = 2**16


class Order(Protocol):
    """Endless order in which a training draws the graphs of a split."""

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1`` of the order, as indices [n]."""


class _InPasses(Order):
    """Order of whole passes through all graphs.

    Parameters
    ----------
    size
        Number of graphs in the split or branch.
    seed
        Seed of the shuffles.
    bootstrap
        If true, each pass has the same sample of as many graphs, drawn with replacement.
    """

    def __init__(self, size: int, seed: int, bootstrap: bool = False) -> None:
        self._size, self._seed, self._bootstrap = size, seed, bootstrap

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the indices of the graphs at positions ``start`` to ``stop - 1``."""
        found = [np.zeros(0, dtype=np.int64)]
        while start < stop:
            number, place = divmod(start, self._size)
            end = min(place + stop - start, self._size)
            found.append(self._of_pass(number, np.arange(place, end)))
            start += end - place
        return np.concatenate(found)

    @abstractmethod
    def _of_pass(self, number: int, places: Ints) -> Ints:
        """Return the indices of graphs at ascending positions (``places``) in a pass, [n]."""


class Shuffled(_InPasses):
    """Endless order of graphs that is shuffled differently in each pass through them.

    Parameters
    ----------
    size, seed, bootstrap
        Number of graphs, seed of the shuffles, and true to draw with replacement.
    key
        Numbers that distinguish orders with the same seed.
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
    """Endless order of the graphs of a streamed split: blocks of graphs in shuffled order.

    A block is a group of consecutive graphs. Blocks are shuffled differently in each pass.

    Parameters
    ----------
    bounds
        First graph of each block, and the end of the last one, [n_blocks + 1].
    seed, bootstrap
        The same as for :class:`Shuffled`; a bootstrap resamples each block separately.
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
    """Endless order that draws graphs of several data sets in given proportions.

    Each data set belongs to a branch (its output heads), and its graphs are shuffled.

    Parameters
    ----------
    runs
        Ranges of graphs that belong to each branch.
    shares
        Number of graphs of each branch in a cycle of ``sum(shares.values())`` draws, by branch.
    seed, bootstrap
        The same as for :class:`Shuffled`; a bootstrap resamples each branch separately.
    """

    def __init__(
        self, runs: BranchRuns, shares: Mapping[int, int], seed: int, bootstrap: bool = False
    ) -> None:
        self._seed = seed
        self._branches = [
            (runs.of_branch(branch), Shuffled(runs.graphs[branch], seed, bootstrap, 1 + branch))
            for branch in shares
        ]
        # Least number of draws that are shuffled together when branches alternate.
        repeats = -(-1024 // sum(shares.values()))
        self._each = np.array([*shares.values()]) * repeats
        self._turns = np.repeat(np.arange(len(shares), dtype=np.int16), self._each)

    def graphs(self, start: int, stop: int) -> Ints:
        """Return the graphs at positions ``start`` to ``stop - 1`` of the order, as indices [n]."""
        length = len(self._turns)
        first, last = start // length, -(-stop // length)
        # Proportions are exact in every round.
        # Purposes of random numbers of one seed beside passes, so that none depends on another.
        rounds = [
            np.random.default_rng([self._seed, number, 0, 2]).permutation(self._turns)
            for number in range(first, last)
        ]
        branch = np.concatenate([self._turns[:0], *rounds])
        drawn = np.empty(len(branch), dtype=np.int64)
        for number, (members, order) in enumerate(self._branches):
            each = int(self._each[number])
            drawn[branch == number] = members.graphs(order.graphs(first * each, last * each))
        return drawn[start - first * length :][: stop - start]


# Alternating branches need the permutations of one pass of each at a time.
@lru_cache(maxsize=64)
def permutation(size: int, *key: int) -> Callable[[Ints], Ints]:
    """Return a random permutation of ``range(size)``, as a function of positions, [n] -> [n].

    Parameters
    ----------
    size
        Length of the permutation, at least 1.
    key
        Non-negative seeds; another key gives another permutation.
    """
    if size <= _KEPT:
        order = np.random.default_rng(key).permutation(size)
        return lambda places: order[places]
    bits, factors = (size - 1).bit_length(), _factors(*key)

    def computed(places: Ints) -> Ints:
        numbers = _mixed(places, factors, bits)
        # A power of two of numbers is mixed; those that are too large are mixed again.
        while (beyond := np.flatnonzero(numbers >= size)).size:
            numbers[beyond] = _mixed(numbers[beyond], factors, bits)
        return numbers

    return computed


def _resampled(numbers: Ints, size: np.int64 | Ints, seed: int) -> Ints:
    """Map each number to a pseudo-random number below ``size`` that depends on it and the seed."""
    found: Ints = _mixed(numbers, _factors(seed, 0, 0, 4), 62) % size
    return found


def _factors(*key: int) -> NDArray[np.uint64]:
    """Return the odd factor of each round of :func:`_mixed`, [n_rounds]."""
    return np.random.SeedSequence(key).generate_state(5, np.uint64) | np.uint64(1)


def _mixed(numbers: Ints, factors: NDArray[np.uint64], bits: int) -> Ints:
    """Permute the numbers below 2^bits.

    Each round multiplies by an odd factor and mixes the upper half of the bits into the lower one,
    which can both be inverted, as in the finaliser of SplitMix64 does (Steele et al., OOPSLA 2014).
    """
    mixed, mask = numbers.astype(np.uint64), np.uint64(2**bits - 1)
    for factor in factors:
        mixed *= factor
        mixed += factor >> np.uint64(7)
        mixed &= mask
        mixed ^= mixed >> np.uint64((bits + 1) // 2)
    return mixed.astype(np.int64)


KEY = "data.sampling"


def drawn_size(manifest: Manifest, sampling: Sampling) -> SplitSize:
    """Return the expected size of one epoch of draws: its numbers of graphs, atoms and edges.

    An epoch draws as many graphs as the training split has. The number of edges follows from the
    mean number per atom over all data sets.

    Parameters
    ----------
    manifest
        Manifest of the store.
    sampling
        Value of the key `data.sampling`.
    """
    train, known = manifest.splits[TRAIN], manifest.statistics.by_branch
    if sampling == "proportional" or len(known) < 2:
        return train
    graphs = {branch: found.graphs for branch, found in known.items()}
    shares = shares_of(sampling, graphs, manifest.branch_names) or graphs
    drawn = sum(
        share * known[branch].atoms / known[branch].graphs for branch, share in shares.items()
    )
    atoms = train.graphs * drawn / sum(shares.values())
    return SplitSize(
        graphs=train.graphs,
        atoms=round(atoms),
        edges=round(atoms * train.edges / max(train.atoms, 1)),
    )


def shares_of(
    sampling: Sampling, graphs: Mapping[int, int], names: Sequence[str] = ()
) -> dict[int, int] | None:
    """Return the number of graphs of each branch in a cycle of draws, as `data.sampling` asks.

    A branch is the heads, and the graphs, of one data set. The cycle is the shortest one in which
    the proportions of `data.sampling` are exact.

    Parameters
    ----------
    sampling
        Value of the key `data.sampling`.
    graphs
        Branch -> number of its graphs to train on.
    names
        Names of the branches, in the order of their indices; empty if they have none.

    Returns
    -------
    dict
        Branch -> number of draws, at least 1; None for proportional sampling, in which every graph
        is drawn equally often.

    Raises
    ------
    InputError
        If the weights do not match the branches, or their cycle would be too long.
    """
    if sampling == "proportional":
        return None
    if len(graphs) < 2:
        raise InputError(
            f"{KEY} chooses among the branches that structures to train on belong to, but they all "
            f"belong to one; remove it"
        )
    if isinstance(sampling, str):
        return dict.fromkeys(graphs, 1)
    by_name = {names[n] if n < len(names) else str(n): n for n in graphs}
    for name in sampling:
        if name not in by_name:
            raise InputError(
                f"{KEY}.{name}: no structure to train on belongs to a branch of this name; the "
                f"branches are {', '.join(by_name)}"
            )
    for name in by_name:
        if name not in sampling:
            raise InputError(f"{KEY}: branch {name} has no weight; give it one")
    # Weights are meant as the decimals that were written: 0.1 is a tenth.
    weights = {n: Fraction(str(sampling[name])) for name, n in by_name.items()}
    whole = math.lcm(*(weight.denominator for weight in weights.values()))
    draws = {n: int(weight * whole) for n, weight in weights.items()}
    common = math.gcd(*draws.values())
    shares = {n: number // common for n, number in draws.items()}
    # Longest cycle with exact proportions. One cycle is shuffled at once, which is cheap up to
    # here.
    if sum(shares.values()) > 2**18:
        raise InputError(
            f"{KEY}: the weights have proportions that come true only every {sum(shares.values())} "
            f"structures; write rounder ones"
        )
    return shares


def judged_by(split: GraphSplit, drawn: tuple[int, int] | None) -> Split:
    """Return the validation graphs that judge epochs: the whole split, or a fixed random subset.

    In a subset each data set counts equally, so equally many graphs are drawn from each, as far as
    it has them.

    Parameters
    ----------
    split
        Validation split of the store.
    drawn
        Number of graphs and the seed that draws them; None for all graphs.
    """
    if drawn is None or drawn[0] >= len(split):
        return split
    number, seed = drawn
    purpose = 6  # of these random numbers of the seed
    runs = split.branch_runs
    if len(runs.graphs) == 1:
        graphs = permutation(len(split), seed, purpose)(np.arange(number))
    else:
        graphs = np.concatenate(
            [
                runs.of_branch(branch).graphs(
                    permutation(runs.graphs[branch], seed, purpose, branch)(np.arange(share))
                )
                for branch, share in shares_of_branches(runs, number).items()
            ]
        )
    return SplitPart(split, np.sort(graphs))
