"""Search space in Optuna's terms: distributions, suggestions, conditions."""

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
    """Ask Optuna for a value of every parameter that exists in a trial.

    A value that the study already has for the trial is kept, so that a trial whose suggestion was
    interrupted by a crash is completed rather than repeated.

    Parameters
    ----------
    trial
        New or running trial.
    space
        Domain of each parameter by dotted path; conditions follow the parameters they name.

    Returns
    -------
    dict
        Value of each parameter by dotted path.
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
    """Distribution of every parameter, as in :func:`suggest`, without conditions.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path.
    """
    return {name: _distribution(parameter) for name, parameter in space.items()}


def active(space: Mapping[str, Parameter], values: Mapping[str, Any]) -> list[str]:
    """List the parameters that exist in a trial, in the order of the space.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path; conditions follow the parameters they name.
    values
        Value of each parameter by dotted path. Values of absent parameters are ignored; without a
        value, nothing that depends on it exists.
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
