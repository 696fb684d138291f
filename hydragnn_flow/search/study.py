"""Ask and tell: which trial next, and what became of it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.search.journal import open_journal, read_journal
from hydragnn_flow.search.space import suggest

JOURNAL = "study.journal"
STUDY = "search"
REASON = "reason"
PASSED = "passed"

TrialWord = Literal["running", "complete", "pruned", "failed"]
_WORDS: dict[TrialState, TrialWord] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class TrialRecord:
    """What the study knows of a trial."""

    number: int
    state: TrialWord
    parameters: dict[str, Any]
    value: float | None
    """Smallest validation loss reported."""
    reason: str = ""
    """Why a failed trial failed."""


class Search:
    """A durable Optuna study with successive-halving rungs; the driver is its only writer.

    Every change is on disk when the method that makes it returns.

    Parameters
    ----------
    path
        The journal file; made if absent, repaired if a crash tore its last record.
    config
        Space and rungs.
    rungs
        Epochs at which a trial is judged, the last being the end.
    seed
        Decides the suggestions, together with what the study already holds.
    """

    def __init__(self, path: Path, config: SearchConfig, rungs: Sequence[int], seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config, self.rungs = config, tuple(rungs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = open_journal(path)
            # Asking Optuna to load it if it exists would add a record at every start.
            begin = optuna.load_study if _has_study(storage) else optuna.create_study
            self._study = begin(study_name=STUDY, storage=storage)
            # A resumed driver must not draw the numbers of the first one again.
            started = len(self._study.get_trials(deepcopy=False))
            self._study.sampler = optuna.samplers.TPESampler(
                multivariate=True,
                group=True,
                constant_liar=True,
                seed=(seed * 100_003 + started) % 2**32,  # numpy's old generator takes no more
            )
        self._trials: dict[int, optuna.Trial] = {}

    @property
    def records(self) -> list[TrialRecord]:
        """Every trial so far, by number."""
        return [_record(trial) for trial in self._study.get_trials(deepcopy=False)]

    def ask(self) -> TrialRecord:
        """Begin a new trial."""
        trial = self._study.ask()
        self._trials[trial.number] = trial
        return TrialRecord(trial.number, "running", suggest(trial, self.config.space), None)

    def resume(self, number: int) -> TrialRecord:
        """Take up a running trial again after the driver was restarted."""
        trial = self._trial(number)
        return TrialRecord(number, "running", suggest(trial, self.config.space), None)

    def report(self, number: int, rung: int, value: float) -> bool:
        """Judge a trial at a rung.

        Parameters
        ----------
        number, rung
            Trial, and position of the rung in the sequence of rungs.
        value
            Smallest validation loss so far.

        Returns
        -------
        bool
            Whether the trial goes on: at the last rung never, for it is complete; at others if its
        value is in the best ``1 / reduction_factor`` of those reported there so far. A
            verdict stands: asked again after a restart, a trial that went on still does.
        """
        trial = self._trial(number)
        epoch = self.rungs[rung]
        if trial.user_attrs.get(PASSED, -1) >= rung:
            return True
        if epoch not in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            trial.report(value, epoch)
        if rung == len(self.rungs) - 1:
            self._study.tell(trial, value)
            return False
        if not self._is_among_the_best(epoch, value):
            self._study.tell(trial, state=TrialState.PRUNED)
            return False
        trial.set_user_attr(PASSED, rung)
        return True

    def fail(self, number: int, reason: str) -> None:
        """End a trial that diverged, ran out of memory or was lost."""
        trial = self._trial(number)
        trial.set_user_attr(REASON, reason)
        self._study.tell(trial, state=TrialState.FAIL)

    def _is_among_the_best(self, epoch: int, value: float) -> bool:
        """Asynchronous successive halving (Li et al., MLSys 2020), from the values alone.

        Optuna's pruner also keeps a note of the rungs a trial has passed; a driver killed between
        that note and the verdict would let a poor trial go on.
        """
        trials = self._study.get_trials(deepcopy=False)
        values = sorted(
            trial.intermediate_values[epoch]
            for trial in trials
            if epoch in trial.intermediate_values
        )
        return value <= values[max(1, len(values) // self.config.reduction_factor) - 1]

    def _trial(self, number: int) -> optuna.Trial:
        if number not in self._trials:
            frozen = self._study.get_trials(deepcopy=False)[number]
            self._trials[number] = optuna.Trial(self._study, frozen._trial_id)
        return self._trials[number]


def read_trials(run_directory: Path) -> list[TrialRecord]:
    """The trials of a run directory, without writing to it; none before the search began."""
    path = run_directory / JOURNAL
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = read_journal(path)
    if not _has_study(storage):
        return []
    study = optuna.load_study(study_name=STUDY, storage=storage)
    return [_record(trial) for trial in study.get_trials(deepcopy=False)]


def _has_study(storage: optuna.storages.BaseStorage) -> bool:
    """Whether the journal's first record is whole."""
    return bool(storage.get_all_studies())


def _record(trial: FrozenTrial) -> TrialRecord:
    values = trial.intermediate_values.values()
    return TrialRecord(
        number=trial.number,
        state=_WORDS.get(trial.state, "running"),
        parameters=dict(trial.params),
        value=min(values) if values else None,
        reason=trial.user_attrs.get(REASON, ""),
    )
