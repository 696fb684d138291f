"""Mean and calibrated error bars from the members' predictions, in plain numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.conformal import Scores, needed_for_coverage
from hydragnn_flow.ensemble.deviation import Deviation
from hydragnn_flow.errors import InputError

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


ByDataSet = dict[str, dict[str, Calibration]]
"""Calibration by data set and target. Data sets with too few structures have none of their own."""


@dataclass(frozen=True, eq=False)
class MixedCalibration:
    """Calibrations of a target for different rows, with the methods of `Calibration`."""

    parts_of: tuple[tuple[NDArray[np.bool_], Calibration], ...]
    """Masks of rows ``[n]`` and their calibrations; together the masks cover all rows."""

    @property
    def per_atom(self) -> bool:
        """True if the target is a sum over atoms."""
        return self.parts_of[0][1].per_atom

    @property
    def by_noise(self) -> bool:
        """True if shared errors grow with the noise that the members predict."""
        return self.parts_of[0][1].by_noise

    @property
    def least_structures(self) -> int:
        """Smallest number of structures behind an interval."""
        return min(one.least_structures for _, one in self.parts_of)

    def quantiles(
        self, mean: Floats, coverage: float, numbers: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return half widths of intervals; see :meth:`Calibration.quantiles`."""
        found = np.empty(mean.shape)
        for rows, one in self.parts_of:
            here = None if numbers is None else numbers[rows]
            found[rows] = one.quantiles(mean[rows], coverage, here)
        return found

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Return disagreement and shared error; see :meth:`Calibration.parts`."""
        size = np.broadcast_to(size, spread.shape)
        disagreement, shared = np.empty(spread.shape), np.empty(spread.shape)
        for rows, one in self.parts_of:
            disagreement[rows], shared[rows] = one.parts(spread[rows], size[rows])
        return disagreement, shared


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


def calibration_of_rows(
    target: str,
    of_all: Calibration,
    by_data_set: Mapping[str, Mapping[str, Calibration]],
    data_sets: NDArray[np.object_],
) -> Calibration | MixedCalibration:
    """Return the calibration for rows that belong to several data sets.

    Parameters
    ----------
    target
        Name of the target.
    of_all
        Calibration from all structures together.
    by_data_set
        Calibrations by data set and target.
    data_sets
        Name of the data set of each row, ``[n]``.
    """
    names = [name for name in dict.fromkeys(data_sets) if target in by_data_set.get(name, {})]
    parts = [(data_sets == name, by_data_set[name][target]) for name in names]
    others = ~np.isin(data_sets, names)
    if not parts:
        return of_all
    return MixedCalibration((*parts, (others, of_all)) if others.any() else tuple(parts))


def with_enough(by_data_set: Mapping[str, Mapping[str, Calibration]], coverage: float) -> ByDataSet:
    """Select the calibrations with enough structures for intervals of a coverage."""
    needed = needed_for_coverage(coverage)
    return {
        name: {target: one for target, one in found.items() if one.least_structures >= needed}
        for name, found in by_data_set.items()
    }
