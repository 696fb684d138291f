"""Measures of predictions and their uncertainty, one function per formula."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

COVERAGES = np.linspace(0, 1, 101)
"""Nominal fractions of intervals, for the miscalibration area."""
# Relative rounding error of a sum of squares.
_ROUNDING = 1e-12


def ratio(above: Floats, below: Floats) -> Floats:
    """Divide; NaN where the denominator is zero, negative or NaN."""
    above, below = np.broadcast_arrays(above, below)
    return np.asarray(np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0))


def determination(counts: Floats, sums: Floats, squares: Floats, squared_errors: Floats) -> Floats:
    """Compute the coefficient of determination R²: 1 - Σ error² / Σ (reference - its mean)².

    Wright, J. Agric. Res. 20, 557 (1921). NaN where all references are equal.

    Parameters
    ----------
    counts, sums, squares, squared_errors
        Number of references, their sum and the sum of their squares, each less a constant near
        their mean, and the sum of the squared errors; ``[...]``.
    """
    spread = squares - ratio(sums**2, counts)
    return 1 - ratio(squared_errors, np.where(spread > _ROUNDING * squares, spread, 0.0))


def gaussian_nll(error: Floats, std: Floats) -> Floats:
    """Compute the negative logarithm of a Gaussian's density at each true value.

    Nix and Weigend, Proc. IEEE Int. Conf. Neural Netw. 1, 55 (1994). NaN where the standard
    deviation is zero. A change of the unit adds the logarithm of its factor.
    """
    sound = np.where(std > 0, std, np.nan)
    return np.asarray(np.log(sound) + 0.5 * math.log(2 * math.pi) + 0.5 * (error / sound) ** 2)


def gaussian_crps(error: Floats, std: Floats) -> Floats:
    """Compute the continuous ranked probability score of a Gaussian, in the unit of the value.

    Gneiting et al., Mon. Weather Rev. 133, 1098 (2005); smaller is better. It is the absolute error
    where the standard deviation is zero.
    """
    from scipy.special import ndtr  # imported here, as `status` does not need SciPy

    z = error / np.where(std > 0, std, 1.0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    score = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return np.asarray(np.where(std > 0, score, np.abs(error)))


def coverage_needed(error: Floats, std: Floats) -> Floats:
    """Compute the nominal coverage of the central Gaussian interval that ends at each true value.

    Where the standard deviation is zero, it is 0 for an exact prediction and otherwise 1.
    """
    from scipy.special import ndtr

    away = np.abs(error)
    z = np.divide(away, std, out=np.where(away > 0, np.inf, 0.0), where=std > 0)
    return np.asarray(2 * ndtr(z) - 1)


def miscalibration_area(held: Floats) -> Floats:
    """Compute the area between observed and nominal coverages of Gaussian intervals.

    Kuleshov, Fenner and Ermon, Proc. Mach. Learn. Res. 80, 2796 (2018); Tran et al., Mach. Learn.:
    Sci. Technol. 1, 025006 (2020). Both are linear between two coverages. 0 is perfect, 0.5 the
    worst.

    Parameters
    ----------
    held
        Observed coverages of intervals with the nominal `COVERAGES`, ``[..., n_coverages]``.
    """
    gap = held - COVERAGES
    left, right = gap[..., :-1], gap[..., 1:]
    both = np.abs(left) + np.abs(right)
    # Lines that cross enclose two triangles, others a trapezium.
    triangles = (left**2 + right**2) / np.where(both > 0, both, 1.0)
    height = np.where(left * right < 0, triangles, both)
    return np.asarray(height.sum(axis=-1) / (2 * (len(COVERAGES) - 1)))


def normalised_calibration_error(variance: Floats, squared_error: Floats) -> Floats:
    """Compute the expected normalised calibration error (ENCE), binned by standard deviation.

    The mean over the bins of | √variance - √squared error | / √variance: Levi et al., Sensors 22,
    5540 (2022). 0 is perfect; in a sample even perfect error bars have more, the fewer values are
    in a bin (Pernot, arXiv:2305.11905). NaN where a bin's variance is zero.

    Parameters
    ----------
    variance, squared_error
        Mean of each bin ``[..., n_bins]``; NaN for an empty bin, which is ignored.
    """
    filled = np.isfinite(variance)
    off = np.abs(1 - np.sqrt(ratio(squared_error, variance)))
    return ratio(np.where(filled, off, 0.0).sum(axis=-1), filled.sum(axis=-1))


def mid_ranks(counts: Floats) -> Floats:
    """Compute the rank of each value less a half: the smaller ones and half of its equals.

    Parameters
    ----------
    counts
        Number of times each distinct value occurs ``[..., n]``, the smallest first.
    """
    return np.asarray(counts.cumsum(axis=-1) - counts / 2)


def rank_correlation(counts: Floats, one: Floats, other: Floats) -> Floats:
    """Compute Spearman's rank correlation (Am. J. Psychol. 15, 72 (1904)), NaN for constants.

    Parameters
    ----------
    counts
        Number of times each pair counts ``[..., n]``.
    one, other
        Mid-ranks of both values of a pair ``[..., n]``, see :func:`mid_ranks`.
    """
    middle = counts.sum(axis=-1, keepdims=True) / 2  # the mean of any ranks
    one, other = one - middle, other - middle
    together, first, second = (
        (counts * a * b).sum(axis=-1) for a, b in ((one, other), (one, one), (other, other))
    )
    return ratio(together, np.sqrt(first * second))


def error_retention(counts: Floats, errors: Floats) -> Floats:
    """Compute the area under the error-retention curve, dropping the most uncertain first.

    The mean error of the least uncertain fraction q, integrated over q from 0 to 1: under the
    sparsification curve of Ilg et al., ECCV (2018), arXiv:1802.07095. Equal to the mean absolute
    error if uncertainties say nothing about errors; smaller is better. Values of one standard
    deviation are dropped together.

    Parameters
    ----------
    counts, errors
        Number of values and sum of their absolute errors ``[..., n]`` for each standard deviation
        that occurs, the smallest first.
    """
    kept = counts.cumsum(axis=-1)
    mean = ratio(errors.cumsum(axis=-1), kept)
    return ratio(np.where(counts > 0, counts * mean, 0.0).sum(axis=-1), kept[..., -1])
