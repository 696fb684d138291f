"""Mean and calibrated error bars from the members' predictions. Plain numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """How one target's spread between members becomes a standard deviation and an interval.

    The total variance is ``(scale * spread)² + (floor * size)²``: the members' disagreement, and
    the error that they share. The size is the noise that the members' heads predict, if they do;
    otherwise the number of atoms with ``per_atom``, and one without. An interval is the mean ±
    ``quantile`` total standard deviations.
    """

    scale: float
    floor: float
    """Error that all members share, in the data's units; per atom with ``per_atom``; a factor if
    the noise is predicted."""
    quantile: float
    coverage: float
    """Fraction of true values that the interval should contain."""
    per_atom: bool
    """The target is a sum over atoms, like its errors."""


@dataclass(frozen=True)
class Distribution:
    """A target's predictions; every array has the shape of the mean."""

    mean: Floats
    epistemic_std: Floats
    """Scaled spread between the members."""
    std: Floats
    """Total standard deviation; its square is the sum of those of the terms that are predicted."""
    lo: Floats
    hi: Floats
    """Ends of the calibrated interval."""
    aleatoric_std: Floats | None = None
    """Scaled noise that the heads predict, where they do."""


def combine(members: Floats, weights: Floats, median: bool = False) -> tuple[Floats, Floats]:
    """Weighted mean or median, and standard deviation between members.

    Parameters
    ----------
    members
        Predictions ``[n_members, ...]``.
    weights
        ``[n_members]``, adding up to one.
    median
        Whether the median of the members takes the place of their mean; the spread stays.

    Returns
    -------
    mean, spread
        The spread's variance is divided by 1 - Σ weights², for the mean being estimated from the
        same members; with equal weights that is the usual n - 1.
    """
    shaped = weights.reshape(-1, *[1] * (members.ndim - 1))
    mean = (shaped * members).sum(axis=0)
    variance = (shaped * np.square(members - mean)).sum(axis=0) / (1 - np.square(weights).sum())
    return np.median(members, axis=0) if median else mean, np.sqrt(variance)


def combine_noise(noise: Floats, weights: Floats) -> Floats:
    """Standard deviation of the noise that each member predicts, ``[n_members, ...]``.

    The variance of a mixture is the mean of its components' variances and the variance of their
    means (Lakshminarayanan et al., arXiv:1612.01474); this is the root of the first.
    """
    shaped = weights.reshape(-1, *[1] * (noise.ndim - 1))
    return np.asarray(np.sqrt((shaped * np.square(noise)).sum(axis=0)))


def calibrate(
    residuals: Floats,
    spread: Floats,
    coverage: float,
    per_atom: bool,
    atoms: Floats | None = None,
    noise: Floats | None = None,
) -> Calibration:
    """Fit scale and floor by maximum likelihood, and the quantile by split conformal prediction.

    The likelihood is Gaussian; the quantile is that of the residuals divided by the standard
    deviation (Lei et al., J. Am. Stat. Assoc. 113, 1094 (2018)). Its guarantee asks for calibration
    data that served nothing else. The validation split has chosen epochs and trials before, and the
    force components of one structure are not independent, so the coverage is approximate.

    Parameters
    ----------
    residuals
        Reference minus mean on validation data ``[n, d]``.
    spread
        Standard deviation between members ``[n, d]``.
    coverage
        Fraction of true values that the interval should contain.
    per_atom
        Whether errors grow with the number of atoms.
    atoms
        Number of atoms ``[n, 1]``; needed where ``per_atom``.
    noise
        Standard deviation of the noise that the members predict ``[n, d]``, where they do.
    """
    size = _size(per_atom, atoms, noise)
    squared_error = np.square(residuals / size).ravel()
    squared_spread = np.square(spread / size).ravel()
    unit = max(float(squared_error.mean()), np.finfo(float).tiny)

    def negative_log_likelihood(log_parameters: Floats) -> float:
        scale, floor = np.exp(log_parameters)
        variance = scale * squared_spread / unit + floor
        return float(np.mean(squared_error / unit / variance + np.log(variance)))

    # The best of two starts: all error seen by the spread, or none.
    spread_unit = max(float(squared_spread.mean()) / unit, 1e-12)
    starts = ([-math.log(spread_unit), math.log(1e-2)], [-math.log(spread_unit) - 4, 0.0])
    fits = [
        minimize(
            negative_log_likelihood,
            start,
            method="L-BFGS-B",
            bounds=[(start[0] - 12, start[0] + 12), (math.log(1e-6), math.log(1e2))],
        )
        for start in starts
    ]
    scale, floor = np.exp(min(fits, key=lambda fit: float(fit.fun)).x)
    fitted = Calibration(
        float(np.sqrt(scale)), float(np.sqrt(floor * unit)), math.nan, coverage, per_atom
    )
    scores = (np.abs(residuals) / np.hypot(fitted.scale * spread, fitted.floor * size)).ravel()
    return replace(fitted, quantile=conformal_quantile(scores, coverage))


def conformal_quantile(scores: Floats, coverage: float) -> float:
    """The score that a fraction ``coverage`` of new data stays below, for a finite calibration set.

    The ⌈(n + 1) coverage⌉-th smallest of n scores; the largest where n is too small for that.
    """
    # 20 * 0.55 is a little more than 11 in floating point
    rank = min(math.ceil((len(scores) + 1) * coverage - 1e-9), len(scores))
    return float(np.partition(scores, rank - 1)[rank - 1])


def needed_for_coverage(coverage: float) -> int:
    """Smallest calibration set for which :func:`conformal_quantile` can hold for its coverage."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def distribution(
    members: Floats,
    weights: Floats,
    calibration: Calibration,
    atoms: Floats | None,
    noise: Floats | None = None,
    median: bool = False,
) -> Distribution:
    """Mean, standard deviations and interval of a target.

    Parameters
    ----------
    members
        Predictions ``[n_members, n, d]``.
    weights
        ``[n_members]``.
    calibration
        Of this target.
    atoms
        Number of atoms ``[n, 1]`` of graph targets.
    noise
        Standard deviations of the noise ``[n_members, n, d]``, where the members predict them.
    median
        As of :func:`combine`.
    """
    mean, spread = combine(members, weights, median)
    together = None if noise is None else combine_noise(noise, weights)
    missed = calibration.floor * _size(calibration.per_atom, atoms, together)
    epistemic = calibration.scale * spread
    std = np.asarray(np.hypot(epistemic, missed))
    half = calibration.quantile * std
    aleatoric = None if noise is None else missed
    return Distribution(mean, epistemic, std, mean - half, mean + half, aleatoric)


def _size(per_atom: bool, atoms: Floats | None, noise: Floats | None) -> Floats:
    """Quantity with which the errors that all members share grow."""
    if noise is not None:
        return noise
    return atoms if per_atom and atoms is not None else np.ones((1, 1))


def measured_coverage(reference: Floats, predicted: Distribution) -> float:
    """Fraction of true values inside the interval, if there is a prediction."""
    known = np.isfinite(predicted.mean)
    inside = (reference >= predicted.lo) & (reference <= predicted.hi)
    return float(np.mean(inside[known]))
