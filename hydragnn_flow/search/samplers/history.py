"""Trials of a study as columns, updated trial by trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.search.records import PROMOTES, waits
from hydragnn_flow.search.samplers.pareto import best_of

Index = NDArray[np.intp]
Array = NDArray[np.float64]
Space = dict[str, BaseDistribution]

NONE, RUNNING, COMPLETE, PRUNED = range(4)
BELOW_AT_MOST = 25


class Groups:
    """Largest sets of parameters of which each trial has all or none.

    The partition is that of Optuna's TPE with ``group=True``: a conditional space is divided into
    the parameters that all trials share and those that each branch adds.
    """

    def __init__(self) -> None:
        self.spaces: list[Space] = []
        self._seen: set[frozenset[str]] = set()

    def add(self, distributions: Mapping[str, BaseDistribution]) -> None:
        """Refine the groups by the parameters of one more trial."""
        names = frozenset(distributions)
        if names in self._seen:
            return
        self._seen.add(names)
        left = set(names)
        parts: list[Space] = []
        for space in self.spaces:
            parts.append({name: space[name] for name in space if name in names})
            parts.append({name: space[name] for name in space if name not in names})
            left -= space.keys()
        parts.append({name: distributions[name] for name in sorted(left)})
        self.spaces = [part for part in parts if part]


class History:
    """Trials of a study in arrays with one row per trial number.

    An ended trial is read once; a running one whenever it has further parameters. One that waits
    for promotion counts as pruned where it waits.

    Parameters
    ----------
    study
        Study to follow; others may write to it.
    """

    def __init__(self, study: Study) -> None:
        self._study_id, self._storage = study._study_id, study._storage
        self._signs = np.array(
            [-1.0 if way is StudyDirection.MAXIMIZE else 1.0 for way in study.directions]
        )
        self._promotes = PROMOTES in study.user_attrs
        self.groups = Groups()
        self._size = 0
        self._columns: dict[str, Array] = {}
        self._state = np.zeros(0, dtype=np.int8)
        self._values = np.empty((0, len(self._signs)))
        self._last = np.empty((0, 2))
        self._violation = np.empty(0)
        self._open: list[int] = []
        self._suggested: dict[int, dict[str, float]] = {}
        self._stored: dict[int, tuple[bool, int]] = {}
        self._parts: tuple[Index, Index] | None = None

    def is_of(self, study: Study) -> bool:
        """True if this is the history of that study."""
        return self._storage is study._storage and self._study_id == study._study_id

    @property
    def n_objectives(self) -> int:
        """Number of objectives of a complete trial."""
        return len(self._signs)

    @property
    def finished(self) -> int:
        """Number of trials that are complete or pruned."""
        return int(np.count_nonzero(self._state[: self._size] >= COMPLETE))

    @property
    def in_flight(self) -> int:
        """Number of running trials."""
        return int(np.count_nonzero(self._state[: self._size] == RUNNING))

    def suggested(self, number: int, parameters: Mapping[str, float]) -> None:
        """Record the parameters suggested to a trial, which may not be in the study yet."""
        self._suggested[number] = dict(parameters)
        self._stored[number] = (False, -1)  # forces another read

    def synchronise(self) -> None:
        """Read the trials that are new in the study or have changed."""
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        self._grow(len(trials))
        still_open = []
        for number in (*self._open, *range(self._size, len(trials))):
            trial = trials[number]
            if trial.state is TrialState.RUNNING:
                still_open.append(number)
                self._follow(trial)
            elif trial.state is TrialState.WAITING:
                still_open.append(number)
            else:
                self._finish(trial)
        self._open, self._size = still_open, len(trials)
        self._parts = None

    def having(self, rows: Index, names: Iterable[str]) -> Index:
        """Filter rows of trials that have all the parameters."""
        for name in names:
            if name not in self._columns:
                return rows[:0]
            rows = rows[~np.isnan(self._columns[name][rows])]
        return rows

    def observations(self, rows: Index, names: Sequence[str]) -> Array:
        """Parameters of trials, `[n_rows, n_names]`, in Optuna's internal representation."""
        if not len(rows):
            return np.empty((0, len(names)))
        return np.stack([self._columns[name][rows] for name in names], axis=1)

    def split(self) -> tuple[Index, Index]:
        """Split the trials into good ones and the rest, both ordered by number.

        As in Optuna's TPE, complete trials come first, by their value; then pruned ones, by how far
        they came and then by value; then infeasible ones, by their violation. Running trials are
        not good; failed ones are in neither group.
        """
        if self._parts is None:
            self._parts = self._split(np.flatnonzero(self._state[: self._size] != NONE))
        return self._parts

    def _split(self, rows: Index) -> tuple[Index, Index]:
        state, violation = self._state[rows], self._violation[rows]
        running = state == RUNNING
        feasible = ~running & ~(violation > 0)
        complete = rows[feasible & (state == COMPLETE)]
        pruned = rows[feasible & (state == PRUNED)]
        infeasible = rows[~running & (violation > 0)]
        wanted = math.ceil(0.1 * (len(rows) - np.count_nonzero(running)))
        if len(self._signs) == 1:
            wanted = min(wanted, BELOW_AT_MOST)
            complete = complete[np.argsort(self._values[complete, 0], kind="stable")]
            good = [complete[:wanted]]
        else:
            good = [complete[best_of(self._values[complete], min(wanted, len(complete)))]]
        wanted -= len(good[0])
        step, value = self._last[pruned].T
        good.append(pruned[np.lexsort((value, step))][:wanted])
        wanted -= len(good[1])
        good.append(infeasible[np.argsort(self._violation[infeasible], kind="stable")][:wanted])
        below = np.sort(np.concatenate(good))
        return below, np.setdiff1d(rows, below, assume_unique=True)

    def _grow(self, size: int) -> None:
        if size <= len(self._state):
            return
        more = max(1024, size, 2 * len(self._state)) - len(self._state)
        self._state = np.append(self._state, np.zeros(more, dtype=np.int8))
        self._values = np.pad(self._values, ((0, more), (0, 0)), constant_values=np.nan)
        self._last = np.pad(self._last, ((0, more), (0, 0)), constant_values=np.nan)
        self._violation = np.append(self._violation, np.zeros(more))
        for name, column in self._columns.items():
            self._columns[name] = np.append(column, np.full(more, np.nan))

    def _finish(self, trial: FrozenTrial) -> None:
        number = trial.number
        if self._stored.pop(number, None) is not None:
            self._clear(number)
            self._state[number] = NONE
        self._suggested.pop(number, None)
        if trial.state is TrialState.FAIL:
            return
        self.groups.add(trial.distributions)
        self._write(number, _internal(trial))
        self._violation[number] = sum(v for v in trial.constraints.values() if v > 0)
        if trial.state is TrialState.COMPLETE:
            self._state[number] = COMPLETE
            self._values[number] = self._signs * trial.values
        else:
            self._state[number] = PRUNED
            self._last[number] = self._reached(trial)

    def _reached(self, trial: FrozenTrial) -> tuple[float, float]:
        """Rank of a pruned trial: more epochs are better, then a smaller value."""
        if not trial.intermediate_values:
            return 1.0, 0.0
        step, value = max(trial.intermediate_values.items())
        return -float(step), math.inf if math.isnan(value) else float(self._signs[0] * value)

    def _follow(self, trial: FrozenTrial) -> None:
        number, waiting = trial.number, self._promotes and waits(trial)
        stored = (waiting, len(trial.intermediate_values if waiting else trial.params))
        if stored == self._stored.get(number):
            return
        if waiting:
            self._finish(trial)
        else:
            self._clear(number)
            self._state[number] = RUNNING
            self._write(number, {**self._pending(trial), **_internal(trial)})
        self._stored[number] = stored

    def _pending(self, trial: FrozenTrial) -> dict[str, float]:
        """Parameters suggested to a running trial, without branches that it seems not to take."""
        suggested = self._suggested.get(trial.number, {})
        if not trial.params:
            return suggested
        kept: dict[str, float] = {}
        for space in self.groups.spaces:
            if any(name in trial.params for name in space):
                kept.update((name, suggested[name]) for name in space if name in suggested)
        return kept

    def _clear(self, number: int) -> None:
        for column in self._columns.values():
            column[number] = math.nan

    def _write(self, number: int, parameters: Mapping[str, Any]) -> None:
        for name, value in parameters.items():
            if name not in self._columns:
                self._columns[name] = np.full(len(self._state), math.nan)
            self._columns[name][number] = value


def _internal(trial: FrozenTrial) -> dict[str, float]:
    # Another thread may be adding to the trial: first a distribution, then its parameter.
    return {
        name: trial.distributions[name].to_internal_repr(value)
        for name, value in tuple(trial.params.items())
    }
