"""Optuna's pruners as a rule at the rungs."""

from __future__ import annotations

import copy
import warnings

import optuna

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.optuna_classes import build_pruner


class PrunerRule:
    """Asks the Optuna pruner of a configuration; a rung is a report.

    The pruner has the study itself, so attributes that it gives a trial (successive halving and
    Hyperband do) are as durable as the trial.

    Parameters
    ----------
    config
        Of the search, with a pruner and one objective.
    study
        The trials, each with the value of every rung it has reached as the intermediate value of
        the rung's epoch.
    """

    def __init__(self, config: SearchConfig, study: optuna.Study) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._pruner = build_pruner(config.pruner or {})
        self._study = study

    def prunes(self, number: int, epoch: int, value: float) -> bool:
        """Whether the pruner ends a trial after this report."""
        trial = copy.copy(self._study.get_trials(deepcopy=False)[number])
        trial.intermediate_values = {**trial.intermediate_values, epoch: value}
        return self._pruner.prune(self._study, trial)
