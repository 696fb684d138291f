"""The study's file, in the format of Optuna's ``JournalStorage``: a JSON record per line.

Each record says what changed; all of them, applied in order, are the study. A study and a trial are
known by the number of those created before them, so nothing can be left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.storages import InMemoryStorage
from optuna.storages.journal._storage import JournalOperation
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.errors import InputError

WRITER = "hydragnn_flow"
"""Optuna's storages tell their own records by a random name; a short one takes fewer bytes."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Distributions:
    """One object and one text per distribution, however many trials have it.

    To write and read them is most of the work on a record, and each suggestion makes a new object.
    """

    def __init__(self) -> None:
        self._known: dict[str, BaseDistribution] = {}
        self._texts: dict[int, str] = {}
        self._parsed: dict[str, BaseDistribution] = {}

    def shared(self, distribution: BaseDistribution) -> BaseDistribution:
        """The object that stands for this distribution and all that are equal to it."""
        # Optuna calls the choices True, 1 and 1.0 equal; their texts are not.
        key = f"{type(distribution).__name__}{distribution.__dict__}"
        known = self._known.setdefault(key, distribution)
        if known is distribution and id(known) not in self._texts:
            self._texts[id(known)] = distribution_to_json(known)
        return known

    def text(self, distribution: BaseDistribution) -> str:
        """Its JSON."""
        return self._texts[id(self.shared(distribution))]

    def parse(self, text: str) -> BaseDistribution:
        """The object for a JSON text."""
        distribution = self._parsed.get(text)
        if distribution is None:
            distribution = self._parsed[text] = self.shared(json_to_distribution(text))
        return distribution


def record(operation: JournalOperation, **fields: Any) -> str:
    """A record's line, without its end.

    Raises
    ------
    TypeError
        If a value cannot be written as JSON.
    """
    return _encode({"op_code": int(operation), "worker_id": WRITER, **fields})


def creation(study_id: int, trial: FrozenTrial, distributions: Distributions) -> str:
    """The record of a trial's creation, with all it has by now."""
    single = trial.values is None or len(trial.values) == 1
    fields: dict[str, Any] = {
        "study_id": study_id,
        "datetime_start": utc(trial.datetime_start),
        "state": int(trial.state),
        "value": trial.values[0] if trial.values and single else None,
        "values": None if single else trial.values,
        "distributions": {
            name: distributions.text(domain) for name, domain in trial.distributions.items()
        },
        "params": {
            name: trial.distributions[name].to_internal_repr(value)
            for name, value in trial.params.items()
        },
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
        "intermediate_values": trial.intermediate_values,
    }
    if trial.datetime_complete is not None:
        fields["datetime_complete"] = utc(trial.datetime_complete)
    return record(JournalOperation.CREATE_TRIAL, **fields)


def utc(moment: datetime | None) -> str | None:
    """Optuna's local time as the journal has it."""
    if moment is None:
        return None
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def read_journal(path: Path) -> InMemoryStorage:
    """What a journal holds at this moment; somebody else may be appending to it.

    Changes to what is returned stay in memory.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    storage = InMemoryStorage()
    fill(storage, path, Distributions())
    return storage


def fill(storage: InMemoryStorage, path: Path, distributions: Distributions) -> None:
    """Apply a journal's complete records to an empty storage.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """
    replay = _Replay(storage, distributions)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # still being written
            try:
                replay.apply(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
                raise InputError(
                    f"{path}: line {number} is damaged ({type(error).__name__}: {error}); restore "
                    f"the file from a copy, or make it anew with `hydragnn-flow rebuild`"
                ) from None


class _Replay:
    """Applies records to a storage that nobody else looks at yet.

    As Optuna does, it passes over what was no longer possible when its record was written: of
    several writers each learns only later what the others did.
    """

    def __init__(self, storage: InMemoryStorage, distributions: Distributions) -> None:
        self._storage, self._distributions = storage, distributions
        self._apply: dict[int, Callable[[dict[str, Any]], None]] = {
            JournalOperation.CREATE_STUDY: self._create_study,
            JournalOperation.DELETE_STUDY: self._delete_study,
            JournalOperation.SET_STUDY_USER_ATTR: self._set_study_user_attr,
            JournalOperation.SET_STUDY_SYSTEM_ATTR: self._set_study_system_attr,
            JournalOperation.CREATE_TRIAL: self._create_trial,
            JournalOperation.SET_TRIAL_PARAM: self._set_param,
            JournalOperation.SET_TRIAL_STATE_VALUES: self._set_state_values,
            JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE: self._set_intermediate_value,
            JournalOperation.SET_TRIAL_USER_ATTR: self._set_user_attr,
            JournalOperation.SET_TRIAL_SYSTEM_ATTR: self._set_system_attr,
            # Only Optuna's port to Rust writes it; Optuna passes it over.
            JournalOperation.DISCARD_TRIALS: lambda record: None,
        }

    def apply(self, record: dict[str, Any]) -> None:
        self._apply[record["op_code"]](record)

    def _create_study(self, record: dict[str, Any]) -> None:
        name, directions = record["study_name"], [StudyDirection(d) for d in record["directions"]]
        if name not in self._storage._study_name_to_id:
            # Not the storage's own method: it would make a record of what comes from one.
            InMemoryStorage.create_new_study(self._storage, directions, name)

    def _delete_study(self, record: dict[str, Any]) -> None:
        if record["study_id"] in self._storage._studies:
            InMemoryStorage.delete_study(self._storage, record["study_id"])

    def _set_study_user_attr(self, record: dict[str, Any]) -> None:
        study = self._storage._studies.get(record["study_id"])
        if study is not None:
            study.user_attrs = {**study.user_attrs, **record["user_attr"]}

    def _set_study_system_attr(self, record: dict[str, Any]) -> None:
        study = self._storage._studies.get(record["study_id"])
        if study is not None:
            study.system_attrs = {**study.system_attrs, **record["system_attr"]}

    def _create_trial(self, record: dict[str, Any]) -> None:
        study_id = record["study_id"]
        study = self._storage._studies.get(study_id)
        if study is None:
            return
        parse = self._distributions.parse
        domains = {name: parse(text) for name, text in record.get("distributions", {}).items()}
        for name, domain in domains.items():
            study.param_distribution.setdefault(name, domain)
        trial_id = self._storage._max_trial_id = self._storage._max_trial_id + 1
        trial = FrozenTrial(
            number=len(study.trials),
            trial_id=trial_id,
            state=TrialState(record.get("state", TrialState.RUNNING)),
            value=record.get("value"),
            values=record.get("values"),
            params={
                name: domains[name].to_external_repr(value)
                for name, value in record.get("params", {}).items()
            },
            distributions=domains,
            user_attrs=record.get("user_attrs", {}),
            system_attrs=record.get("system_attrs", {}),
            intermediate_values={
                int(step): value for step, value in record.get("intermediate_values", {}).items()
            },
            datetime_start=_local(record["datetime_start"]),
            datetime_complete=_local(record.get("datetime_complete")),
        )
        study.trials.append(trial)
        self._storage._trial_id_to_study_id_and_number[trial_id] = (study_id, trial.number)
        self._storage._update_cache(trial_id, study_id)

    def _trial(self, record: dict[str, Any]) -> FrozenTrial | None:
        """The trial of a record, where it can still change."""
        place = self._storage._trial_id_to_study_id_and_number.get(record["trial_id"])
        if place is None:
            return None
        trial = self._storage._studies[place[0]].trials[place[1]]
        return None if trial.state.is_finished() else trial

    def _set_param(self, record: dict[str, Any]) -> None:
        name, domain = record["param_name"], self._distributions.parse(record["distribution"])
        value = domain.to_external_repr(record["param_value_internal"])
        trial = self._trial(record)
        if trial is None:
            return
        study_id, _ = self._storage._trial_id_to_study_id_and_number[trial._trial_id]
        first = self._storage._studies[study_id].param_distribution.setdefault(name, domain)
        if first is not domain:
            try:
                check_distribution_compatibility(first, domain)
            except ValueError:
                return
        trial.params[name] = value
        trial.distributions[name] = domain

    def _set_state_values(self, record: dict[str, Any]) -> None:
        state, values = TrialState(record["state"]), record["values"]
        trial = self._trial(record)
        if trial is None or state == trial.state == TrialState.RUNNING:
            return
        if state == TrialState.RUNNING:
            trial.datetime_start = _local(record["datetime_start"])
        elif state.is_finished():
            trial.datetime_complete = _local(record["datetime_complete"])
        trial.state = state
        if values is not None:
            trial.values = values
        study_id, _ = self._storage._trial_id_to_study_id_and_number[trial._trial_id]
        self._storage._update_cache(trial._trial_id, study_id)

    def _set_intermediate_value(self, record: dict[str, Any]) -> None:
        step, value = record["step"], record["intermediate_value"]
        trial = self._trial(record)
        if trial is not None:
            trial.intermediate_values[step] = value

    def _set_user_attr(self, record: dict[str, Any]) -> None:
        attributes, trial = record["user_attr"], self._trial(record)
        if trial is not None:
            trial.user_attrs.update(attributes)

    def _set_system_attr(self, record: dict[str, Any]) -> None:
        attributes, trial = record["system_attr"], self._trial(record)
        if trial is not None:
            trial.system_attrs.update(attributes)


def _local(text: str | None) -> datetime | None:
    """The journal's time as Optuna has it in memory."""
    return None if text is None else datetime.fromisoformat(text).astimezone().replace(tzinfo=None)
