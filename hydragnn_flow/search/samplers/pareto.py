"""Selection of the better trials of a study with several objectives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Optuna's own functions, so that a front means the same here and in its TPE. They are private; only
# this module would break if they changed.
from optuna._hypervolume.hssp import _solve_hssp
from optuna.study._multi_objective import _fast_non_domination_rank


def best_of(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Choose the trials nearest to the Pareto front, as Optuna's TPE does.

    Whole fronts are taken while they fit; of the next one, the subset with the largest hypervolume
    (Ozaki et al., GECCO 2020, doi:10.1145/3377930.3389817).

    Parameters
    ----------
    values
        Objectives of the trials `[n_trials, n_objectives]`; smaller is better.
    count
        Number of trials to choose, at most `n_trials`.

    Returns
    -------
    ndarray
        Positions of the chosen trials, ascending.
    """
    if count in (0, len(values)):
        return np.arange(count)
    ranks = _fast_non_domination_rank(values, n_below=count)
    sizes = np.cumsum(np.bincount(ranks))
    whole = int(np.searchsorted(sizes, count, side="right"))  # fronts that fit
    chosen = np.flatnonzero(ranks < whole)
    if len(chosen) < count:
        front = np.flatnonzero(ranks == whole)
        worst = values[front].max(axis=0)
        reference = np.maximum(1.1 * worst, 0.9 * worst)
        reference[reference == 0] = 1e-12
        kept = _solve_hssp(values[front], front, count - len(chosen), reference)
        chosen = np.concatenate([chosen, kept])
    return np.sort(chosen)
