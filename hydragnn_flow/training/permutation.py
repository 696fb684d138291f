"""Random permutations of any size with random access to their elements."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Largest permutation kept as an array, which is faster; it takes half a megabyte.
_KEPT = 2**16
_ROUNDS = 4


class Permutation(Protocol):
    """Permutation of the numbers from 0 to a size, exclusive."""

    def __call__(self, places: Ints) -> Ints:
        """Return the numbers at some positions, [n] -> [n]."""


# Kept because branches of a split alternate, each with a permutation of its own.
@lru_cache(maxsize=64)
def permutation(size: int, *key: int) -> Permutation:
    """Return the permutation of ``size`` numbers that a key determines.

    Parameters
    ----------
    size
        Number of elements, at least 1.
    key
        Non-negative integers; another key gives another permutation.
    """
    rng = np.random.default_rng(key)
    if size > _KEPT:
        return _Feistel(size, rng)
    order = rng.permutation(size)
    return lambda places: order[places]


class _Feistel:
    """Feistel permutation: numbers are digit pairs (high, low), each shifted by the other.

    A round adds to one digit a random function of the other. It can be undone, so no two numbers
    collide. Four rounds with random functions cannot be distinguished from a random permutation by
    fewer than some roots of ``size`` samples (Luby & Rackoff, SIAM J. Comput. 17 (1988) 373). The
    functions are tables of about √size values each.
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
        # A few digit pairs exceed the last number: apply the permutation again to those.
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
