"""Searches half-way: studies with thousands of finished and running trials, made at once."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.samplers._tpe.sampler import _RELATIVE_PARAMS_KEY
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.space import suggest

SPACE = {
    "Architecture.mpnn_type": Parameter(
        choices=("PNA", "CGCNN", "SchNet", "DimeNet", "EGNN", "GIN")
    ),
    "Architecture.num_conv_layers": Parameter(int=(2, 6)),
    "Architecture.hidden_dim": Parameter(int=(100, 3000)),
    "Architecture.num_headlayers": Parameter(int=(2, 4)),
    "Architecture.dim_headlayers": Parameter(int=(300, 2000)),
    "Training.learning_rate": Parameter(float=(1e-5, 3e-3), log=True),
    "Training.batch_size": Parameter(int=(16, 256), log=True),
}
"""HydraGNN's published space, with the sizes of its largest searches."""


def half_way(sampler: BaseSampler, finished: int, running: int) -> optuna.Study:
    """A study in memory; the youngest trials are running, and all were drawn at random.

    Running trials have what Optuna's own TPE leaves with them, where it is the sampler: what it
    chose, which it reads again at every suggestion.
    """
    study = optuna.create_study(sampler=sampler)
    for trial in trials(finished, running, notes=isinstance(sampler, TPESampler)):
        study._storage.create_new_trial(study._study_id, trial)
    return study


def trials(finished: int, running: int, notes: bool = False) -> list[FrozenTrial]:
    """Random trials of :data:`SPACE`, with a random value where finished."""
    source = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    rng = np.random.default_rng(0)
    model = source.ask()
    suggest(model, SPACE)
    domains = model._cached_frozen_trial.distributions
    columns: dict[str, list[Any]] = {}
    count, now = finished + running, datetime.datetime(2026, 1, 1)
    for name, domain in SPACE.items():
        if domain.choices is not None:
            columns[name] = [
                domain.choices[i] for i in rng.integers(len(domain.choices), size=count)
            ]
            continue
        low, high = domain.int or domain.float or (0, 0)
        drawn = rng.uniform(size=count)
        drawn = low * (high / low) ** drawn if domain.log else low + (high - low) * drawn
        columns[name] = drawn.round().astype(int).tolist() if domain.int else drawn.tolist()
    values = rng.random(finished).tolist()
    found = []
    for number in range(count):
        params = {name: column[number] for name, column in columns.items()}
        ended = number < finished
        found.append(
            FrozenTrial(
                number=number,
                state=TrialState.COMPLETE if ended else TrialState.RUNNING,
                value=values[number] if ended else None,
                datetime_start=now,
                datetime_complete=now if ended else None,
                params=params,
                distributions=domains,
                user_attrs={},
                system_attrs={f"{_RELATIVE_PARAMS_KEY}:0": json.dumps(params)} if notes else {},
                intermediate_values={},
                trial_id=number,
            )
        )
    return found
