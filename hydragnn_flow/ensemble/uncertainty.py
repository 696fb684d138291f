"""Mean and calibrated error bars from the members' predictions, in plain numpy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.conformal import Scores
from hydragnn_flow.ensemble.deviation import Deviation
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.mixed_calibration import MixedCalibration

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Conversion of one target's spread between members to a standard deviation and intervals.

    A vector's three components are calibrated together, as they rotate into each other with the
    frame; other components separately. An interval is the mean ± a quantile of the scores times the
    standard deviation.
    """

    deviations: tuple[Deviation, ...]
    """Deviation of each component, or one for all components of a vector."""
    scores: tuple[tuple[Scores, ...], ...]
    """Scores by component as in ``deviations``, then by group: vectors by their norm, other targets
    of atoms by element."""
    norms: tuple[float, ...]
    """Norms of the mean that divide vectors into groups, ascending; one less than groups."""
    per_atom: bool
    """True if the target is a sum over atoms, and so are its errors."""
    structures: int
    """Number of labelled structures in the calibration."""
    elements: tuple[int, ...] = ()
    """Atomic numbers with a group each, ascending; the last group is for all others."""
    by_noise: bool = False
    """True if shared errors grow with the noise that the members predict. Predictions then need
    that noise; otherwise it is ignored."""

    @property
    def least_structures(self) -> int:
        """Smallest number of structures behind an interval."""
        return min(scores.structures for groups in self.scores for scores in groups)

    def quantiles(
        self, mean: Floats, coverage: float, numbers: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return half widths of intervals in standard deviations, ``[n, d]``.

        They are infinite where the calibration had too few structures.

        Parameters
        ----------
        mean
            Mean predictions of the members, ``[n, d]``.
        coverage
            Fraction of true values in the intervals.
        numbers
            Atomic number of each row ``[n]``, for node targets.
        """
        table = np.array([[one.quantile(coverage) for one in groups] for groups in self.scores])
        group = group_of(mean, numbers, self.norms, self.elements)
        return np.asarray(table.T[group] * np.ones(mean.shape))

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Return the members' disagreement and shared error; their squares add up to the variance.

        Parameters
        ----------
        spread
            Standard deviation between members, ``[n, d]``.
        size
            Quantity with which shared errors grow, of a shape that fits.
        """
        size = np.broadcast_to(size, spread.shape)
        if len(self.deviations) == 1:
            return self.deviations[0].parts(spread, size)
        columns = [one.parts(spread[:, [c]], size[:, [c]]) for c, one in enumerate(self.deviations)]
        disagreement, shared = (np.hstack(part) for part in zip(*columns, strict=True))
        return disagreement, shared

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Distribution:
    """Predictions of a target; every array has the shape of the mean, ``[n, d]``."""

    mean: Floats
    spread: Floats
    """Uncalibrated standard deviation between the members."""
    epistemic_std: Floats
    """Calibrated spread between the members."""
    std: Floats
    """Total standard deviation: epistemic and shared error, added in squares."""
    lo: Floats
    hi: Floats
    """Upper end of the calibrated interval; ``lo`` is the lower one."""
    calibration: Calibration | MixedCalibration
    aleatoric_std: Floats | None = None
    """Calibrated noise that the heads predict; None if they predict none."""
    numbers: NDArray[np.int64] | None = None
    """Atomic number of each row, if the calibration depends on it."""

    def interval(self, coverage: float) -> tuple[Floats, Floats]:
        """Return the ends of the interval for another fraction of true values."""
        half = self.calibration.quantiles(self.mean, coverage, self.numbers) * self.std
        return self.mean - half, self.mean + half


def combine(members: Floats, weights: Floats, median: bool = False) -> tuple[Floats, Floats]:
    """Compute the weighted mean or median, and the standard deviation between members.

    Parameters
    ----------
    members
        Predictions of the members, ``[n_members, ...]``.
    weights
        Weights ``[n_members]`` that add up to one. Members with weight zero are left out, as their
        predictions may not be finite.
    median
        True for the median of the members instead of their mean; the spread stays the same.

    Returns
    -------
    mean, spread
        Mean or median, and standard deviation. Its variance is divided by 1 - Σ weights², since the
        mean is estimated from the same members; with equal weights that is the usual n - 1. It is
        zero where one member has all the weight.
    """
    members, weights = members[weights > 0], weights[weights > 0]
    shaped = weights.reshape(-1, *[1] * (members.ndim - 1))
    mean = (shaped * members).sum(axis=0)
    free = 1 - np.square(weights).sum() if len(weights) > 1 else 1.0
    variance = (shaped * np.square(members - mean)).sum(axis=0) / free
    return np.median(members, axis=0) if median else mean, np.sqrt(variance)


def combine_noise(noise: Floats, weights: Floats) -> Floats:
    """Combine the standard deviations of the noise that members predict, ``[n_members, ...]``.

    The variance of a mixture is the mean of its components' variances plus the variance of their
    means (Lakshminarayanan et al., arXiv:1612.01474); this is the root of the first.
    """
    noise, weights = noise[weights > 0], weights[weights > 0]
    shaped = weights.reshape(-1, *[1] * (noise.ndim - 1))
    return np.asarray(np.sqrt((shaped * np.square(noise)).sum(axis=0)))


def distribution(
    members: Floats,
    weights: Floats,
    calibration: Calibration | MixedCalibration,
    atoms: Floats | None,
    noise: Floats | None = None,
    median: bool = False,
    *,
    coverage: float,
    numbers: NDArray[np.int64] | None = None,
) -> Distribution:
    """Compute mean, standard deviations and interval of a target.

    Parameters
    ----------
    members
        Predictions of the members, ``[n_members, n, d]``.
    weights
        Weights of the members, ``[n_members]``.
    calibration
        Calibration of the target.
    atoms
        Number of atoms ``[n, 1]``, for graph targets.
    noise
        Standard deviations of the noise ``[n_members, n, d]``, if the members predict it. It is
        used if the calibration was made with it: then all its members predicted one.
    median
        True for the median of the members instead of their mean.
    coverage
        Fraction of true values in the interval.
    numbers
        Atomic numbers ``[n]``, for node targets.

    Raises
    ------
    InputError
        If the calibration was made with a noise and there is none.
    """
    if not calibration.by_noise:
        noise = None
    elif noise is None:
        raise InputError(
            "the calibration was made with the noise that the members predict, and now one "
            "predicts none; give members that all do, or calibrate them anew"
        )
    mean, spread = combine(members, weights, median)
    together = None if noise is None else combine_noise(noise, weights)
    epistemic, shared = calibration.parts(spread, size_of(calibration.per_atom, atoms, together))
    std = np.asarray(np.hypot(epistemic, shared))
    half = calibration.quantiles(mean, coverage, numbers) * std
    aleatoric = None if noise is None else shared
    return Distribution(
        mean, spread, epistemic, std, mean - half, mean + half, calibration, aleatoric, numbers
    )


def group_of(
    mean: Floats,
    numbers: NDArray[np.int64] | None,
    norms: tuple[float, ...],
    elements: tuple[int, ...],
) -> NDArray[np.int64]:
    """Return the group of each row, ``[n]``: by norm, by element, or one for all."""
    if norms:
        return np.asarray(np.searchsorted(norms, np.linalg.norm(mean, axis=1)))
    if not elements or numbers is None:
        return np.full(len(mean), len(elements))
    place = np.minimum(np.searchsorted(elements, numbers), len(elements) - 1)
    return np.asarray(np.where(np.asarray(elements)[place] == numbers, place, len(elements)))


def size_of(per_atom: bool, atoms: Floats | None, noise: Floats | None) -> Floats:
    """Return the quantity with which the errors shared by all members grow."""
    if noise is not None:
        return noise
    return atoms if per_atom and atoms is not None else np.ones((1, 1))


def measured_coverage(reference: Floats, predicted: Distribution) -> float:
    """Return the fraction of true values inside the interval, where there is a prediction."""
    known = np.isfinite(predicted.mean)
    inside = (reference >= predicted.lo) & (reference <= predicted.hi)
    return float(np.mean(inside[known]))
