"""Standard deviation of an ensemble's error, and split-conformal quantiles at any level.

Structures are exchangeable, their values are not: the errors of forces in one structure are
correlated. Every structure counts once, whatever its number of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class Deviation:
    """Conversion of a spread between members to a standard deviation.

    The result is ``size`` times the root of ``(scale * spread / size)² + floor²``. The first term
    is the members' disagreement, the second the error that all members share. A curve, if there is
    one, then transforms the root. The size is one, the number of atoms, or the noise that the
    members' heads predict.
    """

    scale: float
    """Factor by which the spread between members is multiplied."""
    floor: float
    """Error that all members share, in the data's units divided by ``size``."""
    curve: tuple[tuple[float, float], ...] = ()
    """Points of a rising curve: standard deviations, divided by ``size``, before and after isotonic
    recalibration. The curve is linear in logarithms between points and proportional beyond them. It
    applies to the length of a vector, so that rotating the frame rotates the prediction."""

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Return the two parts of the calibrated standard deviation, ``[n, d]`` each.

        The first is the members' disagreement, the second the error that all members share. The
        squares of both add up to the variance.

        Parameters
        ----------
        spread, size
            Spread between members and size, ``[n, d]`` each; the d components share this
            calibration.
        """
        disagreement, shared = self.scale * spread / size, np.full(spread.shape, self.floor)
        factor = size
        if self.curve:
            total = _length(np.hypot(disagreement, shared))
            before, after = np.array(self.curve).T
            # np.interp is constant beyond the ends, and so is the factor there.
            factor = size * np.exp(
                np.interp(np.log(total), np.log(before), np.log(after))
                - np.log(np.clip(total, before[0], before[-1]))
            )
        return disagreement * factor, shared * factor

    def std(self, spread: Floats, size: Floats) -> Floats:
        """Return the total standard deviation ``[n, d]``; arguments are those of :meth:`parts`."""
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
    error: Floats,
    spread: Floats,
    size: Floats,
    weight: Floats,
    start: Deviation | None = None,
) -> Deviation:
    """Fit ``scale`` and ``floor`` of a deviation so that the mean score of a Gaussian is smallest.

    The score is that of :func:`gaussian_crps`. Like the likelihood it is proper (Gneiting et al.,
    Mon. Weather Rev. 133, 1098 (2005)), but it grows with the error and not with its square, so a
    few large errors do not widen all error bars.

    Parameters
    ----------
    error
        Absolute errors ``[n, d]``.
    spread
        Standard deviation between members ``[n, d]``.
    size
        Size in the sense of :class:`Deviation`, ``[n, d]``.
    weight
        Weight of each row, ``[n]``.
    start
        Fit to almost the same data, from which the search starts; if None, two searches from
        default values are made and the better result is kept.
    """
    from scipy.optimize import minimize  # imported here, as `status` does not need SciPy

    if error.size > 20_000:  # more values give the same two numbers
        rows = 20_000 // error.shape[1]
        part = np.random.default_rng(0).choice(len(error), rows, replace=False)
        error, spread, size, weight = (a[part] for a in (error, spread, size, weight))
    error, spread, weight = error / size, spread / size, weight / weight.sum()
    # Errors far below the spread cannot be distinguished from zero.
    unit = max(
        float(weight @ error.mean(axis=1)), 1e-9 * float(weight @ spread.mean(axis=1)), _TINY
    )
    error, squared = error / unit, np.square(spread / unit)

    def score(log_parameters: Floats) -> float:
        scale, floor = np.exp(log_parameters)
        return float(weight @ gaussian_crps(error, np.sqrt(scale * squared + floor)).mean(axis=1))

    spread_unit = max(float(weight @ squared.mean(axis=1)), 1e-12)
    bounds = [(-math.log(spread_unit) - 14, -math.log(spread_unit) + 12), (-14.0, 5.0)]
    # The best of two starts: all error seen by the spread, or none.
    starts = [(-math.log(spread_unit), math.log(1e-2)), (-math.log(spread_unit) - 4, 0.0)]
    if start is not None:
        starts = [
            (2 * math.log(max(start.scale, _TINY)), 2 * math.log(max(start.floor, _TINY) / unit))
        ]
    fits = [
        minimize(score, np.clip(first, *np.transpose(bounds)), method="L-BFGS-B", bounds=bounds)
        for first in starts
    ]
    scale, floor = np.exp(min(fits, key=lambda fit: float(fit.fun)).x)
    return Deviation(float(np.sqrt(scale)), float(np.sqrt(floor) * unit))


def fit_curve(
    fitted: Deviation, error: Floats, spread: Floats, size: Floats, weight: Floats
) -> Deviation | None:
    """Return a fit with an isotonic (rising) curve from its deviations to those that errors show.

    Among values with about the same fitted deviation, the deviation that the errors show is √(π/2)
    times their mean absolute error (Busk et al., arXiv:2305.16325, with squared errors).

    ``fitted`` is the fit without a curve; the other parameters are those of :func:`fit_deviation`.
    The result is None if there are fewer than 40 rows, if all fitted deviations are equal, or if
    the curve would begin at zero.
    """
    from scipy.optimize import isotonic_regression

    bins = min(len(error) // 20, 20)  # one value says little of its deviation
    total = _length(fitted.std(spread, size) / size)[:, 0]
    if bins < 2 or np.ptp(total) == 0:
        return None
    error = (error / size).mean(axis=1)
    parts = np.array_split(np.argsort(total, kind="stable"), bins)
    sums = np.array([weight[part].sum() for part in parts])
    before = np.array([weight[part] @ total[part] for part in parts]) / sums
    after = np.array([weight[part] @ error[part] for part in parts]) / sums
    rising = isotonic_regression(after, weights=sums).x * math.sqrt(math.pi / 2)
    if rising[0] <= 0:
        return None
    distinct = np.append(True, np.diff(before) > 0)
    points = zip(before[distinct].tolist(), rising[distinct].tolist(), strict=True)
    return replace(fitted, curve=tuple(points))


def _length(components: Floats) -> Floats:
    """Return the root mean square of each row's components, ``[n, 1]``, always above zero."""
    mean = np.square(components).mean(axis=1, keepdims=True)
    return np.asarray(np.maximum(np.sqrt(mean), _TINY))


# Scores of a large set are kept at multiples of 1/400.
_KEPT = 400
# 20 * 0.55 is a little more than 11 in floating point
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Scores:
    """Sorted scores (error divided by standard deviation), and the fraction that each covers."""

    score: tuple[float, ...]
    held: tuple[float, ...]
    """Fraction of a new structure's values whose scores are expected not to exceed each score."""
    structures: int
    """Number of structures that the scores come from."""

    @classmethod
    def of(cls, scores: Floats, structure: NDArray[np.int64]) -> Scores:
        """Compute the scores of a calibration set.

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

    For ``coverage`` 0.9 it is 9.
    """
    return math.ceil(coverage / (1 - coverage) - _ROUNDING)
