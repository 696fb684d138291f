"""Mean and calibrated error bars from the members' predictions. Plain numpy."""

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
    """How one target's spread between members becomes a standard deviation and intervals.

    A vector's three components are calibrated together, as they turn into each other with the
    frame; other components each alone. An interval is the mean ± a quantile of the scores times the
    standard deviation.
    """

    deviations: tuple[Deviation, ...]
    """One per component, or one for all of a vector."""
    scores: tuple[tuple[Scores, ...], ...]
    """By component as ``deviations``, then by group: a vector's by its norm, those of other
    targets of atoms by element."""
    norms: tuple[float, ...]
    """Norms of the mean that divide vectors into groups, rising; one less than groups."""
    per_atom: bool
    """The target is a sum over atoms, like its errors."""
    structures: int
    """Structures with a label that it was made from."""
    elements: tuple[int, ...] = ()
    """Atomic numbers that have a group each, rising; the last group is for all others."""
    by_noise: bool = False
    """Shared errors were taken to grow with the noise that the members predict. Then predictions
    need that noise, and otherwise it does not count."""

    @property
    def least_structures(self) -> int:
        """Least number of structures that an interval relies on."""
        return min(scores.structures for groups in self.scores for scores in groups)

    def quantiles(
        self, mean: Floats, coverage: float, numbers: NDArray[np.int64] | None = None
    ) -> Floats:
        """Half widths of intervals in standard deviations, ``[n, d]``.

        They are infinite where the calibration had too few structures.

        Parameters
        ----------
        mean
            Predictions ``[n, d]``.
        coverage
            Fraction of true values that the intervals are to hold.
        numbers
            Atomic number of each row ``[n]``, if it is an atom's.
        """
        table = np.array([[one.quantile(coverage) for one in groups] for groups in self.scores])
        group = group_of(mean, numbers, self.norms, self.elements)
        return np.asarray(table.T[group] * np.ones(mean.shape))

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """The members' disagreement and what they share; their squares add up to the variance.

        Parameters
        ----------
        spread
            ``[n, d]``.
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
        """As plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Distribution:
    """A target's predictions; every array has the shape of the mean."""

    mean: Floats
    spread: Floats
    """Standard deviation between the members as they are."""
    epistemic_std: Floats
    """Calibrated spread between the members."""
    std: Floats
    """Total standard deviation; its square is the sum of those of the terms that are predicted."""
    lo: Floats
    hi: Floats
    """Ends of the calibrated interval."""
    calibration: Calibration | MixedCalibration
    aleatoric_std: Floats | None = None
    """Calibrated noise that the heads predict, where they do."""
    numbers: NDArray[np.int64] | None = None
    """Atomic number of each row, if the calibration asks for them."""

    def interval(self, coverage: float) -> tuple[Floats, Floats]:
        """Ends of the interval that is to hold another fraction of true values."""
        half = self.calibration.quantiles(self.mean, coverage, self.numbers) * self.std
        return self.mean - half, self.mean + half


def combine(members: Floats, weights: Floats, median: bool = False) -> tuple[Floats, Floats]:
    """Weighted mean or median, and standard deviation between members.

    Parameters
    ----------
    members
        Predictions ``[n_members, ...]``.
    weights
        ``[n_members]``, adding up to one. Members without any are left out: their predictions may
        be no numbers.
    median
        Whether the median of the members takes the place of their mean; the spread stays.

    Returns
    -------
    mean, spread
        The spread's variance is divided by 1 - Σ weights², for the mean being estimated from the
        same members; with equal weights that is the usual n - 1. It is zero where one member has
        all the weight.
    """
    members, weights = members[weights > 0], weights[weights > 0]
    shaped = weights.reshape(-1, *[1] * (members.ndim - 1))
    mean = (shaped * members).sum(axis=0)
    free = 1 - np.square(weights).sum() if len(weights) > 1 else 1.0
    variance = (shaped * np.square(members - mean)).sum(axis=0) / free
    return np.median(members, axis=0) if median else mean, np.sqrt(variance)


def combine_noise(noise: Floats, weights: Floats) -> Floats:
    """Standard deviation of the noise that each member predicts, ``[n_members, ...]``.

    The variance of a mixture is the mean of its components' variances and the variance of their
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
        Standard deviations of the noise ``[n_members, n, d]``, where the members predict them. It
        counts where the calibration was made with it: all its members predicted one.
    median
        As of :func:`combine`.
    coverage
        Fraction of true values that the interval is to hold.
    numbers
        Atomic numbers ``[n]`` of targets of atoms.

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
    """Group of each row, ``[n]``: by norm, by element, or one for all."""
    if norms:
        return np.asarray(np.searchsorted(norms, np.linalg.norm(mean, axis=1)))
    if not elements or numbers is None:
        return np.full(len(mean), len(elements))
    place = np.minimum(np.searchsorted(elements, numbers), len(elements) - 1)
    return np.asarray(np.where(np.asarray(elements)[place] == numbers, place, len(elements)))


def size_of(per_atom: bool, atoms: Floats | None, noise: Floats | None) -> Floats:
    """Quantity with which the errors that all members share grow."""
    if noise is not None:
        return noise
    return atoms if per_atom and atoms is not None else np.ones((1, 1))


def measured_coverage(reference: Floats, predicted: Distribution) -> float:
    """Fraction of true values inside the interval, if there is a prediction."""
    known = np.isfinite(predicted.mean)
    inside = (reference >= predicted.lo) & (reference <= predicted.hi)
    return float(np.mean(inside[known]))
