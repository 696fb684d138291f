"""Split-conformal quantiles at any level, from scores of structures not used in a fit.

Structures are exchangeable, their values are not: the errors of forces in one structure are
correlated. Every structure counts once, whatever its number of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Scores of a large set are kept at multiples of 1/400.
_KEPT = 400
# 20 * 0.55 is a little more than 11 in floating point
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Scores:
    """Sorted scores (absolute error by standard deviation) and the fraction each one covers."""

    score: tuple[float, ...]
    held: tuple[float, ...]
    """Fraction of the values of a new structure that are expected not to exceed each score."""
    structures: int
    """Number of structures that the scores come from."""

    @classmethod
    def of(cls, scores: Floats, structure: NDArray[np.int64]) -> Scores:
        """Compute the scores of a calibration set.

        The fraction of values of a structure below a score is averaged over the K structures (Dunn,
        Wasserman and Ramdas, J. Am. Stat. Assoc. 118, 2491 (2023)) and divided by 1 + r / K. The
        ratio r is the variance of that fraction between structures, divided by the variance with
        one value per structure. There it is one and the coverage exact: the k-th smallest of n
        scores holds k / (n + 1) (Lei et al., J. Am. Stat. Assoc. 113, 1094 (2018)). With several
        values the second-order error of the coverage vanishes.

        Parameters
        ----------
        scores
            Absolute errors by standard deviations, ``[n]``, at least one.
        structure
            Number of the structure that each score belongs to, ``[n]``.
        """
        _, number, sizes = np.unique(structure, return_inverse=True, return_counts=True)
        order = np.argsort(scores, kind="stable")
        number, scores = number[order], scores[order]
        # Number of smaller scores in the same structure.
        by_structure = np.argsort(number, kind="stable")
        before = np.empty(len(scores), np.int64)
        before[by_structure] = np.arange(len(scores)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        size = sizes[number].astype(np.float64)
        fraction = np.cumsum(1 / size) / len(sizes)
        square = np.cumsum((2 * before + 1) / size**2) / len(sizes)
        single = fraction * (1 - fraction)
        known = single > _ROUNDING
        ratio = np.ones(len(scores))
        ratio[known] = np.clip((square - fraction**2)[known] / single[known], 0, 1)
        held = np.maximum.accumulate(fraction / (1 + ratio / len(sizes)))
        if len(scores) > _KEPT:
            levels = np.arange(1, _KEPT + 1) / _KEPT
            places = np.searchsorted(held, levels - _ROUNDING)
            kept = np.unique(np.append(places[places < len(held)], len(held) - 1))
            scores, held = scores[kept], held[kept]
        return cls(tuple(scores.tolist()), tuple(held.tolist()), len(sizes))

    def quantile(self, coverage: float) -> float:
        """Return the smallest score that covers a fraction; infinite with too few structures."""
        if self.structures < needed_for_coverage(coverage):
            return math.inf
        place = int(np.searchsorted(self.held, coverage - _ROUNDING))
        return self.score[place] if place < len(self.score) else math.inf


def needed_for_coverage(coverage: float) -> int:
    """Return the number of structures from which :meth:`Scores.quantile` is finite."""
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)
