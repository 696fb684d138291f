"""Weights of members: by their criteria, equal, or the median instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.run import Aggregation
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.ensemble.uncertainty.distribution import Floats
from hydragnn_flow.training.measures.criterion import Criterion

# Powers of a member's criterion: from equal weights to the best member nearly alone.
_POWERS = (0, 2, 4, 8)
# Tolerated loss of more even weights, as a fraction of the criterion, or of its square for `rmse`:
# with few folds the standard error is uncertain.
_TOLERANCE = 0.2


@dataclass(frozen=True)
class Combination:
    """Rule that combines the members' predictions."""

    aggregation: Aggregation
    weights: Floats
    """Weights ``[n_members]`` that add up to one; equal unless the mean is weighted."""
    fold_weights: Floats
    """Weights fitted without each fold, ``[n_folds, n_members]``."""
    scores: dict[str, float]
    """Cross-validated criterion of each kind of combination."""
    members: Floats
    """Criterion of each member alone, ``[n_members]``."""


def weigh_members(
    criterion: Criterion,
    predictions: Mapping[str, Floats],
    labels: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    branch: NDArray[np.int64] | None,
    fold: NDArray[np.int64],
    asked: Aggregation | Literal["auto"],
    median: bool,
) -> Combination:
    """Combine trained members as :func:`combine_best` does.

    Parameters
    ----------
    criterion
        Criterion for members and their combinations.
    predictions
        Predictions ``[n_members, n, d]`` by target.
    labels
        True values ``[n, d]`` by target.
    n_atoms, branch, fold
        Number of atoms, branch and fold of each structure; branch is None if there is only one.
    asked, median
        Arguments of :func:`combine_best` of the same names.
    """
    residuals, shares = criterion.residuals(predictions, labels, n_atoms, branch)
    judged = Judged(np.asarray(residuals), np.asarray(shares), criterion.power)
    # The fold of each residual is computed like the residuals, so that their order is the same.
    by_row = {
        name: (fold if len(values) == len(fold) else np.repeat(fold, n_atoms))[:, None]
        + np.zeros(values.shape)
        for name, values in labels.items()
    }
    nothing = {name: np.where(np.isfinite(values), 0.0, np.nan) for name, values in labels.items()}
    one = {name: values[None] for name, values in by_row.items()}
    not_divided = replace(criterion, per_atom=frozenset())
    folds, _ = not_divided.residuals(one, nothing, n_atoms, branch)
    return combine_best(judged, folds[0].astype(np.int64), asked, median)


def combine_best(
    judged: Judged, folds: NDArray[np.int64], asked: Aggregation | Literal["auto"], median: bool
) -> Combination:
    """Choose the combination of members by cross-validation.

    The mean has weights inversely proportional to a power of each member's criterion. Each power is
    fitted on all folds but one and scored on that one. Among those within a standard error of the
    best, and no more than a fifth worse, the most even one is chosen: a member that is best on few
    structures is so partly by chance. Weights that minimise the criterion followed that chance:
    they silenced all members but one of four with equal errors.

    Parameters
    ----------
    judged
        Errors of the members on the calibration split, or without one on the validation split.
    folds
        Fold of the structure of each residual, ``[n]``, from 0 on.
    asked
        Value of the key `ensemble.aggregation`.
    median
        True if the median may be chosen.
    """
    n_folds, n_members = int(folds.max()) + 1, len(judged.residuals)
    weights = np.empty((len(_POWERS), n_folds, n_members))
    sums = np.empty((len(_POWERS), n_folds))
    for fold in range(n_folds):
        inside = folds == fold
        held_out = _masked(judged, inside)
        others = _masked(judged, ~inside) if n_folds > 1 else held_out
        for place, power in enumerate(_POWERS):
            weights[place, fold] = _weights(others, power)
        counted = weights[0, fold] > 0
        means = weights[:, fold][:, counted] @ held_out.residuals[counted]
        sums[:, fold] = held_out.criterion(means) ** judged.power
    place = _most_even(sums)
    uneven = place or 1 + _most_even(sums[1:])
    criteria = sums.sum(axis=1) ** (1 / judged.power)
    counted = _weights(judged, 0) > 0
    scores = {
        "weighted": float(criteria[uneven]),
        "uniform": float(criteria[0]),
        "median": float(judged.criterion(np.median(judged.residuals[counted], axis=0))),
    }
    chosen: Aggregation = "weighted" if place else "uniform"
    if asked != "auto":
        chosen = asked
    elif median and scores["median"] < scores[chosen]:
        chosen = "median"
    place = uneven if chosen == "weighted" else 0
    members = np.asarray(judged.criterion(judged.residuals), np.float64)
    return Combination(chosen, _weights(judged, _POWERS[place]), weights[place], scores, members)


def _most_even(sums: Floats) -> int:
    """Return the index of the first kind of weights within a standard error of the best.

    Breiman et al., Classification and Regression Trees, 1984, section 3.4.3; the error is that of
    the difference between the two. It is 0 if no criterion is finite. ``sums`` is the contribution
    of each fold to the criterion for each kind, ``[n_kinds, n_folds]``.
    """
    n_folds = sums.shape[1]
    finite = np.flatnonzero(np.isfinite(sums).all(axis=1))
    if not len(finite):
        return 0
    sums = sums[finite]
    totals = sums.sum(axis=1)
    worse = sums - sums[np.argmin(totals)]
    error = np.sqrt(n_folds) * worse.std(axis=1, ddof=1) if n_folds > 1 else 0.0
    near = worse.sum(axis=1) <= np.minimum(error, _TOLERANCE * totals.min())
    return int(finite[np.argmax(near)])


def _weights(judged: Judged, power: int) -> Floats:
    """Return weights ``[n_members]``, inversely proportional to a power of the criterion.

    They are zero where the criterion is infinite, and equal if it is infinite for all members.
    """
    criterion = judged.criterion(judged.residuals)
    best, finite = criterion.min(), np.isfinite(criterion)
    by_criterion = np.ones(len(criterion))
    if finite.any():
        if best > 0:
            by_criterion = (best / criterion) ** power
        by_criterion[~finite] = 0.0
    return np.asarray(by_criterion / by_criterion.sum())


def _masked(judged: Judged, used: NDArray[np.bool_]) -> Judged:
    return Judged(judged.residuals[:, used], judged.shares[used], judged.power)
