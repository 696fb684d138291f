"""Measures of a sample of predictions, with intervals from a bootstrap over structures.

The values of one structure are not independent, so structures are drawn, each with all its values.
Measures are computed with a count for each structure; a value that counts twice is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from hydragnn_flow.ensemble import measures
from hydragnn_flow.ensemble.measures import COVERAGES, Floats, ratio

CONFIDENCE = 0.95
"""Confidence level of the intervals of measures."""
LEAST_STRUCTURES = 5
"""Minimum number of structures for an interval; with three it holds the truth in 2 of 3 cases."""
MEASURES = (
    *("mae", "rmse", "r2", "nll", "crps", "ence", "miscalibration_area", "sharpness"),
    *("spearman", "retention"),
)
"""Names of the measures that do not depend on prediction intervals."""
_GROWN_BY_NOISE = ("ence", "miscalibration_area")
_DRAWS = 1000
# Intervals of a larger sample follow from a subsample with about as many values.
_MOST_VALUES = 50_000
_LEAST_STRUCTURES = 100
# Number of drawn values computed together, few enough for a cache.
_AT_ONCE = 1 << 16
_MOST_BINS = 10
_LEAST_IN_BIN = 10


class Estimate(NamedTuple):
    """Measure of a sample and its confidence interval; NaN where undefined.

    The interval is undefined for fewer than `LEAST_STRUCTURES`.
    """

    value: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Sample:
    """References and predictions of one target with components concatenated; arrays are ``[n]``."""

    structure: NDArray[np.int64]
    """Number of the structure that each value belongs to."""
    reference: Floats
    mean: Floats
    std: Floats
    intervals: Mapping[float, tuple[Floats, Floats]] = field(default_factory=dict)
    """Lower and upper ends of calibrated intervals, by their nominal coverage."""

    def __len__(self) -> int:
        return len(self.structure)

    def __getitem__(self, which: NDArray[np.bool_]) -> Sample:
        return Sample(
            self.structure[which],
            self.reference[which],
            self.mean[which],
            self.std[which],
            {coverage: (lo[which], hi[which]) for coverage, (lo, hi) in self.intervals.items()},
        )

    def known(self) -> Sample:
        """Return the sample without values whose reference, mean or deviation is not finite."""
        finite = np.isfinite(self.reference) & np.isfinite(self.mean) & np.isfinite(self.std)
        return self if finite.all() else self[finite]


def measure(sample: Sample, seed: int = 0) -> dict[str, Estimate]:
    """Compute every measure of a sample, with its interval.

    Parameters
    ----------
    sample
        Sample of predictions; only its known values count.
    seed
        Seed of the bootstrap.

    Returns
    -------
    dict
        Estimates by the names of `MEASURES`, then ``coverage_90`` and ``width_90`` (fraction of
        true values in intervals of 90 %, and their mean width), and so on. ``sharpness`` is the
        root of the mean variance (after Gneiting, Balabdaoui and Raftery, J. R. Stat. Soc. B 69,
        243 (2007)), ``spearman`` the correlation of absolute error and standard deviation.
    """
    sample = sample.known()
    if not len(sample):
        names = [*MEASURES, *(name for c in sample.intervals for name in interval_names(c))]
        return dict.fromkeys(names, Estimate(np.nan, np.nan, np.nan))
    # A number whose square is too large has no measures, and a warning would not help.
    with np.errstate(over="ignore", invalid="ignore"):
        counted = _Counted(sample)
        values = counted.measures(np.ones(counted.n_structures))
        deviations = _deviations(*_part(sample, counted, seed), seed)
    return {
        name: _estimate(name, float(value), deviations[name], counted.n_structures)
        for name, value in values.items()
    }


def interval_names(coverage: float) -> tuple[str, str]:
    """Return the names of the measures of intervals with a nominal ``coverage``."""
    percent = f"{coverage * 100:g}"
    return f"coverage_{percent}", f"width_{percent}"


def _part(sample: Sample, counted: _Counted, seed: int) -> tuple[_Counted, float]:
    """Return a subsample to draw from, and the factor for deviations of its draws.

    Deviations fall with the root of the number of structures: those of m out of n structures are
    √(n / m) times too large (Politis, Romano and Wolf, Subsampling, Springer (1999)). Where few
    structures have most values, some values of each represent all.
    """
    n = counted.n_structures
    m = max(round(n * _MOST_VALUES / len(sample)), _LEAST_STRUCTURES)
    rng = np.random.default_rng(seed)
    if m < n:
        chosen = rng.choice(np.unique(sample.structure), m, replace=False)
        sample = sample[np.isin(sample.structure, chosen)]
    if len(sample) > 2 * _MOST_VALUES:
        sample = sample[rng.random(len(sample)) < _MOST_VALUES / len(sample)]
    elif m >= n:
        return counted, 1.0
    return _Counted(sample), min(m / n, 1.0) ** 0.5


def _deviations(counted: _Counted, factor: float, seed: int) -> dict[str, Floats]:
    """Compute measures of drawn structures less those of all, times a factor, ``[_DRAWS]``."""
    n, rng = counted.n_structures, np.random.default_rng(seed)
    drawn: dict[str, list[Floats]] = {}
    at_once = max(_AT_ONCE // counted.n_values, 1)
    for start in range(0, _DRAWS, at_once):
        rows = np.arange(min(at_once, _DRAWS - start))[:, None]
        places = rng.integers(n, size=(len(rows), n)) + n * rows
        counts = np.bincount(places.ravel(), minlength=n * len(rows)).reshape(-1, n)
        for name, found in counted.measures(counts.astype(np.float64)).items():
            drawn.setdefault(name, []).append(found)
    centre = counted.measures(np.ones(n))
    return {name: factor * (np.concatenate(drawn[name]) - centre[name]) for name in drawn}


def interval(draws: Floats, n_structures: int) -> tuple[float, float]:
    """Return the expanded percentile interval of bootstrap draws; NaN where undefined.

    Percentiles of draws are too narrow for few structures, like a normal distribution instead of
    Student's, and a standard deviation divided by n instead of n - 1. Taking percentiles farther
    out makes up for both (Hesterberg, Am. Stat. 69, 371 (2015)).

    Parameters
    ----------
    draws
        Measure of each draw of structures, ``[n_draws]``; values not finite are ignored.
    n_structures
        Number of structures that were drawn from.
    """
    draws = draws[np.isfinite(draws)]
    if n_structures < LEAST_STRUCTURES or not len(draws):
        return np.nan, np.nan
    t = stats.t.ppf((1 + CONFIDENCE) / 2, n_structures - 1)
    level = float(special.ndtr(-t * (n_structures / (n_structures - 1)) ** 0.5))
    lo, hi = np.quantile(draws, [level, 1 - level])
    return float(lo), float(hi)


def _estimate(name: str, value: float, deviations: Floats, n_structures: int) -> Estimate:
    """Return a measure with its interval.

    Draws have more noise than the sample. For measures that noise increases, the percentiles are
    too high, so the lower end is at least as far from the value as the upper one. Where intervals
    hold all values or none, all draws agree, and the end is that of the rule of three (Hanley and
    Lippman-Hand, J. Am. Med. Assoc. 249, 1743 (1983)).
    """
    if not np.isfinite(value):
        return Estimate(np.nan, np.nan, np.nan)
    lo, hi = interval(value + deviations, n_structures)
    if np.isfinite(lo) and name in _GROWN_BY_NOISE:
        lo = max(min(lo, 2 * value - hi), 0.0)
    elif np.isfinite(lo) and name.startswith("coverage") and value in (0.0, 1.0):
        lo, hi = sorted((value, abs(value - min(3 / n_structures, 1.0))))
    return Estimate(value, lo, hi)


class _Groups:
    """Groups of equal values, the smallest first."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._order = np.argsort(values)
        ordered = values[self._order]
        new = np.append(True, ordered[1:] != ordered[:-1])
        self._starts = np.flatnonzero(new)
        self.values = ordered[new]
        self.of_value = np.empty(len(values), np.int64)
        self.of_value[self._order] = new.cumsum() - 1

    def sums(self, weights: Floats) -> Floats:
        """Return the sum over each group, ``[..., n_groups]``, of weights ``[..., n]``."""
        ordered = weights[..., self._order]
        if len(self._starts) == len(self._order):
            return ordered
        return np.asarray(np.add.reduceat(ordered, self._starts, axis=-1))


def _scores(sample: Sample, error: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield names and values ``[n]`` of the additive terms of measures."""
    yield "count", np.ones(len(error))
    yield "error", np.abs(error)
    yield "squared_error", error**2
    yield "variance", sample.std**2
    reference = sample.reference - sample.reference.mean()
    yield "reference", reference
    yield "squared_reference", reference**2
    yield "nll", measures.gaussian_nll(error, sample.std)
    yield "crps", measures.gaussian_crps(error, sample.std)
    for coverage, (lo, hi) in sample.intervals.items():
        measured, width = interval_names(coverage)
        yield measured, ((lo <= sample.reference) & (sample.reference <= hi)).astype(np.float64)
        yield width, hi - lo


class _Counted:
    """Sample prepared for measures with any counts of its structures."""

    def __init__(self, sample: Sample) -> None:
        numbers, self._structure = np.unique(sample.structure, return_inverse=True)
        self.n_values, self.n_structures = len(sample), len(numbers)
        error, std = sample.mean - sample.reference, sample.std
        self._away = np.abs(error)
        sums = {name: np.bincount(self._structure, s) for name, s in _scores(sample, error)}
        self._of_intervals = [name for c in sample.intervals for name in interval_names(c)]
        self._names, self._sums = list(sums), np.stack(list(sums.values()), axis=1)
        self._by_std, self._by_error = _Groups(std), _Groups(self._away)
        self._by_coverage = _Groups(
            np.searchsorted(COVERAGES, measures.coverage_needed(error, std))
        )
        # Bins of the whole sample serve all draws, and so may be summed over structures once.
        self._bins = min(max(len(sample) // _LEAST_IN_BIN, 1), _MOST_BINS)
        edges = np.quantile(std, np.arange(1, self._bins) / self._bins)
        place = self._structure * self._bins + np.searchsorted(edges, std)
        size = self.n_structures * self._bins
        self._of_bins = np.hstack(
            [
                np.bincount(place, values, size).reshape(-1, self._bins)
                for values in (None, std**2, error**2)
            ]
        )

    def measures(self, counts: Floats) -> dict[str, Floats]:
        """Compute every measure, ``[...]``, for structure counts ``[..., n_structures]``."""
        totals = counts @ self._sums
        sums = {name: totals[..., place] for place, name in enumerate(self._names)}
        n = sums["count"]
        means = {name: ratio(total, n) for name, total in sums.items()}
        weights = counts[..., self._structure]
        by_std = self._by_std.sums(weights)
        by_error = self._by_error.sums(weights)
        found = (
            means["error"],
            np.sqrt(means["squared_error"]),
            measures.determination(
                n, sums["reference"], sums["squared_reference"], sums["squared_error"]
            ),
            means["nll"],
            means["crps"],
            self._ence(counts),
            measures.miscalibration_area(self._held(weights)),
            np.sqrt(means["variance"]),
            measures.rank_correlation(
                weights,
                measures.mid_ranks(by_std)[..., self._by_std.of_value],
                measures.mid_ranks(by_error)[..., self._by_error.of_value],
            ),
            measures.error_retention(by_std, self._by_std.sums(weights * self._away)),
        )
        of_intervals = {name: means[name] for name in self._of_intervals}
        return {**dict(zip(MEASURES, found, strict=True)), **of_intervals}

    def _ence(self, counts: Floats) -> Floats:
        n, variance, squared = np.moveaxis(
            (counts @ self._of_bins).reshape(*counts.shape[:-1], 3, -1), -2, 0
        )
        return measures.normalised_calibration_error(ratio(variance, n), ratio(squared, n))

    def _held(self, weights: Floats) -> Floats:
        """Return observed coverages of central Gaussian intervals, ``[..., n_coverages]``."""
        reached = np.zeros((*weights.shape[:-1], len(COVERAGES)))
        reached[..., self._by_coverage.values] = self._by_coverage.sums(weights)
        held = reached.cumsum(axis=-1)
        return ratio(held, held[..., -1:])
