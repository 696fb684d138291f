"""The trials of a run, read without writing to its study."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config.warm_start import JOURNAL
from hydragnn_flow.search.journal import read_journal
from hydragnn_flow.search.records import ORIGIN, TrialRecord, record_of

STUDY = "search"
"""Name of the study in a run's journal."""


def read_trials(run_directory: Path) -> list[TrialRecord]:
    """The trials of a run directory, without writing to it; none before the search began."""
    path = run_directory / JOURNAL
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = read_journal(path)
    if not has_study(storage):
        return []
    study = optuna.load_study(study_name=STUDY, storage=storage)
    return [record_of(trial) for trial in own(study.get_trials(deepcopy=False))]


def own(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Trials that this study has asked for."""
    return [
        trial
        for trial in trials
        if ORIGIN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def has_study(storage: optuna.storages.BaseStorage) -> bool:
    """Whether the journal's first record is whole."""
    return bool(storage.get_all_studies())
