"""Measures of predictions and of their error bars, target by target, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hydragnn_flow.data import Manifest
from hydragnn_flow.ensemble.evaluation.bootstrap import Estimate, drawn_counts, estimate, ratio
from hydragnn_flow.ensemble.summary import CLASS_MEASURES, per_atom
from hydragnn_flow.ensemble.uncertainty.deviation import gaussian_crps, needed_for_coverage
from hydragnn_flow.ensemble.uncertainty.distribution import Distribution, Floats
from hydragnn_flow.files import write_json, write_text

MEASURES = ("mae", "rmse", "r2", "crps", "spearman")
"""Names of the measures that do not depend on prediction intervals."""
COVERAGES = (0.5, 0.8, 0.9, 0.95)
"""Nominal coverages of the intervals that are measured, in addition to the coverage of the run."""
# Intervals of a larger sample follow from a subsample with about as many values.
_MOST_VALUES = 50_000


def known_values(sample: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a sample whose true value, prediction and deviation are finite.

    The sample is a table as in :func:`measure`.
    """
    finite = np.isfinite(sample[["reference", "mean", "std"]].to_numpy()).all(axis=1)
    return sample.loc[np.asarray(finite)]


def measure(sample: pd.DataFrame, seed: int = 0) -> dict[str, Estimate]:
    """Compute error measures of a sample of predictions, each with a 95 % confidence interval.

    The intervals come from a bootstrap of structures.

    Parameters
    ----------
    sample
        True values and predictions of one target. ``structure`` is the index of the structure that
        a value belongs to. Of numbers there are ``reference``, ``mean``, ``std``, components one
        below the other, and ``lo_90`` and ``hi_90``, the ends of the intervals of 90 %, for each
        coverage; only :func:`known_values` count. Of classes there are the probabilities, a column
        for each class before the others, and ``label``, the place of the true class among them.
    seed
        Seed of the bootstrap.

    Returns
    -------
    dict
        Estimates by the names of `MEASURES`, and for each coverage of the intervals by two names
        such as ``coverage_90`` and ``width_90``: fraction of true values in the intervals of 90 %,
        and mean width of these intervals. ``crps`` is that of a Gaussian, ``spearman`` the rank
        correlation of absolute error and standard deviation. Of classes by the names of
        `CLASS_MEASURES`: fraction of labels that the most probable class hits; area under the ROC
        curve, of more than two classes the mean over each against the rest; and expected
        calibration error (Guo et al., arXiv:1706.04599), the mean difference between the largest
        probability and the fraction of hits in 15 intervals of it.
    """
    kind: type[_Counted] = _CountedClasses
    names: Sequence[str] = CLASS_MEASURES
    if "label" not in sample:
        sample, kind = known_values(sample), _Counted
        of_intervals = product(("coverage", "width"), _percents(sample))
        names = [*MEASURES, *map("_".join, of_intervals)]
    if not len(sample):
        return dict.fromkeys(names, Estimate(np.nan, np.nan, np.nan))
    # A number whose square is too large has no measures, and a warning would not help.
    with np.errstate(over="ignore", invalid="ignore"):
        counted = kind(sample)
        values = counted.measures(np.ones(counted.n_structures))
        part, factor = _part(sample, counted, seed)
        centre = part.measures(np.ones(part.n_structures))
        counts = drawn_counts(part.n_structures, part.n_values, seed)
        drawn = [part.measures(some) for some in counts]
        found = {}
        for name, value in values.items():
            deviations = np.concatenate([some[name] for some in drawn]) - centre[name]
            draws = value + factor * deviations
            found[name] = estimate(float(value), draws, counted.n_structures)
    for name, (measured, lo, _) in found.items():
        # Where intervals hold all values or none, all draws agree: the end is that of the rule of
        # three (Hanley and Lippman-Hand, J. Am. Med. Assoc. 249, 1743 (1983)).
        if name.startswith("coverage") and measured in (0.0, 1.0) and np.isfinite(lo):
            other = abs(measured - min(3 / counted.n_structures, 1.0))
            found[name] = Estimate(measured, *sorted((measured, other)))
    return found


def _percents(sample: pd.DataFrame) -> list[str]:
    """Return the coverages of the intervals that a sample has, such as ``90``, in percent."""
    return [name.removeprefix("lo_") for name in map(str, sample) if name.startswith("lo_")]


def _part(sample: pd.DataFrame, counted: _Counted, seed: int) -> tuple[_Counted, float]:
    """Return the part of a sample to draw from, and a factor for the deviations of the draws.

    A sample of too many values is reduced to a random part of its structures, at least a hundred.
    If these still have too many values, a random part of their values is kept. Deviations of draws
    from m out of n structures are √(n / m) times too large, which the factor corrects (Politis,
    Romano and Wolf, Subsampling, Springer (1999)).
    """
    n = counted.n_structures
    m = max(round(n * _MOST_VALUES / len(sample)), 100)
    rng = np.random.default_rng(seed)
    if m < n:
        chosen = rng.choice(np.unique(sample["structure"]), m, replace=False)
        sample = sample[np.isin(sample["structure"], chosen)]
    if len(sample) > 2 * _MOST_VALUES:
        sample = sample[rng.random(len(sample)) < _MOST_VALUES / len(sample)]
    elif m >= n:
        return counted, 1.0
    return type(counted)(sample), min(m / n, 1.0) ** 0.5


class _Counted:
    """Sample prepared to compute the measures of any bootstrap draw of its structures."""

    def __init__(self, sample: pd.DataFrame) -> None:
        numbers, self._structure = np.unique(sample["structure"], return_inverse=True)
        self.n_values, self.n_structures = len(sample), len(numbers)
        self._prepare(sample)

    def _prepare(self, sample: pd.DataFrame) -> None:
        error = (sample["mean"] - sample["reference"]).to_numpy()
        self._sums = {
            name: np.bincount(self._structure, values) for name, values in _terms(sample, error)
        }
        self._ranks = _mid_ranks(sample["std"].to_numpy()), _mid_ranks(np.abs(error))

    def measures(self, counts: Floats) -> dict[str, Floats]:
        """Compute every measure ``[...]`` by name, for draws of the structures.

        ``counts[..., n_structures]`` is how often each structure counts in each draw.
        """
        sums = {name: counts @ values for name, values in self._sums.items()}
        n = sums["count"]
        means = {name: ratio(total, n) for name, total in sums.items()}
        # R² is NaN where references are equal but for rounding of their squares.
        squares = sums["squared_reference"]
        spread = squares - ratio(sums["reference"] ** 2, n)
        spread = np.where(spread > 1e-12 * squares, spread, 0.0)
        weights = counts[..., self._structure]
        return {
            "mae": means["error"],
            "rmse": np.sqrt(means["squared_error"]),
            "r2": 1 - ratio(sums["squared_error"], spread),
            "crps": means["crps"],
            "spearman": _rank_correlation(weights, *(ranks(weights) for ranks in self._ranks)),
            **{name: of for name, of in means.items() if name.startswith(("coverage", "width"))},
        }


class _CountedClasses(_Counted):
    """Sample of probabilities of classes, prepared likewise."""

    def _prepare(self, sample: pd.DataFrame) -> None:
        label = sample["label"].to_numpy()
        found = sample.drop(columns=["label", "structure"]).to_numpy()
        largest = found.max(axis=1)
        self._hits = (found.argmax(axis=1) == label).astype(np.float64)
        interval = np.ceil(15 * largest).astype(np.int64)[:, None] == np.arange(1, 16)
        self._gaps = np.where(interval, (largest - self._hits)[:, None], 0.0)
        # Of two classes, both have the same area.
        one = range(1 if found.shape[1] == 2 else 0, found.shape[1])
        self._curves = [(label == k, _mid_ranks(found[:, k])) for k in one]

    def measures(self, counts: Floats) -> dict[str, Floats]:
        weights = counts[..., self._structure]
        total = weights.sum(axis=-1)
        areas = []
        for is_it, ranks in self._curves:
            n = weights[..., is_it].sum(axis=-1)
            pairs = (weights * ranks(weights))[..., is_it].sum(axis=-1) - n**2 / 2
            areas.append(ratio(pairs, n * (total - n)))
        known = np.isfinite(areas)
        return {
            "accuracy": ratio(weights @ self._hits, total),
            "auc": ratio(np.where(known, areas, 0).sum(axis=0), known.sum(axis=0)),
            "ece": ratio(np.abs(weights @ self._gaps).sum(axis=-1), total),
        }


def _terms(sample: pd.DataFrame, error: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield the name and values ``[n]`` of each term whose sum over values enters a measure."""
    yield "count", np.ones(len(error))
    yield "error", np.abs(error)
    yield "squared_error", error**2
    reference = sample["reference"].to_numpy()
    away = reference - reference.mean()
    yield "reference", away
    yield "squared_reference", away**2
    yield "crps", gaussian_crps(error, sample["std"].to_numpy())
    for percent in _percents(sample):
        lo, hi = (sample[f"{end}_{percent}"].to_numpy() for end in ("lo", "hi"))
        yield f"coverage_{percent}", ((lo <= reference) & (reference <= hi)).astype(np.float64)
        yield f"width_{percent}", hi - lo


def _mid_ranks(values: Floats) -> Callable[[Floats], Floats]:
    """Return a function that computes the rank of each value ``[..., n]`` from counts ``[..., n]``.

    A count is how often a value occurs. The rank of a value is the number of smaller values, plus
    half the number of equal values (itself included).
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))

    def ranks(counts: Floats) -> Floats:
        sums = np.add.reduceat(counts[..., order], starts, axis=-1)
        return np.asarray((sums.cumsum(axis=-1) - sums / 2)[..., place])

    return ranks


def _rank_correlation(counts: Floats, one: Floats, other: Floats) -> Floats:
    """Compute Spearman's correlation ``[...]`` of two arrays of ranks ``[..., n]``.

    ``counts[..., n]`` is how often each value counts. The result is NaN where the ranks in one of
    the arrays are all equal.
    """
    middle = counts.sum(axis=-1, keepdims=True) / 2  # the mean of any ranks
    one, other = one - middle, other - middle
    together, first, second = (
        (counts * a * b).sum(axis=-1) for a, b in ((one, other), (one, one), (other, other))
    )
    return ratio(together, np.sqrt(first * second))


@dataclass(frozen=True)
class TargetMeasures:
    """Measures of the errors and error bars of one target, with unit and numbers of values."""

    unit: str
    structures: int
    """Number of structures with a label and a prediction."""
    values: int
    """Number of values in these structures; forces have three per atom."""
    flagged: int
    """Number of these structures that are unlike the ensemble's training data."""
    measures: dict[str, Estimate]
    """Estimates by the names of :func:`measure`. If structures are flagged, also ``mae_flagged``
    (of classes ``accuracy_flagged``) for these, and ``mae_unflagged`` for the others."""

    def to_dict(self) -> dict[str, Any]:
        """Convert the measures to a dict for JSON; undefined numbers become None."""
        measures = {name: one.to_dict() for name, one in self.measures.items()}
        return {**vars(self), "measures": measures}


def measure_targets(
    predicted: Mapping[str, Distribution],
    references: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    flagged: NDArray[np.bool_],
    manifest: Manifest,
    coverage: float,
) -> dict[str, TargetMeasures]:
    """Compute error and uncertainty measures of all targets whose true values are known.

    Parameters
    ----------
    predicted
        Predictions ``[n, d]`` by target.
    references
        True values ``[n, d]`` by target.
    n_atoms
        Number of atoms of each structure, ``[n]``.
    flagged
        Mask of structures that are unlike the ensemble's training data, ``[n]``.
    manifest
        Manifest that gives level and unit of each target.
    coverage
        Fraction of true values in the predictions' intervals. Intervals of each of `COVERAGES` are
        measured too, if the calibration had enough structures for them.

    Returns
    -------
    dict
        Measures by name of the target. An extensive target has a second entry, ``NAME per atom``.
    """
    found = {}
    for name, values in predicted.items():
        if name not in references:
            continue
        target = manifest.targets[name]
        rows = target.rows_of(np.arange(len(n_atoms)), n_atoms)
        if target.classes:
            known = np.isfinite(values.mean + references[name]).all(axis=1)
            sample = pd.DataFrame(values.mean[known])
            sample["label"] = references[name][known].argmax(axis=1)
            sample["structure"] = rows[known]
            found[name] = _measures(sample, flagged, "", "accuracy")
            continue
        units: list[tuple[str, str, float | Floats]] = [(name, target.unit, 1.0)]
        if manifest.is_extensive(name):
            unit, factor = per_atom(target.unit)
            units.append((f"{name} per atom", unit, factor / n_atoms[:, None]))
        for label, unit, scale in units:
            columns = {"reference": references[name], "mean": values.mean, "std": values.std}
            for level in sorted({*COVERAGES, coverage}):
                if values.least_structures >= needed_for_coverage(level):
                    lo, hi = values.interval(level)
                    columns |= {f"lo_{100 * level:g}": lo, f"hi_{100 * level:g}": hi}
            sample = pd.DataFrame({of: (column * scale).ravel() for of, column in columns.items()})
            sample["structure"] = np.repeat(rows, values.mean.shape[1])
            found[label] = _measures(known_values(sample), flagged, unit)
    return found


def _measures(
    sample: pd.DataFrame,
    flagged: NDArray[np.bool_],
    unit: str,
    first: str = "mae",
) -> TargetMeasures:
    found = measure(sample)
    structures, is_flagged = np.unique(sample["structure"]), flagged[sample["structure"]]
    if is_flagged.any():
        found[f"{first}_flagged"] = measure(sample[is_flagged])[first]
        found[f"{first}_unflagged"] = measure(sample[~is_flagged])[first]
    n_flagged = int(flagged[structures].sum())
    return TargetMeasures(unit, len(structures), len(sample), n_flagged, found)


def save_measures(path: Path, measures: Mapping[str, TargetMeasures]) -> None:
    """Write the error measures of all targets to a JSON or CSV file, whole or not at all.

    Parameters
    ----------
    path
        File to write. If it ends in ``.json``, it has :meth:`TargetMeasures.to_dict` by target;
        otherwise it is CSV, with a row per measure of each target.
    measures
        Measures to write, by target.
    """
    if path.suffix == ".json":
        write_json(path, {name: target.to_dict() for name, target in measures.items()})
        return
    rows = [
        (name, target.unit, target.structures, target.values, measure, *estimate)
        for name, target in measures.items()
        for measure, estimate in target.measures.items()
    ]
    columns = ["target", "unit", "structures", "values", "measure", "value", "lo", "hi"]
    write_text(path, pd.DataFrame(rows, columns=columns).to_csv(index=False))
