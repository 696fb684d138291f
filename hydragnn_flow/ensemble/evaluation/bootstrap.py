"""Bootstrap over structures: confidence intervals of measures, and of changes between models.

The values of one structure are not independent, so structures are drawn, each with all its values.
Measures are computed with a count for each structure; a value that counts twice is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from hydragnn_flow.data import Manifest
from hydragnn_flow.ensemble.summary import per_atom
from hydragnn_flow.ensemble.uncertainty.distribution import Distribution, measured_coverage

Floats = NDArray[np.float64]

_DRAWS = 1000
# Number of drawn values computed together, few enough for a cache.
_AT_ONCE = 1 << 16


class Estimate(NamedTuple):
    """Measure of predictions, such as their MAE, and its confidence interval; NaN if undefined.

    The interval is undefined for fewer than five structures: with three structures, it would
    contain the truth in only two of three cases.
    """

    value: float
    lo: float
    hi: float

    def to_dict(self) -> dict[str, float | None]:
        """Convert value and interval to a dict for JSON; undefined numbers become None."""
        return {end: x if np.isfinite(x) else None for end, x in self._asdict().items()}


def drawn_counts(n_structures: int, n_values: int, seed: int = 0) -> Iterator[Floats]:
    """Yield arrays ``[n_draws, n_structures]``: how often bootstrap draws take each structure.

    There are 1,000 draws in total.

    Parameters
    ----------
    n_structures
        Number of structures to draw from; a draw takes this many, with replacement.
    n_values
        Number of values of all structures: the more values, the fewer draws are in an array.
    seed
        Seed of the draws; the draws do not depend on ``n_values``.
    """
    n, rng = n_structures, np.random.default_rng(seed)
    at_once = max(_AT_ONCE // n_values, 1)
    for start in range(0, _DRAWS, at_once):
        rows = np.arange(min(at_once, _DRAWS - start))[:, None]
        places = rng.integers(n, size=(len(rows), n)) + n * rows
        counts = np.bincount(places.ravel(), minlength=n * len(rows)).reshape(-1, n)
        yield counts.astype(np.float64)


def estimate(value: float, draws: Floats, n_structures: int) -> Estimate:
    """Return a measure with its 95 % confidence interval, from its values in bootstrap draws.

    The interval is an expanded percentile interval. For few structures, plain percentiles of the
    draws give too narrow an interval, like a normal distribution used instead of Student's, and a
    sum of squares divided by n instead of n - 1. Percentiles farther out make up for both
    (Hesterberg, Am. Stat. 69, 371 (2015)).

    Parameters
    ----------
    value
        Measure of the whole sample.
    draws
        Measure of each bootstrap draw, ``[n_draws]``; values that are not finite are ignored.
    n_structures
        Number of structures in the sample.
    """
    draws = draws[np.isfinite(draws)]
    if not np.isfinite(value):
        return Estimate(np.nan, np.nan, np.nan)
    if n_structures < 5 or not len(draws):
        return Estimate(float(value), np.nan, np.nan)
    t = stats.t.ppf(0.975, n_structures - 1)
    level = float(special.ndtr(-t * (n_structures / (n_structures - 1)) ** 0.5))
    lo, hi = np.quantile(draws, [level, 1 - level])
    return Estimate(float(value), float(lo), float(hi))


def ratio(above: Floats, below: Floats) -> Floats:
    """Return ``above / below`` entry by entry; NaN where ``below`` is zero, negative or NaN."""
    above, below = np.broadcast_arrays(above, below)
    return np.asarray(np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0))


def compare_models(
    predicted: Mapping[str, Mapping[str, Floats]],
    references: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    manifest: Manifest,
    distributions: Mapping[str, Distribution],
    chosen: NDArray[np.bool_] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compute mean absolute errors of models by target, and their relative change to the first.

    Parameters
    ----------
    predicted
        Predictions ``[n, d]`` by name of the model, then by target. The first model is the
        ensemble.
    references
        True values ``[n, d]`` by target; not finite where unknown.
    n_atoms
        Number of atoms of each structure, ``[n_structures]``.
    manifest
        Manifest that gives level and unit of each target.
    distributions
        The ensemble's predictions with intervals, by target.
    chosen
        Mask ``[n_structures]``, True for structures that count; None if all count.

    Returns
    -------
    dict
        Values of `errors` in `ensemble.json`, by target, or by ``NAME per atom`` for a target that
        is a sum over atoms, or ``NAME Brier score`` (mean square error) for one of classes: name of
        the ``target``, ``unit``, number of ``structures``, ``spread`` (standard deviation of the
        labels, None for classes), ``mae`` by model, relative ``change`` of the error from each
        other model to the first (-0.1: the first model's error is a tenth smaller), ``coverage`` of
        the ensemble's intervals (None for classes), and ``aleatoric_std``, the mean standard
        deviation of the predicted noise, if there is one. Both ``mae`` and ``change`` have
        intervals.
    """
    names, found = list(predicted), {}
    for target, reference in references.items():
        about = manifest.targets[target]
        structure = about.rows_of(np.arange(len(n_atoms)), n_atoms)
        errors = np.stack([about.sizes_of(predicted[of][target] - reference) for of in names])
        label, unit = f"{target} Brier score" if about.classes else target, about.unit
        scale: float | Floats = 1.0
        if manifest.is_extensive(target):
            unit, factor = per_atom(about.unit)
            label, scale = f"{target} per atom", factor / n_atoms[:, None]
            errors = errors * scale
        known = np.isfinite(errors[0])  # NaN of a member hides no other's errors
        if chosen is not None:
            known &= chosen[structure, None]
        if not known.any():
            continue
        structures = np.broadcast_to(structure[:, None], known.shape)[known]
        mae, change = compare_errors(errors[:, known], structures)
        told = distributions[target]
        held = measured_coverage(np.where(known, reference, np.nan), told)
        noise = told.aleatoric_std
        if noise is not None:
            noise = (noise * scale)[np.broadcast_to(known, noise.shape)]
        found[label] = {
            "target": target,
            "unit": unit,
            "structures": len(np.unique(structures)),
            "spread": None if about.classes else float((reference * scale)[known].std()),
            "mae": {name: of.to_dict() for name, of in zip(names, mae, strict=True)},
            "change": {name: of.to_dict() for name, of in zip(names[1:], change, strict=True)},
            "coverage": None if about.classes else held,
            "aleatoric_std": None if noise is None else float(noise.mean()),
        }
    return found


def compare_errors(
    errors: Floats, structure: NDArray[np.int64], seed: int = 0
) -> tuple[list[Estimate], list[Estimate]]:
    """Compute the mean absolute error of each model, and the relative change to the first model.

    The result is a list over all models, and a list over all but the first. Two models err on the
    same structures, so the interval of a change comes from draws that take the same structures for
    both. It is narrower than the errors' own intervals suggest.

    Parameters
    ----------
    errors
        Absolute errors of the models on the same values ``[n_models, n_values]``, finite.
    structure
        Index of the structure that each value belongs to, ``[n_values]``.
    seed
        Seed of the bootstrap.
    """
    place = np.unique(structure, return_inverse=True)[1]
    n = int(place.max()) + 1
    sums = np.stack([np.bincount(place, of) for of in (np.ones(len(place)), *errors)], axis=1)
    totals = np.concatenate([counts @ sums for counts in drawn_counts(n, n, seed)])
    drawn, value = totals[:, 1:], sums[:, 1:].sum(axis=0)
    mae = [
        estimate(of / len(place), draws / totals[:, 0], n)
        for of, draws in zip(value, drawn.T, strict=True)
    ]
    change = [
        estimate(value[0] / of - 1 if of else np.nan, ratio(drawn[:, 0], draws) - 1, n)
        for of, draws in zip(value[1:], drawn.T[1:], strict=True)
    ]
    return mae, change
