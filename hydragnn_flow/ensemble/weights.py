"""How much each member counts: convex weights, equal ones, or the median."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, minimize

from hydragnn_flow.config.run import Aggregation
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.training.criterion import Criterion

# Fitted weights follow the noise of few structures, so they are mixed with those that have one
# number for each member: a power of its criterion. Never without any: the error bars are made of
# the disagreement of the members, so each has a say. The most even mixture comes first.
_MIXTURES = [(power, part) for part in (1.0, 0.75, 0.5, 0.25, 0.1, 0.02) for power in (2, 4)]


@dataclass(frozen=True)
class Combination:
    """How members' predictions become one."""

    aggregation: Aggregation
    weights: Floats
    """``[n_members]``, adding up to one; equal ones unless the mean is weighted."""
    fold_weights: Floats
    """The same from all folds but one, ``[n_folds, n_members]``: they have not seen that one."""
    scores: dict[str, float]
    """Criterion of each kind of combination on structures that did not fit it."""
    members: Floats
    """Criterion of each member alone, ``[n_members]``."""


def convex_weights(judged: Judged) -> Floats:
    """Weights ``[n_members]``, none negative, with which the mean has the smallest criterion.

    The criterion is convex in them, so there is one minimum. Corners of absolute values are rounded
    at a thousandth of the mean residual.
    """
    k = len(judged.residuals)
    equal = np.full(k, 1 / k)
    unit = float(judged.criterion(equal @ judged.residuals))
    if not np.isfinite(unit) or unit == 0:
        return equal
    residuals = judged.residuals
    sizes = np.abs(equal @ residuals)
    used = judged.shares > 0
    rounded = (1e-3 * np.median(sizes[used])) ** 2 if judged.power == 1 else 0.0
    scale = unit**judged.power

    def loss(weights: Floats) -> tuple[float, Floats]:
        mean = weights @ residuals
        squares = np.square(mean) + rounded
        if judged.power == 2:
            value, slope = squares, 2 * mean
        else:
            value = np.sqrt(squares)
            slope = mean / np.where(value > 0, value, 1)
        gradient = residuals @ (judged.shares * slope) / scale
        return float(judged.shares @ value) / scale, gradient

    fit = minimize(
        loss,
        equal,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * k,
        constraints=LinearConstraint(np.ones((1, k)), 1, 1),
        options={"maxiter": 200, "ftol": 1e-9},
    )
    found = np.clip(fit.x, 0, None)
    candidates = [found / found.sum() if found.sum() > 0 else equal, equal]
    return min(candidates, key=lambda weights: float(judged.criterion(weights @ residuals)))


def weigh_members(
    criterion: Criterion,
    predictions: Mapping[str, Floats],
    labels: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    fold: NDArray[np.int64],
    asked: Aggregation | Literal["auto"],
    median: bool,
) -> Combination:
    """Combine trained members as :func:`combine_best` does.

    Parameters
    ----------
    criterion
        By which members and their combinations are judged.
    predictions
        Target -> ``[n_members, n, d]``.
    labels
        Target -> true values ``[n, d]``.
    n_atoms, fold
        Of each structure.
    asked, median
        As of :func:`combine_best`.
    """
    atoms = n_atoms.astype(np.float64)
    residuals, shares = criterion.residuals(predictions, labels, atoms)
    judged = Judged(np.asarray(residuals), np.asarray(shares), criterion.power)
    # The fold of each residual comes the way the residuals do.
    by_row = {
        name: (fold if len(values) == len(fold) else np.repeat(fold, n_atoms))[:, None]
        + np.zeros(values.shape)
        for name, values in labels.items()
    }
    nothing = {name: np.where(np.isfinite(values), 0.0, np.nan) for name, values in labels.items()}
    one = {name: values[None] for name, values in by_row.items()}
    folds, _ = criterion.residuals(one, nothing, np.ones(len(atoms)))
    return combine_best(judged, folds[0].astype(np.int64), asked, median)


def combine_best(
    judged: Judged, folds: NDArray[np.int64], asked: Aggregation | Literal["auto"], median: bool
) -> Combination:
    """Choose how members are combined, by cross-validation.

    What is fitted on all folds but one is judged on that one: the weighted mean, with weights that
    are fitted, or follow each member's criterion, or are between the two; the mean with equal
    weights; the median. Of the mixtures that are within a standard error of the best, the most even
    counts: a member that is the best of all on few structures is so by chance in part.

    Parameters
    ----------
    judged
        Errors of the trained members on the calibration split, or on the validation split, which
        chose their trials, where there is none.
    folds
        Fold of the structure that each of the residuals is of, ``[n]``, from 0 on.
    asked
        `ensemble.aggregation`.
    median
        Whether the median may be chosen.
    """
    n_folds, n_members = int(folds.max()) + 1, len(judged.residuals)
    equal = np.full(n_members, 1 / n_members)
    weights, sums = (
        np.empty((len(_MIXTURES), n_folds, n_members)),
        np.empty((len(_MIXTURES), n_folds)),
    )
    for fold in range(n_folds):
        inside = folds == fold
        fitted_on = _masked(judged, ~inside if n_folds > 1 else inside)
        held_out, fitted = _masked(judged, inside), convex_weights(fitted_on)
        for place, mixture in enumerate(_MIXTURES):
            weights[place, fold] = _mixed(fitted, fitted_on, *mixture)
        means = weights[:, fold] @ held_out.residuals
        sums[:, fold] = held_out.criterion(means) ** judged.power
    place = _most_even(sums)
    members = np.asarray(judged.criterion(judged.residuals), np.float64)
    scores = {
        "weighted": float(sums[place].sum()) ** (1 / judged.power),
        "uniform": float(judged.criterion(equal @ judged.residuals)),
        "median": float(judged.criterion(np.median(judged.residuals, axis=0))),
    }
    chosen: Aggregation = "weighted"
    if asked != "auto":
        chosen = asked
    else:
        allowed: list[Aggregation] = ["uniform", "median"] if median else ["uniform"]
        chosen = min([*allowed, chosen], key=lambda name: scores[name])
    if chosen != "weighted":
        return Combination(chosen, equal, np.tile(equal, (n_folds, 1)), scores, members)
    found = _mixed(convex_weights(judged), judged, *_MIXTURES[place])
    return Combination(chosen, found, weights[place], scores, members)


def _most_even(sums: Floats) -> int:
    """The first mixture that is within a standard error of the best.

    Breiman et al., Classification and Regression Trees, 1984, section 3.4.3; the error is that of
    the difference between the two.

    Parameters
    ----------
    sums
        What each fold adds to the criterion of each mixture, ``[n_mixtures, n_folds]``.
    """
    n_folds = sums.shape[1]
    worse = sums - sums[np.argmin(sums.sum(axis=1))]
    error = np.sqrt(n_folds) * worse.std(axis=1, ddof=1) if n_folds > 1 else 0.0
    return int(np.argmax(worse.sum(axis=1) <= error))


def _mixed(fitted: Floats, judged: Judged, power: int, part: float) -> Floats:
    """Fitted weights, and in part those that follow each member's criterion."""
    criterion = judged.criterion(judged.residuals)
    best = criterion.min()
    by_criterion = (best / criterion) ** power if best > 0 else np.ones(len(fitted))
    return np.asarray((1 - part) * fitted + part * by_criterion / by_criterion.sum())


def _masked(judged: Judged, used: NDArray[np.bool_]) -> Judged:
    return Judged(judged.residuals[:, used], judged.shares[used], judged.power)
