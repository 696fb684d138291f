"""Ask and tell: the next trial, and the verdict on a report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import optuna
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY  # Trial's alone to set
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.optuna_classes import build_sampler
from hydragnn_flow.search.earlier import BEGUN, add_earlier, enqueue
from hydragnn_flow.search.records import (
    PASSED,
    PROMOTES,
    REASON,
    WORDS,
    Outcome,
    TrialRecord,
    TrialWord,
    own,
    record_of,
)
from hydragnn_flow.search.rules import Rungs, Verdict
from hydragnn_flow.search.space import active, suggest
from hydragnn_flow.search.storage import STUDY, StudyStorage


class Search:
    """Durable Optuna study with rungs; the driver is its only writer.

    Changes are on disk after :meth:`commit`, and only then may they be acted on.

    Parameters
    ----------
    path
        Path of the journal; made if missing, repaired if a crash tore its last record.
    config
        Space, sampler, objectives and rungs of the search.
    num_epoch
        Number of epochs of a trial that is never stopped early.
    seed
        Seed that decides the suggestions, together with the content of the study.
    ensemble_size
        Number of good trials that the search has to find.

    Raises
    ------
    InputError
        If the journal is damaged, or a study to start from cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        config: SearchConfig,
        num_epoch: int,
        seed: int,
        ensemble_size: int = 1,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config = config
        self._storage = StudyStorage(Path(path))
        self._study = self._open()
        trials = self._study.get_trials(deepcopy=False)
        # A resumed driver must not draw the same numbers as the first one.
        asked = sum(trial.state != TrialState.WAITING for trial in trials)
        seed = (seed * 100_003 + asked) % 2**32
        self._sampler = build_sampler(config.sampler, config.space, seed)
        self._study.sampler = self._sampler
        self._complete(trials)
        self.rungs = Rungs(config, num_epoch, self._study, ensemble_size)
        self._count: Counter[TrialWord] = Counter()
        self.best: float | None = None
        """Best value of the first objective reported so far."""
        for trial in own(trials):
            self._restore(trial)

    def _open(self) -> optuna.Study:
        study = None
        if self._storage.get_all_studies():
            study = optuna.load_study(study_name=STUDY, storage=self._storage)
            if not study.user_attrs.get(BEGUN) and not own(study.get_trials(deepcopy=False)):
                # Interrupted before all earlier trials were added.
                self._storage.delete_study(study._study_id)
                study = None
        if study is None:
            study = optuna.create_study(
                study_name=STUDY,
                storage=self._storage,
                directions=self.config.directions,
            )
            add_earlier(study, self.config)
        if self.config.rungs == "promotion" and PROMOTES not in study.user_attrs:
            study.set_user_attr(PROMOTES, True)
        enqueue(study, self.config.enqueue)
        self._storage.commit()
        return study

    def _complete(self, trials: list[FrozenTrial]) -> None:
        """Complete trials whose suggestion was interrupted."""
        for trial in own(trials):
            lacks = set(active(self.config.space, trial.params)) != set(trial.params)
            if trial.state == TrialState.RUNNING and lacks:
                suggest(optuna.Trial(self._study, trial._trial_id), self.config.space)
        self._storage.commit()

    def _restore(self, trial: FrozenTrial) -> None:
        self._count[WORDS[trial.state]] += 1
        epochs, passed = self.rungs.epochs(trial.number), trial.user_attrs.get(PASSED, -1)
        running = trial.state == TrialState.RUNNING
        for rung, epoch in enumerate(epochs):
            if epoch not in trial.intermediate_values:
                break
            value = trial.intermediate_values[epoch]
            self._update_best(value)
            went_on = True if rung <= passed else None if running else False
            self.rungs.restore(trial.number, rung, value, went_on)
        if trial.state == TrialState.FAIL:
            self.rungs.forget(trial.number)

    @property
    def records(self) -> list[TrialRecord]:
        """Records of all trials asked for, by number."""
        return [record_of(trial) for trial in own(self._study.get_trials(deepcopy=False))]

    @property
    def asked(self) -> int:
        """Number of trials that were asked for."""
        return self._count.total()

    @property
    def states(self) -> dict[str, int]:
        """Number of trials in each state."""
        return {word: count for word, count in self._count.items() if count}

    def ask(self) -> TrialRecord:
        """Start a new trial."""
        trial = self._study.ask()
        self._count["running"] += 1
        return TrialRecord(trial.number, "running", suggest(trial, self.config.space), None)

    def record(self, number: int) -> TrialRecord:
        """Return the record of a trial."""
        return record_of(self._trial(number))

    def report(self, number: int, rung: int, outcome: Outcome) -> Verdict:
        """Judge a trial at a rung.

        Parameters
        ----------
        number
            Number of the trial.
        rung
            Position of the rung in ``rungs.epochs(number)``.
        outcome
            Objectives, excesses and curve of the trial so far.

        Returns
        -------
        Verdict
            ``goes_on``, ``waits`` for promotion, or the end of the trial: ``complete``, or
            ``stops`` early. A committed verdict is final: asked again after a restart, a trial that
            continued still does.
        """
        trial = self._trial(number)
        if trial.user_attrs.get(PASSED, -1) >= rung:
            return "goes_on"
        identity, value = trial._trial_id, outcome.objectives[0]
        verdict = self.rungs.report(number, rung, value, outcome.curve)
        # Optuna rejects Trial.report with several objectives, but displays stored values.
        epoch = self.rungs.epochs(number)[rung]
        self._storage.set_trial_intermediate_value(identity, epoch, value)
        self._update_best(value)
        if verdict == "goes_on":
            self._storage.set_trial_user_attr(identity, PASSED, rung)
            return verdict
        for name, excess in outcome.excess.items():
            self._storage.set_trial_system_attr(identity, f"{_CONSTRAINTS_KEY}:{name}", excess)
        if verdict == "complete":
            self._tell(number, TrialState.COMPLETE, outcome.objectives)
        elif verdict == "stops":
            self._tell(number, TrialState.PRUNED)
        return verdict

    def promote(self, closing: bool = False) -> tuple[TrialRecord, int] | None:
        """Continue a waiting trial, if one may; return it and the rung where it waited.

        Parameters
        ----------
        closing
            True if nothing runs any more and no trial is left to ask for.
        """
        promoted = self.rungs.promote(closing)
        if promoted is None:
            return None
        number, rung = promoted
        self._storage.set_trial_user_attr(self._trial(number)._trial_id, PASSED, rung)
        return self.record(number), rung

    def fail(self, number: int, reason: str) -> None:
        """End a trial that diverged, ran out of memory or was lost."""
        self._storage.set_trial_user_attr(self._trial(number)._trial_id, REASON, reason)
        self.rungs.forget(number)
        self._tell(number, TrialState.FAIL)

    def end_waiting(self) -> list[int]:
        """End the trials that wait for promotion, and return their numbers."""
        waiting = list(self.rungs.waiting())
        for number in waiting:
            self.rungs.forget(number)
            self._tell(number, TrialState.PRUNED)
        return waiting

    def commit(self) -> None:
        """Write all changes to disk together.

        Raises
        ------
        OSError
            If the disk does not take them. The changes are kept, and the next call tries again.
        """
        self._storage.commit()

    def close(self) -> None:
        """Commit, and end the sampler's process."""
        self._close_sampler()
        self._storage.commit(is_last=True)

    def _close_sampler(self) -> None:
        getattr(self._sampler, "close", lambda: None)()

    def __enter__(self) -> Search:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # The disk may be unreachable, or a newer driver in charge. Uncommitted changes have not
        # been acted on, or are in the ledger.
        self._close_sampler()

    def _tell(
        self, number: int, state: TrialState, values: tuple[float, ...] | None = None
    ) -> None:
        # Does the same as Study.tell, which also deep-copies the trial, slower than all the rest.
        trial, told = self._trial(number), None if values is None else list(values)
        if state == TrialState.PRUNED and len(self.config.objectives) == 1:
            told = [trial.intermediate_values[max(trial.intermediate_values)]]
        self._sampler.after_trial(self._study, trial, state, told)
        self._storage.set_trial_state_values(trial._trial_id, state, told)
        self._count["running"] -= 1
        self._count[WORDS[state]] += 1

    def _update_best(self, value: float) -> None:
        better = max if self.config.directions[0] == "maximize" else min
        self.best = value if self.best is None else better(self.best, value)

    def _trial(self, number: int) -> FrozenTrial:
        storage = self._storage
        identity = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        return storage.get_trial(identity)
