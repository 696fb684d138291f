"""The search space as Optuna suggestions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna

from hydragnn_flow.config import Parameter


def suggest(trial: optuna.Trial, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """Ask Optuna for a value of every parameter that exists in this trial.

    A value that the study already holds for the trial is returned as it is, so a trial whose
    suggestion was cut short by a crash is completed rather than repeated.

    Parameters
    ----------
    trial
        The trial, new or running.
    space
        Dotted path -> domain, conditions after the parameters they name.

    Returns
    -------
    dict
        Dotted path -> value.
    """
    values: dict[str, Any] = {}
    for name, parameter in space.items():
        if any(values.get(other) not in allowed for other, allowed in parameter.when.items()):
            continue
        if parameter.choices is not None:
            values[name] = trial.suggest_categorical(name, list(parameter.choices))
        elif parameter.int is not None:
            values[name] = trial.suggest_int(name, *parameter.int, log=parameter.log)
        elif parameter.float is not None:
            values[name] = trial.suggest_float(name, *parameter.float, log=parameter.log)
    return values
