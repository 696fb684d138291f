"""Mean and calibrated error bars from the members' predictions, in plain numpy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.uncertainty.deviation import Deviation, Scores, needed_for_coverage
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.data import Target

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Properties of the n rows of a target's predictions, on which their calibration depends.

    A row is a structure for a graph target, and an atom for a node target.
    """

    atoms: Floats | None = None
    """Number of atoms of each structure ``[n, 1]``, for graph targets."""
    numbers: NDArray[np.int64] | None = None
    """Atomic number of each row ``[n]``, for node targets whose nodes are atoms."""
    data_sets: NDArray[np.object_] | None = None
    """Name of the data set of each row ``[n]``, if there are several data sets."""
    extrapolation: Floats | None = None
    """Extrapolation of each row's structure ``[n, 1]`` by :func:`.extrapolation_of`; None if it is
    unknown."""


class StructureFacts(NamedTuple):
    """Properties of n structures on which the calibration of their predictions depends."""

    n_atoms: NDArray[np.int64]
    """Number of atoms of each structure, ``[n]``."""
    numbers: NDArray[np.int64] | None = None
    """Atomic number of each atom of all structures in order; None if nodes are not atoms."""
    data_sets: NDArray[np.object_] | None = None
    """Name of the data set of each structure ``[n]``; None if there is only one."""
    extrapolation: Floats | None = None
    """Extrapolation of each structure ``[n]``, see :func:`.extrapolation_of`; None if it is
    unknown."""

    def rows_of(self, target: Target) -> Rows:
        """Return the properties of each row of a target, which is a structure or an atom."""
        n_atoms, of_graphs = self.n_atoms, target.level == "graph"
        beyond, data_sets = self.extrapolation, self.data_sets
        return Rows(
            n_atoms.astype(float)[:, None] if of_graphs else None,
            None if of_graphs else self.numbers,
            None if data_sets is None else target.rows_of(data_sets, n_atoms),
            None if beyond is None else target.rows_of(beyond, n_atoms)[:, None],
        )


class Sizes(NamedTuple):
    """Sizes of predicted values, to which the error that all members share is proportional.

    A size is the noise that the members predict. If they predict none, it is the number of atoms
    for a target that is a sum over atoms, otherwise 1.
    """

    near: Floats
    """Size of each row without extrapolation, ``[n, d]``: the noise that members predict. If
    they predict none it is ``unit``."""
    unit: Floats
    """Number of atoms of each row if the target is a sum over atoms, otherwise 1, ``[n, d]``."""
    extrapolation: Floats
    """Extrapolation of each row's structure, ``[n, d]``."""

    @classmethod
    def of(cls, per_atom: bool, rows: Rows, noise: Floats | None, shape: tuple[int, ...]) -> Sizes:
        """Compute the sizes of predicted values, broadcast to ``shape``, which is ``(n, d)``.

        ``noise`` is the predicted noise ``[n, d]``, or None. ``per_atom`` is true for a target that
        is a sum over atoms.
        """
        unit = rows.atoms if per_atom and rows.atoms is not None else np.ones((1, 1))
        beyond = np.zeros((1, 1)) if rows.extrapolation is None else rows.extrapolation
        near = unit if noise is None else noise
        return cls(*(np.broadcast_to(values, shape) for values in (near, unit, beyond)))

    def at(self, place: Any) -> Sizes:
        """Return the sizes of only the rows and columns that the NumPy index ``place`` selects."""
        return Sizes(*(values[place] for values in self))

    def total(self, noise: float, usual: float) -> Floats:
        """Return the sizes, enlarged where structures are far from the training data, ``[n, d]``.

        The result is ``√(near² + (noise * unit)² max((extrapolation / usual)² - 1, 0))``, since the
        noise that members predict is a guess where structures extrapolate. ``noise`` is the usual
        noise of a unit, and ``usual`` the median extrapolation in the calibration data. If
        ``usual`` is zero, the result is ``near``.
        """
        if not usual:
            return self.near
        beyond = np.maximum(np.square(self.extrapolation / usual) - 1, 0)
        return np.asarray(np.hypot(self.near, noise * self.unit * np.sqrt(beyond)))


@dataclass(frozen=True)
class Calibration:
    """Calibration that converts one target's spread between members to error bars and intervals.

    A vector's three components are calibrated together, as rotating a structure mixes them; other
    components separately. An interval is the mean ± a quantile of the scores times the standard
    deviation.
    """

    deviations: tuple[Deviation, ...]
    """Conversion to a standard deviation for each component, or one for all three of a vector."""
    scores: tuple[tuple[Scores, ...], ...]
    """Scores by component as in ``deviations``, then by group of rows: groups are by norm for
    vectors, and by element for other targets of atoms."""
    norms: tuple[float, ...]
    """Norms of the mean prediction that divide vectors into groups, ascending; n norms divide them
    into n + 1 groups."""
    per_atom: bool
    """True if the target is a sum over atoms. Unless ``by_noise`` is true, the error that all
    members share is then proportional to the number of atoms."""
    structures: int
    """Number of labelled structures that the calibration was fitted on."""
    elements: tuple[int, ...] = ()
    """Atomic numbers that have a group each, ascending; all other elements share a last group."""
    by_noise: bool = False
    """True if the error that all members share grows with the noise that the members predict.
    Predictions then need that noise; if false, the noise is ignored."""
    temperature: float | None = None
    """Exponent's inverse by which the mean probabilities of classes are calibrated; None for
    other targets. There are then no deviations and scores."""
    by_data_set: dict[str, Calibration] = field(default_factory=dict)
    """Calibrations of single data sets, by name; each is used for the rows of its data set."""

    def least_structures(self, data_sets: NDArray[np.object_] | None = None) -> int:
        """Return the smallest number of calibration structures that any interval is based on.

        It is `sys.maxsize` for classes, which have no intervals.
        Only intervals of rows whose data sets are ``data_sets``, ``[n]``, count. If that is None,
        only those of the calibration on all structures together count.
        """
        n = 1 if data_sets is None else len(data_sets)
        counts = (
            scores.structures
            for _, one in self._of_rows(n, data_sets)
            for groups in one.scores
            for scores in groups
        )
        return min(counts, default=sys.maxsize)

    def with_enough(self, coverage: float) -> Calibration:
        """Return a copy that keeps calibrations of data sets with enough structures for a coverage.

        Calibrations of data sets with too few structures for intervals of ``coverage`` are dropped.
        """
        needed = needed_for_coverage(coverage)
        kept = {k: one for k, one in self.by_data_set.items() if one.least_structures() >= needed}
        return replace(self, by_data_set=kept)

    def quantiles(self, mean: Floats, coverage: float, rows: Rows) -> Floats:
        """Return the half width of each interval in units of the standard deviation, ``[n, d]``.

        It is infinite where the calibration had too few structures.

        Parameters
        ----------
        mean
            Mean predictions of the members, ``[n, d]``.
        coverage
            Fraction of true values in the intervals.
        rows
            Element and data set of each row, which select the quantile.
        """
        found = np.empty(mean.shape)
        for there, one in self._of_rows(len(mean), rows.data_sets):
            table = np.array([[of.quantile(coverage) for of in groups] for groups in one.scores])
            numbers = None if rows.numbers is None else rows.numbers[there]
            found[there] = table.T[group_of(mean[there], numbers, one.norms, one.elements)]
        return found

    def parts(self, spread: Floats, sizes: Sizes, rows: Rows) -> tuple[Floats, Floats]:
        """Return deviations due to the members' disagreement and to shared error, ``[n, d]`` each.

        They are standard deviations; the shared error is common to all members. The squares of both
        add up to the variance.

        Parameters
        ----------
        spread
            Standard deviation between members, ``[n, d]``.
        sizes
            Size of each row, to which the shared error is proportional.
        rows
            Data set of each row, which selects the calibration.
        """
        disagreement, shared = np.empty(spread.shape), np.empty(spread.shape)
        every = range(spread.shape[1])
        for there, one in self._of_rows(len(spread), rows.data_sets):
            alone = [[column] for column in every]
            columns_of = [[*every]] if len(one.deviations) == 1 else alone
            for columns, deviation in zip(columns_of, one.deviations, strict=True):
                place = np.ix_(there, columns)
                size = sizes.at(place).total(deviation.noise, deviation.extrapolation)
                disagreement[place], shared[place] = deviation.parts(spread[place], size)
        return disagreement, shared

    def _of_rows(
        self, n: int, data_sets: NDArray[np.object_] | None
    ) -> Iterator[tuple[NDArray[np.bool_], Calibration]]:
        """Yield pairs of a mask ``[n]`` and the calibration of the rows for which it is True.

        Each row is in exactly one mask.
        """
        others = np.ones(n, dtype=bool)
        if data_sets is not None:
            for name, one in self.by_data_set.items():
                if (there := data_sets == name).any():
                    yield there, one
                    others &= ~there
        if others.any() or not n:
            yield others, self

    def to_dict(self) -> dict[str, Any]:
        """Convert the calibration to a dict for JSON, without those of single data sets."""
        values = asdict(self)
        del values["by_data_set"]
        return values


@dataclass(frozen=True)
class Distribution:
    """Combined prediction of one target: mean, standard deviations, interval, ``[n, d]`` each."""

    mean: Floats
    spread: Floats
    """Uncalibrated standard deviation between the members."""
    epistemic_std: Floats
    """Standard deviation due to the members' disagreement, calibrated."""
    std: Floats
    """Total standard deviation: root of the sum of squares of ``epistemic_std`` and of the error
    that all members share."""
    lo: Floats
    hi: Floats
    """Upper end of the calibrated interval; ``lo`` is the lower one."""
    calibration: Calibration
    rows: Rows
    aleatoric_std: Floats | None = None
    """Calibrated standard deviation of the noise that the heads predict; None if they predict none
    or the calibration does not use it."""

    @property
    def least_structures(self) -> int:
        """Smallest number of calibration structures that any of the intervals is based on."""
        return self.calibration.least_structures(self.rows.data_sets)

    def interval(self, coverage: float) -> tuple[Floats, Floats]:
        """Return lower and upper ends of intervals for a fraction ``coverage``, ``[n, d]`` each."""
        half = self.calibration.quantiles(self.mean, coverage, self.rows) * self.std
        return self.mean - half, self.mean + half


def combine(members: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Compute the members' weighted mean, and the standard deviation between them.

    Parameters
    ----------
    members
        Predictions of the members, ``[n_members, ...]``.
    weights
        Weights ``[n_members]`` that add up to one. Members with weight zero are left out, as their
        predictions may not be finite.

    Returns
    -------
    mean, spread
        Mean, and standard deviation between members, both ``[...]``. Weights are inversely
        proportional to the sixth power of members' errors; squared differences from the mean are
        weighted inversely to the second, so that a bad member's, which are usually large, count as
        much as others'. Their weighted mean is multiplied by n / (n - 1) for n members. The
        standard deviation is zero for one member.
    """
    members, weights = members[weights > 0], weights[weights > 0]
    shaped = weights.reshape(-1, *[1] * (members.ndim - 1))
    mean = (shaped * members).sum(axis=0)
    precision = np.cbrt(shaped)
    variance = (precision * np.square(members - mean)).sum(axis=0) / precision.sum()
    n = len(weights)
    return mean, np.sqrt(variance * (n / max(n - 1, 1)))


def tempered(probabilities: Floats, temperature: float) -> Floats:
    """Return logarithms of calibrated probabilities ``[n, n_classes]``.

    Each probability is raised to the power of 1 / ``temperature``, and divided by the sum over
    classes (Guo et al., arXiv:1706.04599). None is below the resolution of networks in float32.
    """
    from scipy.special import log_softmax  # as `status` does not need SciPy

    logs = np.log(np.maximum(probabilities, np.finfo(np.float32).eps))
    return np.asarray(log_softmax(logs / temperature, axis=-1))


def combine_noise(noise: Floats, weights: Floats) -> Floats:
    """Return the standard deviation ``[...]`` of the noise that all members predict together.

    ``noise`` has one standard deviation for each member, ``[n_members, ...]``. The variance of a
    mixture is the mean of its components' variances plus the variance of their means
    (Lakshminarayanan et al., arXiv:1612.01474); this function returns the root of the first term.
    """
    noise, weights = noise[weights > 0], weights[weights > 0]
    shaped = weights.reshape(-1, *[1] * (noise.ndim - 1))
    return np.asarray(np.sqrt((shaped * np.square(noise)).sum(axis=0)))


def distribution(
    members: Floats,
    weights: Floats,
    calibration: Calibration,
    rows: Rows = Rows(),  # noqa: B008  # immutable
    noise: Floats | None = None,
    *,
    coverage: float,
) -> Distribution:
    """Combine members' predictions of one target to mean, standard deviations and interval.

    Parameters
    ----------
    members
        Predictions of the members, ``[n_members, n, d]``.
    weights
        Weights of the members, ``[n_members]``.
    calibration
        Calibration of the target, which converts spread to error bars.
    rows
        Properties of the n rows (structures or atoms) that the calibration depends on.
    noise
        Standard deviation of the noise that each member predicts, ``[n_members, n, d]``; None if a
        member predicts none. It is ignored if the calibration was made without noise.
    coverage
        Fraction of true values in the interval.

    Raises
    ------
    InputError
        If the calibration was made with noise and ``noise`` is None.
    """
    if not calibration.by_noise:
        noise = None
    elif noise is None:
        raise InputError(
            "the calibration was made with the noise that the members predict, and now one "
            "predicts none; give members that all do, or calibrate them anew"
        )
    mean, spread = combine(members, weights)
    if calibration.temperature is not None:
        mean, unknown = np.exp(tempered(mean, calibration.temperature)), np.full(mean.shape, np.nan)
        std = np.sqrt(mean * (1 - mean))
        return Distribution(mean, spread, spread, std, unknown, unknown, calibration, rows)
    together = None if noise is None else combine_noise(noise, weights)
    sizes = Sizes.of(calibration.per_atom, rows, together, mean.shape)
    epistemic, shared = calibration.parts(spread, sizes, rows)
    std = np.asarray(np.hypot(epistemic, shared))
    half = calibration.quantiles(mean, coverage, rows) * std
    aleatoric = None
    if noise is not None:
        near = sizes._replace(extrapolation=np.zeros_like(mean))
        aleatoric = calibration.parts(spread, near, rows)[1]
    return Distribution(
        mean, spread, epistemic, std, mean - half, mean + half, calibration, rows, aleatoric
    )


def group_of(
    mean: Floats,
    numbers: NDArray[np.int64] | None,
    norms: tuple[float, ...],
    elements: tuple[int, ...],
) -> NDArray[np.int64]:
    """Return the index of each row's calibration group, ``[n]``.

    A group is a set of rows with an interval quantile of its own. Groups are by the norm of
    ``mean`` if ``norms`` are given, else by atomic number if ``elements`` are given; otherwise one
    group holds all rows. ``norms`` and ``elements`` are the fields of :class:`Calibration`, and
    ``numbers`` is the atomic number of each row.
    """
    if norms:
        return np.asarray(np.searchsorted(norms, np.linalg.norm(mean, axis=1)))
    if not elements or numbers is None:
        return np.full(len(mean), len(elements))
    place = np.minimum(np.searchsorted(elements, numbers), len(elements) - 1)
    return np.asarray(np.where(np.asarray(elements)[place] == numbers, place, len(elements)))


def measured_coverage(reference: Floats, predicted: Distribution) -> float:
    """Return the fraction of true values ``[n, d]`` that lie inside the predicted intervals.

    Values that are not known or have no finite predicted mean do not count.
    """
    known = np.isfinite(predicted.mean + reference)
    inside = (reference >= predicted.lo) & (reference <= predicted.hi)
    return float(np.mean(inside[known]))
