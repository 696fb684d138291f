"""Standard deviation of an ensemble's error, and split-conformal quantiles at any level.

Structures are exchangeable, their values are not: the errors of forces in one structure are
correlated. Every structure counts once, whatever its number of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class Deviation:
    """Conversion of the spread between members to the standard deviation of the error.

    The variance is ``(scale * spread)² + (floor * size)²``. The first term is the members'
    disagreement, the second the error that all members share. The size is :meth:`.Sizes.total`.
    """

    scale: float
    """Factor by which the spread between members is multiplied."""
    floor: float
    """Error that all members share, in the data's units divided by ``size``."""
    noise: float = 1.0
    """Median of the sizes without extrapolation, divided by their units: see :class:`.Sizes`."""
    extrapolation: float = 0.0
    """Median extrapolation of the calibration data; zero if it is not known, and not used."""

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Return deviations due to the members' disagreement and to shared error, ``[n, d]`` each.

        They are standard deviations; the shared error is common to all members. The squares of both
        add up to the variance.

        Parameters
        ----------
        spread, size
            Standard deviation between members, and size in the sense of :class:`Deviation`,
            ``[n, d]`` each; the d components share this calibration.
        """
        return self.scale * spread, self.floor * size

    def std(self, spread: Floats, size: Floats) -> Floats:
        """Return the total standard deviation of the ensemble's error, ``[n, d]``.

        The arguments are those of :meth:`parts`.
        """
        return np.asarray(np.hypot(*self.parts(spread, size)))


def gaussian_crps(error: Floats, std: Floats) -> Floats:
    """Compute the continuous ranked probability score of a Gaussian, in the unit of the error.

    Gneiting et al., Mon. Weather Rev. 133, 1098 (2005); smaller is better. The result has the shape
    of ``error`` and of the standard deviations ``std``. It is the absolute error where the standard
    deviation is zero.
    """
    from scipy.special import ndtr  # imported here, as `status` does not need SciPy

    z = error / np.where(std > 0, std, 1.0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    score = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return np.asarray(np.where(std > 0, score, np.abs(error)))


def fit_deviation(
    error: Floats, spread: Floats, size: Floats, structure: NDArray[np.int64]
) -> Deviation:
    """Fit ``scale`` and ``floor`` of a :class:`Deviation` to the errors of predictions.

    The fit believes the members, so that ``scale`` stays near 1, unless errors contradict. The
    score is the mean over structures of :func:`gaussian_crps`. Like the likelihood it is proper
    (Gneiting et al., Mon. Weather Rev. 133, 1098 (2005)), but it grows with the error and not with
    its square, so a few large errors do not widen all error bars.

    Few structures hardly tell a small scale with a large floor from a scale of one: the score is
    flat. Far from the training data they differ by orders of magnitude, as only the spread grows
    there. So the scale nearest to one is taken whose score, with the floor refitted, is at most two
    standard errors worse than the best, as Breiman et al. choose among trees by one (Classification
    and Regression Trees, 1984, section 3.4.3). The standard error is that of the mean difference
    between the two scores of each structure.

    Parameters
    ----------
    error
        Absolute errors ``[n, d]``.
    spread
        Standard deviation between members ``[n, d]``.
    size
        Size in the sense of :class:`Deviation`, ``[n, d]``.
    structure
        Index of the structure that each row belongs to, ``[n]``. Every structure counts once.
    """
    from scipy.optimize import bisect, minimize_scalar  # as `status` does not need SciPy

    if error.size > 16_384:  # more values give the same two numbers
        rows = _evenly(structure, 16_384 // error.shape[1])
        error, spread, size = error[rows], spread[rows], size[rows]
        structure = structure[rows]
    error, spread = error / size, spread / size
    _, number, counts = np.unique(structure, return_inverse=True, return_counts=True)
    n = len(counts)

    def mean_of(values: Floats) -> Floats:
        return np.bincount(number, values.mean(axis=1)) / counts

    mean_spread = float(mean_of(spread).mean())
    # Errors far below the spread cannot be distinguished from zero.
    unit = max(float(mean_of(error).mean()), 1e-9 * mean_spread, _TINY)

    def deviation(log_scale: float) -> Deviation:
        scale = math.exp(log_scale)
        found = minimize_scalar(
            lambda log_floor: scores(Deviation(scale, unit * math.exp(log_floor))).mean(),
            bounds=(-7.0, 2.5),
            method="bounded",
            options={"xatol": 0.01},
        )
        return Deviation(scale, unit * math.exp(found.x))

    def scores(by: Deviation) -> Floats:
        return mean_of(gaussian_crps(error, by.std(spread, np.ones(spread.shape))))

    if mean_spread == 0:
        return deviation(0.0)
    middle = math.log(unit / mean_spread)
    best: float = minimize_scalar(
        lambda log_scale: scores(deviation(log_scale)).mean(),
        bounds=(min(middle, 0.0) - 5.0, max(middle, 0.0) + 3.0),
        method="bounded",
        options={"xatol": 0.05},
    ).x
    least = scores(deviation(best))

    def contradicted(log_scale: float) -> float:
        worse = scores(deviation(log_scale)) - least
        errors_of_mean = 2 * worse.std(ddof=1) / math.sqrt(n) if n > 1 else math.inf
        # A thousandth, so that the best itself is on this side.
        return float(worse.mean() - max(errors_of_mean, 1e-3 * least.mean()))

    if contradicted(0.0) <= 0:
        return deviation(0.0)
    return deviation(bisect(contradicted, best, 0.0, xtol=0.02))


def _evenly(structure: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return the indices of about ``n`` random rows, as many of each structure as possible."""
    rows = np.random.default_rng(0).permutation(len(structure))
    by_structure = np.argsort(structure[rows], kind="stable")
    _, first, counts = np.unique(
        structure[rows][by_structure], return_index=True, return_counts=True
    )
    place = np.empty(len(rows), np.int64)  # among the rows of the same structure
    place[by_structure] = np.arange(len(rows)) - np.repeat(first, counts)
    return rows[np.argsort(place, kind="stable")[:n]]


# Scores of a large set are kept at multiples of 1/400.
_KEPT = 400
# 20 * 0.55 is a little more than 11 in floating point
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Scores:
    """Conformal scores (error / standard deviation), sorted, and what fraction each covers."""

    score: tuple[float, ...]
    held: tuple[float, ...]
    """Fraction of a new structure's values whose scores are expected not to exceed each score."""
    structures: int
    """Number of structures that the scores come from."""

    @classmethod
    def of(cls, scores: Floats, structure: NDArray[np.int64]) -> Scores:
        """Sort the scores of a calibration set, and compute the fraction of values each covers.

        The fraction of values of a structure below a score is averaged over the K structures (Dunn,
        Wasserman and Ramdas, J. Am. Stat. Assoc. 118, 2491 (2023)) and divided by 1 + r / K. The
        ratio r is the variance of that fraction between structures, divided by the variance that it
        would have with one value per structure. With one value per structure, r is one and the
        coverage exact: the k-th smallest of n scores covers k / (n + 1) of new values (Lei et al.,
        J. Am. Stat. Assoc. 113, 1094 (2018)). With several values per structure, the second-order
        error of the coverage vanishes.

        Parameters
        ----------
        scores
            Absolute errors divided by standard deviations, ``[n]``, at least one.
        structure
            Index of the structure that each score belongs to, ``[n]``.
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
        """Return the smallest score that covers the fraction ``coverage`` of values.

        It is infinite if there are too few structures for that coverage.
        """
        if self.structures < needed_for_coverage(coverage):
            return math.inf
        place = int(np.searchsorted(self.held, coverage - _ROUNDING))
        return self.score[place] if place < len(self.score) else math.inf


def needed_for_coverage(coverage: float) -> int:
    """Return the smallest number of calibration structures that intervals of a coverage need.

    For intervals that contain 90 % of true values (``coverage`` 0.9) it is 9.
    """
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)
