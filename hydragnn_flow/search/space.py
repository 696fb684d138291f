"""The search space as Optuna sees it: distributions, suggestions, conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hydragnn_flow.config import Parameter


def suggest(trial: optuna.Trial, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """Ask Optuna for a value of every parameter that exists in this trial.

    A value that the study already has for the trial is returned as it is, so a trial whose
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
        if not _exists(parameter, values):
            continue
        if parameter.choices is not None:
            values[name] = trial.suggest_categorical(name, parameter.choices)
        elif parameter.bounds is not None:
            low, high = parameter.bounds
            log, step = parameter.log, parameter.step
            if parameter.int is not None:
                values[name] = trial.suggest_int(
                    name, int(low), int(high), log=log, step=int(step or 1)
                )
            else:
                values[name] = trial.suggest_float(name, low, high, log=log, step=step)
    return values


def distributions(space: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """The distribution of every parameter, as `suggest` asks for it, conditions left out.

    Parameters
    ----------
    space
        Dotted path -> domain.
    """
    return {name: _distribution(parameter) for name, parameter in space.items()}


def active(space: Mapping[str, Parameter], values: Mapping[str, Any]) -> list[str]:
    """The parameters that exist in a trial, in the order of the space.

    Parameters
    ----------
    space
        Dotted path -> domain, conditions after the parameters they name.
    values
        Dotted path -> value. Values of parameters that do not exist change nothing, and where one
        is missing, nothing exists that depends on it.
    """
    existing: dict[str, Any] = {}
    for name, parameter in space.items():
        if _exists(parameter, existing):
            existing[name] = values.get(name)
    return list(existing)


def _exists(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    return all(values.get(other) in allowed for other, allowed in parameter.when.items())


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    assert parameter.bounds is not None
    low, high = parameter.bounds
    if parameter.int is not None:
        return IntDistribution(int(low), int(high), parameter.log, int(parameter.step or 1))
    return FloatDistribution(low, high, parameter.log, parameter.step)
