"""TPE for one driver with thousands of trials in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.search.samplers.history import History, Space
from hydragnn_flow.search.samplers.parzen import LiarKernels, Parzen

Array = NDArray[np.float64]

IN_FLIGHT_PER_BATCH = 32
"""Number of trials in flight for each suggestion of a batch. Larger batches search worse, clearly
so if they are as large as the number in flight."""
MOST_KERNELS = 8192
"""Largest number of trials in the density of those that are not good; more are sampled."""
_OF_A_STUDY = ("_lock", "_history", "_batch", "_names", "_queue", "_ended", "_seen_for")
"""Attributes that a copy of the sampler does not take over."""


class BatchedTPESampler(BaseSampler):
    """Optuna's TPE with one fit for a batch of suggestions.

    It is multivariate, grouped where the space is conditional, with running trials as constant
    liars, like ``TPESampler(multivariate=True, group=True, constant_liar=True)``. Pruned trials,
    constraints and several objectives are treated as in Optuna. The history is kept in columns. One
    fit serves a batch, each suggestion of which counts as a running trial for the next. The density
    is evaluated by matrix products; that of trials which are not good uses a sample of 8,192 if
    there are more. Kernels have a larger least width than Optuna's; with Optuna's, a batch of one
    suggests the same.

    Parameters
    ----------
    n_startup_trials
        Number of ended trials before which suggestions are random.
    n_ei_candidates
        Number of candidates drawn for a suggestion.
    batch_size
        Number of suggestions per fit; by default one for every 32 trials in flight, at least one.
    seed
        Seed of the random numbers.
    """

    def __init__(
        self,
        *,
        n_startup_trials: int = 10,
        n_ei_candidates: int = 24,
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._n_startup_trials, self._n_ei_candidates = n_startup_trials, n_ei_candidates
        self._batch_size = batch_size
        self._rng = np.random.RandomState(seed)
        self._random = RandomSampler(seed=seed)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._history: History | None = None
        self._batch = 1
        self._names: list[str] = []
        self._queue: list[list[float]] = []
        self._ended = 0
        self._seen_for: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _OF_A_STUDY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def reseed_rng(self) -> None:
        """Draw a new seed, for use in another thread."""
        with self._lock:
            self._rng.seed()
            self._random.reseed_rng()
            self._queue.clear()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Space:
        """Return all parameters seen so far that have more than one value."""
        with self._lock:
            return {
                name: distribution
                for space in self._refreshed(study, trial.number).groups.spaces
                for name, distribution in sorted(space.items())
                if not distribution.single()
            }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Space
    ) -> dict[str, Any]:
        """Take the next suggestion of the batch; fit a new batch if there is none."""
        with self._lock:
            history = self._refreshed(study, trial.number)
            if not self._queue or self._names != list(search_space):
                self._fill(history, search_space)
            chosen = dict(zip(self._names, self._queue.pop(), strict=False))
            self._seen_for = trial.number  # Optuna asks for missing parameters next
            history.suggested(trial.number, chosen)
            return {name: search_space[name].to_external_repr(x) for name, x in chosen.items()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample a parameter that no trial had when the batch was made."""
        with self._lock:
            history = self._refreshed(study, trial.number)
            if history.finished < self._n_startup_trials:
                return self._random.sample_independent(study, trial, param_name, param_distribution)
            chosen = self._suggest(history, {param_name: param_distribution}, 1)
            return param_distribution.to_external_repr(chosen.item())

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Count the trials that ended since the last fit."""
        with self._lock:
            self._ended += 1

    def _refreshed(self, study: Study, number: int) -> History:
        """Return the history, updated once per batch, by the trial that is asked for."""
        if self._history is None or not self._history.is_of(study):
            self._history = History(study)
            self._queue.clear()
            self._seen_for = None
        if (self._queue and self._ended <= self._batch) or self._seen_for == number:
            return self._history
        self._queue.clear()
        self._ended, self._seen_for = 0, number
        self._history.synchronise()
        self._batch = self._batch_size or max(1, self._history.in_flight // IN_FLIGHT_PER_BATCH)
        return self._history

    def _fill(self, history: History, search_space: Space) -> None:
        self._names = list(search_space)
        missing = self._n_startup_trials - history.finished
        if missing > 0 or not search_space:
            # With thousands in flight, ten more random ones do not matter.
            enough = max(1, missing, history.in_flight // IN_FLIGHT_PER_BATCH)
            self._queue = [[] for _ in range(min(self._batch, enough))]
            return
        chosen = np.empty((self._batch, len(self._names)))
        for group in history.groups.spaces:
            space = {name: search_space[name] for name in self._names if name in group}
            if space:
                columns = [self._names.index(name) for name in space]
                chosen[:, columns] = self._suggest(history, space, self._batch)
        self._queue = chosen[::-1].tolist()

    def _suggest(self, history: History, space: Space, size: int) -> Array:
        """Draw suggestions `[size, n_parameters]` of one fit; each runs while the next is drawn."""
        names = list(space)
        below, above = (history.having(part, names) for part in history.split())
        good = Parzen(
            history.observations(below, names),
            space,
            weights=np.ones(len(below)) if history.n_objectives > 1 else None,
        )
        drawn = above
        if len(above) > MOST_KERNELS:
            drawn = np.sort(self._rng.choice(above, MOST_KERNELS, replace=False))
        rest = Parzen(history.observations(drawn, names), space)
        points = good.sample(self._rng, size * self._n_ei_candidates)
        log_good, log_rest = good.log_pdf(points), rest.log_pdf(points)
        if size == 1:
            return points[[np.argmax(log_good - log_rest)]]
        liars = LiarKernels(points, space, len(above))
        density = np.exp(log_rest)
        chosen = []
        for first in range(0, len(points), self._n_ei_candidates):
            after = first + self._n_ei_candidates
            pick = first + int(np.argmax(log_good[first:after] - np.log(density[first:after])))
            density[after:] += np.exp(liars.log_pdf(after, pick))
            chosen.append(pick)
        return points[chosen]
