"""A study in memory whose changes are put on disk together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import InMemoryStorage
from optuna.storages.journal._storage import JournalOperation
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.files import AppendOnly, drop_torn_record, is_there
from hydragnn_flow.search.journal import Distributions, creation, fill, record, utc


class StudyStorage(InMemoryStorage):
    """Optuna's storage in memory, with a journal that all of Optuna's tools read.

    Every change is seen at once and is on disk after :meth:`commit`, which is one append and one
    fsync however many there were. A trial that was created since the last one is a single record
    with all it has by then. What is acted on must be committed before.

    It is the journal's only writer: who opens it holds the run directory's lock.

    Parameters
    ----------
    path
        The journal; made if absent, and cut where a crash tore its last record.

    Raises
    ------
    InputError
        If a complete record cannot be read.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        drop_torn_record(path)
        self._file = AppendOnly(path)
        self._distributions = Distributions()
        # Lines, and the ids of trials whose line is written as late as possible.
        self._collected: list[str | int] = []
        self._new: set[int] = set()
        if is_there(path):
            fill(self, path, self._distributions)

    def __reduce__(self) -> str:
        raise TypeError("a study's journal has one writer: its storage stays with the driver")

    def __enter__(self) -> StudyStorage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.commit()

    def commit(self) -> None:
        """Put everything since the last commit on disk.

        Raises
        ------
        OSError
            If the disk does not take it. The journal is then as it was before, what was to be
            written is kept, and the next commit tries again.
        """
        with self._lock:
            if not self._collected:
                return
            lines = [self._line(change) for change in self._collected]
            self._file.append("".join(f"{line}\n" for line in lines).encode())
            self._collected.clear()
            self._new.clear()

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        with self._lock:
            study_id = super().create_new_study(directions, study_name)
            self._collected.append(
                record(
                    JournalOperation.CREATE_STUDY,
                    study_name=self._studies[study_id].name,
                    directions=[int(direction) for direction in directions],
                )
            )
            return study_id

    def delete_study(self, study_id: int) -> None:
        with self._lock:
            # Later there is no trial to make a line of, but its number is taken all the same.
            self._collected = [self._line(change) for change in self._collected]
            self._new.clear()
            super().delete_study(study_id)
            self._collected.append(record(JournalOperation.DELETE_STUDY, study_id=study_id))

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        operation = JournalOperation.SET_STUDY_USER_ATTR
        with self._lock:
            line = record(operation, study_id=study_id, user_attr={key: value})
            super().set_study_user_attr(study_id, key, value)
            self._collected.append(line)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        operation = JournalOperation.SET_STUDY_SYSTEM_ATTR
        with self._lock:
            line = record(operation, study_id=study_id, system_attr={key: value})
            super().set_study_system_attr(study_id, key, value)
            self._collected.append(line)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        with self._lock:
            if template_trial is not None:
                creation(study_id, template_trial, self._distributions)  # as long as it can fail
            trial_id = super().create_new_trial(study_id, template_trial)
            if template_trial is not None:
                self._share_distributions(study_id, trial_id)
            self._new.add(trial_id)
            self._collected.append(trial_id)
            return trial_id

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        with self._lock:
            distribution = self._distributions.shared(distribution)
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            if trial_id not in self._new:
                self._collected.append(
                    record(
                        JournalOperation.SET_TRIAL_PARAM,
                        trial_id=trial_id,
                        param_name=param_name,
                        param_value_internal=param_value_internal,
                        distribution=self._distributions.text(distribution),
                    )
                )

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        with self._lock:
            if not super().set_trial_state_values(trial_id, state, values):
                return False
            if trial_id not in self._new:
                fields: dict[str, Any] = {}
                trial = self._get_trial(trial_id)
                if state == TrialState.RUNNING:
                    fields["datetime_start"] = utc(trial.datetime_start)
                elif state.is_finished():
                    fields["datetime_complete"] = utc(trial.datetime_complete)
                self._collected.append(
                    record(
                        JournalOperation.SET_TRIAL_STATE_VALUES,
                        trial_id=trial_id,
                        state=int(state),
                        values=None if values is None else list(values),
                        **fields,
                    )
                )
            return True

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        with self._lock:
            super().set_trial_intermediate_value(trial_id, step, intermediate_value)
            if trial_id not in self._new:
                self._collected.append(
                    record(
                        JournalOperation.SET_TRIAL_INTERMEDIATE_VALUE,
                        trial_id=trial_id,
                        step=step,
                        intermediate_value=intermediate_value,
                    )
                )

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        operation = JournalOperation.SET_TRIAL_USER_ATTR
        with self._lock:
            # Made even where it is not needed: a value that is no JSON must not spoil a commit.
            line = record(operation, trial_id=trial_id, user_attr={key: value})
            super().set_trial_user_attr(trial_id, key, value)
            if trial_id not in self._new:
                self._collected.append(line)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        operation = JournalOperation.SET_TRIAL_SYSTEM_ATTR
        with self._lock:
            line = record(operation, trial_id=trial_id, system_attr={key: value})
            super().set_trial_system_attr(trial_id, key, value)
            if trial_id not in self._new:
                self._collected.append(line)

    def _line(self, change: str | int) -> str:
        if isinstance(change, str):
            return change
        study_id, _ = self._trial_id_to_study_id_and_number[change]
        return creation(study_id, self._get_trial(change), self._distributions)

    def _share_distributions(self, study_id: int, trial_id: int) -> None:
        """Let a ready-made trial's distributions count as those of a suggestion do.

        Optuna judges later suggestions by them as soon as the trial comes from a file.
        """
        trial, known = self._get_trial(trial_id), self._studies[study_id].param_distribution
        trial.distributions = {
            name: self._distributions.shared(domain) for name, domain in trial.distributions.items()
        }
        for name, domain in trial.distributions.items():
            known.setdefault(name, domain)
