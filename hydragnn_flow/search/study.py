"""Search: asks for trials and judges them; trials of earlier searches; rehearsal of a sampler."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import RandomSampler
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY  # Trial's alone to set
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.base import import_class, one_line
from hydragnn_flow.config.domain import Rule
from hydragnn_flow.config.origins import JOURNAL
from hydragnn_flow.config.search import PARAMETERS
from hydragnn_flow.errors import InputError
from hydragnn_flow.log import tell
from hydragnn_flow.search.records import (
    FIXED,
    ORIGIN,
    PASSED,
    REASON,
    WORDS,
    Outcome,
    TrialRecord,
    TrialWord,
    active,
    distributions,
    own,
    record_of,
    suggest,
)
from hydragnn_flow.search.rungs import Rungs, Verdict
from hydragnn_flow.search.samplers.encoding import Space
from hydragnn_flow.search.samplers.ruled import Foreseen, sampler_of
from hydragnn_flow.search.storage import STUDY, StudyStorage, read_journal

_logger = logging.getLogger(__name__)
BEGUN = "begun"
"""User attribute of a study: names of its objectives, set once all earlier trials were added."""
LIMITS = "limits"
"""User attribute of a study: limit of each constraint, from which excesses of trials count."""


def add_earlier(
    study: optuna.Study, config: SearchConfig, foreseen: Foreseen | None = None
) -> None:
    """Add the ended trials of the searches that `search.warm_start` names to a new study.

    Only trials whose parameters lie in the space of this search and meet its rules are added. Their
    numbers come before those of the study's own trials, and the limits of this search apply to
    them. Each has the attribute `ORIGIN`, and none becomes a member. At the end the attribute
    `BEGUN` is set. ``foreseen`` has the number of parameters of the network with a trial's values;
    trials with impossible networks are left out.

    Raises
    ------
    InputError
        If an earlier study has other objectives, unknown limits, or no trial in the space.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls the names experimental
        study.set_metric_names(list(config.objectives))
    study.set_user_attr(LIMITS, dict(config.constraints))
    for name in config.warm_start:
        earlier = _open(Path(name), config)
        rules = config.rules
        found = [trial for trial in _trials_of(earlier) if _fits(trial, config.space, rules)]
        if not found:
            also = " and meets search.where" if rules else ""
            raise InputError(
                f"search.warm_start: no trial of {name} is in search.space{also}; remove it or "
                f"widen the space"
            )
        for trial in found:
            excess = _excess(trial, earlier, name, config)
            if foreseen is not None and PARAMETERS in config.constraints:
                count = foreseen(trial.params)[PARAMETERS]
                if not math.isfinite(count):
                    continue  # its network is impossible with the data of this search
                excess[PARAMETERS] = count - config.constraints[PARAMETERS]
            study.add_trial(
                optuna.trial.create_trial(
                    state=trial.state,
                    values=trial.values,
                    params=trial.params,
                    distributions={
                        path: domain
                        for path, domain in distributions(config.space).items()
                        if path in trial.params
                    },
                    intermediate_values=trial.intermediate_values,
                    user_attrs={ORIGIN: f"{name}, trial {trial.number}"},
                    constraints=excess,
                )
            )
    study.set_user_attr(BEGUN, list(config.objectives))


def enqueue(study: optuna.Study, configurations: Sequence[Mapping[str, Any]]) -> None:
    """Enqueue hyper-parameter configurations as the next trials of a study.

    Parameters
    ----------
    study
        Study that the driver writes.
    configurations
        Values of some parameters by dotted path. A configuration that was enqueued before, even by
        an earlier driver, is skipped.
    """
    enqueued = [trial.system_attrs.get(FIXED) for trial in study.get_trials(deepcopy=False)]
    for parameters in configurations:
        if dict(parameters) not in enqueued:
            study.enqueue_trial(dict(parameters))


def _open(path: Path, config: SearchConfig) -> optuna.Study:
    journal = path / JOURNAL if path.is_dir() else path
    if not journal.exists():
        raise InputError(f"search.warm_start: {journal} does not exist; restore it from a copy")
    storage = read_journal(journal)
    studies = storage.get_all_studies()
    if not studies:
        raise InputError(f"search.warm_start: {journal} holds no study; remove it")
    study = optuna.load_study(study_name=studies[0].study_name, storage=storage)
    objectives = study.user_attrs.get(BEGUN, list(config.objectives))
    if objectives != list(config.objectives):
        raise InputError(
            f"search.warm_start: {path} searched for {', '.join(objectives)}, and this search does "
            f"for {', '.join(config.objectives)}; remove it"
        )
    directions = tuple(direction.name.lower() for direction in study.directions)
    if directions != config.directions:
        raise InputError(
            f"search.warm_start: {path} has the directions {', '.join(directions)}, and this "
            f"search {', '.join(config.directions)}; remove it"
        )
    return study


def _trials_of(study: optuna.Study) -> list[FrozenTrial]:
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    # Trials that it read from other studies are added only if the configuration names those.
    return [trial for trial in ended if ORIGIN not in trial.user_attrs]


def _excess(
    trial: FrozenTrial, study: optuna.Study, name: Path, config: SearchConfig
) -> dict[str, float]:
    """Return the values of an earlier trial minus the limits of this search, by constraint."""
    before, excess = study.user_attrs.get(LIMITS, {}), {}
    for key, limit in config.constraints.items():
        if key not in trial.constraints:
            continue
        if key not in before:
            raise InputError(
                f"search.warm_start: the trials of {name} were held to a limit of {key!r} that it "
                f"does not tell; remove it, or search.constraints.{key}"
            )
        excess[key] = trial.constraints[key] + (before[key] - limit)
    return excess


def _fits(trial: FrozenTrial, space: Space, rules: Sequence[Rule]) -> bool:
    """Return True if a trial has the parameters it might have here, and meets the rules."""
    values = trial.params
    return (
        set(active(space, values)) == set(values)
        and all(space[name].contains(value) for name, value in values.items())
        and all(rule.holds(values) for rule in rules)
    )


class Search:
    """Search for hyper-parameters: an Optuna study on disk, whose trials are judged at rungs.

    A rung is an epoch at which trials are judged. Other programs may enqueue trials in the study,
    and only the driver writes anything else. Changes are on disk after :meth:`commit`; only then
    may the driver act on them.

    Parameters
    ----------
    path
        Path of the journal file. It is created if missing, and a last record that a crash left
        incomplete is removed.
    config
        Space, sampler, objectives and rungs of the search.
    num_epoch
        Number of epochs of a trial that is never stopped early.
    seed
        Seed that decides the suggestions, together with the content of the study.
    ensemble_size
        Number of good trials that the search has to find.
    foreseen
        Function of a trial's values that returns what is known before training of quantities in
        ``search.constraints``; None if nothing is.

    Raises
    ------
    InputError
        If the journal is damaged, or an earlier study in `search.warm_start` cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        config: SearchConfig,
        num_epoch: int,
        seed: int,
        ensemble_size: int = 1,
        foreseen: Foreseen | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config = config
        self._storage = StudyStorage(Path(path))
        self._study = self._open(foreseen)
        trials = self._study.get_trials(deepcopy=False)
        # A resumed driver must not draw the same numbers as the first one.
        asked = sum(trial.state != TrialState.WAITING for trial in trials)
        seed = (seed * 100_003 + asked) % 2**32
        self._sampler = sampler_of(
            config, seed, rung_epochs=config.rung_epochs(num_epoch), foreseen=foreseen
        )
        self._study.sampler = self._sampler
        self.rungs = Rungs(config, num_epoch, self._study, ensemble_size)
        self._callbacks = {name: import_class(name) for name in config.callbacks}
        self._ended: list[int] = []
        self._study.enqueue_trial = self._enqueue  # type: ignore[method-assign]
        self._count: Counter[TrialWord] = Counter()
        self.best: float | None = None
        """Best value of the first objective reported so far."""
        self._complete(trials)
        for trial in own(self._study.get_trials(deepcopy=False)):
            self._restore(trial)

    def _open(self, foreseen: Foreseen | None) -> optuna.Study:
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
            add_earlier(study, self.config, foreseen)
        enqueue(study, self.config.enqueue)
        self._storage.commit()
        return study

    def _complete(self, trials: list[FrozenTrial]) -> None:
        """Ask for the missing parameters of running trials whose suggestion was interrupted."""
        for trial in own(trials):
            lacks = set(active(self.config.space, trial.params)) != set(trial.params)
            if trial.state == TrialState.RUNNING and lacks:
                self._suggest(optuna.Trial(self._study, trial._trial_id))
        self._storage.commit()

    def _suggest(self, trial: optuna.Trial) -> dict[str, Any] | None:
        """Return the parameters of a new trial; None if its enqueued ones are wrong and it fails.

        Optuna would sample what is enqueued outside of the space. Such a trial does not count.
        """
        identity = trial._trial_id
        enqueued = self._storage.get_trial(identity).system_attrs.get(FIXED)
        wrong = None if enqueued is None else next(self.config.wrong_enqueued(enqueued), None)
        if wrong is None:
            return suggest(trial, self.config.space)
        reason = f"the enqueued configuration{wrong}"
        tell(_logger, "trial %d has failed: %s", trial.number, reason)
        self._storage.set_trial_user_attr(identity, REASON, reason)
        self._storage.set_trial_state_values(identity, TrialState.FAIL)
        return None

    def _restore(self, trial: FrozenTrial) -> None:
        self._count[WORDS[trial.state]] += 1
        passed = trial.user_attrs.get(PASSED, -1)
        for rung, epoch in enumerate(self.rungs.epochs):
            if epoch not in trial.intermediate_values:
                break
            value = trial.intermediate_values[epoch]
            self._update_best(value)
            self.rungs.restore(trial.number, rung, value, rung <= passed)
        if trial.state == TrialState.FAIL:
            self.rungs.forget(trial.number)

    @property
    def records(self) -> list[TrialRecord]:
        """Records of all trials that were requested, in the order of their numbers."""
        return [record_of(trial) for trial in own(self._study.get_trials(deepcopy=False))]

    @property
    def asked(self) -> int:
        """Number of trials that were requested so far, in whatever state they are."""
        return self._count.total()

    @property
    def states(self) -> dict[str, int]:
        """Number of requested trials by state, such as ``running``; only states that occur."""
        return {word: count for word, count in self._count.items() if count}

    def ask(self) -> TrialRecord:
        """Return the record of a new trial, with the parameter values that were enqueued or drawn.

        Trials that another program has enqueued are read first. One that does not fit the search
        fails, with the reason, and is not counted.
        """
        while True:
            self._storage.begin()
            trial = self._study.ask()
            if (values := self._suggest(trial)) is not None:
                self._count["running"] += 1
                return TrialRecord(trial.number, "running", values, None)

    def record(self, number: int) -> TrialRecord:
        """Return the record of a trial by its number: state, parameters and values."""
        return record_of(self._trial(number))

    def report(self, number: int, rung: int, outcome: Outcome) -> Verdict:
        """Record in the study what a trial has reached at a rung, and judge the trial.

        Parameters
        ----------
        number
            Number of the trial.
        rung
            Position of the rung in ``rungs.epochs``, from 0 on.
        outcome
            Objectives and excesses of the trial so far.

        Returns
        -------
        Verdict
            ``goes_on``, or the end of the trial: ``complete``, or ``stops`` early. A committed
            verdict is final: if a restarted driver reports again, a trial that continued continues.
        """
        trial = self._trial(number)
        if trial.user_attrs.get(PASSED, -1) >= rung:
            return "goes_on"
        identity, value = trial._trial_id, outcome.objectives[0]
        verdict = self.rungs.report(number, rung, value)
        # Optuna rejects Trial.report with several objectives, but displays stored values.
        epoch = self.rungs.epochs[rung]
        self._storage.set_trial_intermediate_value(identity, epoch, value)
        self._update_best(value)
        if verdict == "goes_on":
            self._storage.set_trial_user_attr(identity, PASSED, rung)
            return verdict
        for name, excess in outcome.excess.items():
            self._storage.set_trial_system_attr(identity, f"{_CONSTRAINTS_KEY}:{name}", excess)
        for name, cost in outcome.costs.items():
            self._storage.set_trial_user_attr(identity, name, cost)
        if verdict == "complete":
            self._tell(number, TrialState.COMPLETE, outcome.objectives)
        else:
            self._tell(number, TrialState.PRUNED)
        return verdict

    def fail(self, number: int, reason: str, costs: Mapping[str, float] | None = None) -> None:
        """End a trial as failed, and record the reason in a few words, such as that it diverged.

        ``costs`` are those of an :class:`Outcome`.
        """
        for name, value in {**(costs or {}), REASON: reason}.items():
            self._storage.set_trial_user_attr(self._trial(number)._trial_id, name, value)
        self.rungs.forget(number)
        self._tell(number, TrialState.FAIL)

    def commit(self) -> None:
        """Write all changes of the study to disk, then call the user's callbacks for ended trials.

        Raises
        ------
        OSError
            If the disk does not take the changes. They are kept, and the next call tries again.
        """
        self._storage.commit()
        ended, self._ended = self._ended, []
        for number in ended:
            trial = copy.deepcopy(self._trial(number))
            for name, callback in self._callbacks.items():
                try:
                    callback(self._study, trial)
                except Exception as error:  # a user's function may raise anything
                    tell(_logger, "%s after trial %d: %s", name, number, one_line(error))
        if ended:
            self._storage.commit()  # what they have enqueued

    def _enqueue(self, *arguments: Any, **options: Any) -> None:
        """Enqueue a trial for a callback, as ``Study.enqueue_trial``."""
        self._storage.begin()
        optuna.Study.enqueue_trial(self._study, *arguments, **options)

    def close(self) -> None:
        """Write the last changes of the study to disk, and end the sampler's process, if any."""
        self._close_sampler()
        self.commit()
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
        self._storage.unlock()

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
        if self._callbacks:
            self._ended.append(number)

    def _update_best(self, value: float) -> None:
        better = max if self.config.directions[0] == "maximize" else min
        self.best = value if self.best is None else better(self.best, value)

    def _trial(self, number: int) -> FrozenTrial:
        storage = self._storage
        identity = storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
        return storage.get_trial(identity)


def rehearse(config: SearchConfig) -> None:
    """Check, by an invented history of 15 trials, that a search's sampler can propose trials.

    So a sampler that does not support the objectives, constraints or space is rejected before
    anything is trained. The samplers of this package need no such rehearsal.

    Parameters
    ----------
    config
        Configuration of the search, with its sampler.

    Raises
    ------
    InputError
        If the sampler raises any error; the message has its reason.
    """
    if config.sampler in ("auto", "batched_tpe"):
        return
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objectives = len(config.objectives)
    study = optuna.create_study(directions=config.directions, sampler=RandomSampler(seed=0))

    def run(number: int) -> None:
        trial = study.ask()
        suggest(trial, config.space)
        for limit in config.constraints:
            trial.set_constraint(limit, float(number % 3 - 1))
        value = float(number)
        if number % 5 == 4 and config.rungs != "none":
            # As Search does it, for several objectives too.
            study._storage.set_trial_intermediate_value(trial._trial_id, 1, value)
            values = [value] if objectives == 1 else None
            study._storage.set_trial_state_values(trial._trial_id, TrialState.PRUNED, values)
        else:
            study.tell(trial, [value] * objectives)

    shown = 15  # samplers of Optuna are random for the first ten
    for number in range(shown):
        run(number)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.sampler = sampler_of(config, seed=0)
            run(shown)
            run(shown + 1)
    except Exception as error:  # a user's class may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ModuleNotFoundError):
            reason += f"; pip install {error.name}"
        name = config.sampler if isinstance(config.sampler, str) else config.sampler["type"]
        raise InputError(
            f"search.sampler: {name} cannot propose for this search: {reason}"
        ) from error
    finally:
        getattr(study.sampler, "close", lambda: None)()
