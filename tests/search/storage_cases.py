"""Contents of storages, compared by the tests of the study's storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial


def optunas(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def content(storage: BaseStorage, times: bool = True) -> list[Any]:
    """Studies and trials, in a form that tells True from 1 and takes NaN for NaN."""
    found = []
    for study in storage.get_all_studies():
        study_id = study._study_id
        trials = storage.get_all_trials(study_id, deepcopy=False)
        fields = [dict(sorted(trial.__dict__.items())) for trial in trials]
        for field in fields if not times else ():
            field["_datetime_start"] = field["_datetime_start"] is None
            field["datetime_complete"] = field["datetime_complete"] is None
        attributes = (study.user_attrs, study.system_attrs)
        found.append(repr((study_id, study.study_name, study.directions, attributes, fields)))
    return found


def every_state(storage: BaseStorage) -> None:
    """Trials of all states and changes of all kinds; commits in between where there are any."""
    commit = getattr(storage, "commit", lambda: None)
    study = optuna.create_study(
        storage=storage, study_name="search", sampler=optuna.samplers.RandomSampler(seed=1)
    )
    study.set_user_attr("note", "größer")
    commit()
    study.enqueue_trial({"x": 0.5})
    study.enqueue_trial({"x": 0.25})
    trials = [study.ask() for _ in range(6)]
    for trial in trials[:4]:
        trial.suggest_float("x", 0, 1)
    commit()
    for trial in trials[:5]:
        trial.suggest_categorical("c", ["a", "b"])
        trial.report(1 / (1 + trial.number), 2)
    study.tell(trials[0], 0.1)
    commit()
    study.tell(trials[1], state=TrialState.PRUNED)
    trials[2].set_user_attr("reason", "diverged: loss is NaN")
    study.tell(trials[2], state=TrialState.FAIL)
    trials[3].set_constraint("memory", -1.0)
    commit()
    study.enqueue_trial({"x": 0.75})
    commit()
    popped = study.ask()
    commit()
    popped.suggest_float("x", 0, 1)
    study.add_trial(create_trial(value=3.0))
    study.enqueue_trial({"x": 0.125})
    commit()
