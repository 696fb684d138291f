"""Optuna's pruners by their names and options."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydragnn_flow.config.domain import did_you_mean

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


def build_pruner(options: Mapping[str, Any]) -> BasePruner:
    """The pruner a configuration asks for.

    Parameters
    ----------
    options
        ``type``, the name of a class in `optuna.pruners`, and arguments of that class. The pruner
        another one wraps is again such a mapping, or its name where it needs nothing else.

    Raises
    ------
    ValueError
        If there is no such pruner, or it does not take these options.
    """
    # Only a search that asks for one needs Optuna this early.
    from optuna import pruners
    from optuna.exceptions import ExperimentalWarning

    known = [name for name in pruners.__all__ if name != "BasePruner"]
    if "type" not in options:
        raise ValueError(f"pruner needs type, one of {', '.join(known)}")
    name = options["type"]
    if name not in known:
        hint = did_you_mean(name, known) or f"; known are {', '.join(known)}"
        raise ValueError(f"pruner.type {name!r} is not one of Optuna's{hint}")
    kind = getattr(pruners, name)
    signature = inspect.signature(kind)
    takes = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    given = {key: value for key, value in options.items() if key != "type"}
    for key, value in given.items():
        if key not in takes:
            hint = did_you_mean(key, takes) or f"; it takes {', '.join(takes) or 'no options'}"
            raise ValueError(f"pruner.{key} is not an option of {name}{hint}")
        if isinstance(value, str) and value in known:
            value = {"type": value}
        if isinstance(value, Mapping):
            given[key] = build_pruner(value)
    for key in takes:
        if signature.parameters[key].default is inspect.Parameter.empty and key not in given:
            raise ValueError(f"pruner: {name} needs {key}; give it beside type")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            pruner: BasePruner = kind(**given)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"pruner: {name} refuses its options: {reason}") from None
    return pruner
