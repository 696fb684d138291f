"""Shuffled orders of numbers of any size, any part of which is worked out alone."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Up to here an order is kept: as fast, and as random as numpy's. It takes half a megabyte.
_KEPT = 2**16
_ROUNDS = 4


class Permutation(Protocol):
    """A shuffled order of the numbers from 0 up to a size."""

    def __call__(self, places: Ints) -> Ints:
        """The numbers at some places of the order, [n] -> [n]."""


# Branches of a split take turns, each with an order of its own.
@lru_cache(maxsize=64)
def permutation(size: int, *key: int) -> Permutation:
    """The shuffled order of ``size`` numbers that a key decides, whoever asks.

    Parameters
    ----------
    size
        At least 1.
    key
        Numbers from 0 on; another key gives another order.
    """
    rng = np.random.default_rng(key)
    if size > _KEPT:
        return _Feistel(size, rng)
    order = rng.permutation(size)
    return lambda places: order[places]


class _Feistel:
    """An order that is computed: numbers are digits (high, low), and each is moved by the other.

    A round adds to one digit a random function of the other, which can be undone, so no two numbers
    meet. Four rounds with random functions are indistinguishable from a random order to whoever
    looks at fewer than some roots of ``size`` places (Luby & Rackoff, SIAM J. Comput. 17 (1988)
    373). The functions are tables of about the root of ``size`` values each.
    """

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size = size
        self._lows = math.isqrt(size - 1) + 1
        self._highs = -(-size // self._lows)
        ranges = [(self._highs, self._lows), (self._lows, self._highs)]
        self._tables = [
            rng.integers(0, of, number) for of, number in ranges * (_ROUNDS // len(ranges))
        ]

    def __call__(self, places: Ints) -> Ints:
        numbers = self._moved(places)
        # A few pairs of digits are beyond the last number: the walk goes on from those.
        while (beyond := np.flatnonzero(numbers >= self._size)).size:
            numbers[beyond] = self._moved(numbers[beyond])
        return numbers

    def _moved(self, places: Ints) -> Ints:
        high, low = np.divmod(places, self._lows)
        for number, table in enumerate(self._tables):
            moved, other, most = (low, high, self._lows) if number % 2 else (high, low, self._highs)
            moved += table.take(other)
            moved -= most * (moved >= most)
        high *= self._lows
        high += low
        return high
