"""Samplers and pruners by short name or options: Optuna's classes, or the user's own."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hydragnn_flow.config.base import import_class, one_line
from hydragnn_flow.config.domain import Parameter, did_you_mean

_OURS = "hydragnn_flow.search.samplers"


class NamedSampler(NamedTuple):
    """Description and options of a sampler that a configuration can choose by a short name."""

    about: str
    """Description for the table in docs/search.md."""
    options: Mapping[str, Any]
    """``type`` and arguments, as a configuration could give them."""


SAMPLERS: dict[str, NamedSampler] = {
    "auto": NamedSampler(
        "a quasi-random start; then a Gaussian process over the whole space, conditions included, "
        "in a process beside the driver; beyond 2,000 trials `batched_tpe`",
        {"type": f"{_OURS}.auto:AutoSampler"},
    ),
    "batched_tpe": NamedSampler(
        "multivariate TPE by groups, running trials counted as bad ones, one fit for a batch of "
        "suggestions",
        {"type": f"{_OURS}.batched_tpe:BatchedTPESampler"},
    ),
    "tpe": NamedSampler(
        "Optuna's TPE, multivariate, by groups, with running trials counted as bad ones",
        {"type": "TPESampler", "multivariate": True, "group": True, "constant_liar": True},
    ),
    "gp": NamedSampler("Optuna's Gaussian process", {"type": "GPSampler"}),
    "nsga2": NamedSampler("Optuna's genetic algorithm", {"type": "NSGAIISampler"}),
    "qmc": NamedSampler("Optuna's quasi-random points", {"type": "QMCSampler", "scramble": True}),
    "random": NamedSampler("random points", {"type": "RandomSampler"}),
}
"""Sampler by short name; the first is the default."""


if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

_HOMES = {
    "BasePruner": "optuna.pruners",
    "BaseSampler": "optuna.samplers",
    "BaseCrossover": "optuna.samplers.nsgaii",
    "BaseMutation": "optuna.samplers.nsgaii",
}
"""Optuna's module that exports a base class and the classes derived from it, by base class."""


def build_pruner(options: Mapping[str, Any]) -> BasePruner:
    """Build the Optuna pruner (rule that stops trials early) that a configuration names.

    Parameters
    ----------
    options
        ``type``, the name of a class in `optuna.pruners` or ``module:Class``, and arguments of that
        class. An argument that is itself a pruner is again such a mapping, or its name where it
        needs nothing else.

    Raises
    ------
    ValueError
        If there is no such pruner, or it does not take these options.
    """
    return cast("BasePruner", _built("pruner", "BasePruner", options, {}))


def build_sampler(
    chosen: str | Mapping[str, Any],
    space: Mapping[str, Parameter],
    seed: int,
    rung_epochs: Sequence[int] = (1,),
) -> BaseSampler:
    """Build the Optuna sampler (method that proposes trials) that a configuration names.

    Parameters
    ----------
    chosen
        Key of :data:`SAMPLERS`, or options as for `build_pruner`, whose ``type`` names a class of
        `optuna.samplers` or is a key of :data:`SAMPLERS`.
    space
        Domain of each parameter by dotted path; given to every class that takes ``space``.
    seed
        Random seed; given to every class that takes ``seed``.
    rung_epochs
        Epochs at which trials are judged; given to every class that takes ``rung_epochs``.

    Raises
    ------
    ValueError
        If there is no such sampler, or it does not take these options.
    """
    given = {"type": chosen} if isinstance(chosen, str) else chosen
    named = SAMPLERS.get(str(given.get("type")))
    options = {**named.options, **given, "type": named.options["type"]} if named else given
    # Conditional parameters are sampled independently; Optuna's warning of it is no news.
    supplied = {
        "space": space,
        "seed": seed,
        "rung_epochs": rung_epochs,
        "warn_independent_sampling": False,
    }
    return cast("BaseSampler", _built("sampler", "BaseSampler", options, supplied))


def _built(key: str, base: str, options: Mapping[str, Any], supplied: Mapping[str, Any]) -> object:
    """Build an object of a class derived from ``base``, a key of `_HOMES`.

    ``key`` is for messages; ``options`` has ``type`` and arguments. Arguments in ``supplied`` go to
    every class that takes them; ``options`` may override them, but not ``seed`` and ``space``.
    """
    kind = _found(key, base, options)
    takes = inspect.signature(kind).parameters
    given = {
        name: _argument(f"{key}.{name}", takes.get(name), value, supplied)
        for name, value in options.items()
        if name != "type"
    }
    if twice := {"seed", "space"} & supplied.keys() & given.keys():
        raise ValueError(f"{key}.{min(twice)} follows from the run's {min(twice)}; remove it")
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        for name in given.keys() - takes.keys():
            hint = did_you_mean(name, takes) or "; remove it"
            raise ValueError(f"{key}.{name} is not an option of {kind.__name__}{hint}")
    for name, parameter in takes.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and name not in {*given, *supplied}:
            raise ValueError(f"{key}: {kind.__name__} needs {name}; give it beside type")
    try:
        with warnings.catch_warnings():
            # The user chose class and options by name, so Optuna's warnings of them are noise.
            warnings.simplefilter("ignore")
            return kind(**{name: supplied[name] for name in supplied if name in takes} | given)
    except Exception as error:
        raise ValueError(f"{key}: {kind.__name__} refuses its options: {one_line(error)}") from None


def _argument(
    key: str, parameter: inspect.Parameter | None, value: Any, supplied: Mapping[str, Any]
) -> Any:
    """Return the value of an argument, as an object if the parameter takes one of Optuna's.

    The object is built from a mapping or from the name of a class; other values stay unchanged.
    """
    annotation = "" if parameter is None else str(parameter.annotation)
    base = next((base for base in _HOMES if base in annotation), None)
    if base is None or not isinstance(value, str | Mapping):
        return value
    return _built(key, base, {"type": value} if isinstance(value, str) else value, supplied)


def _found(key: str, base: str, options: Mapping[str, Any]) -> Any:
    """Return the class, derived from ``base``, that the item ``type`` of ``options`` names."""
    # Imported here, as only a search that names such a class needs Optuna this early.
    home = importlib.import_module(_HOMES[base])
    exported = {name: getattr(home, name) for name in home.__all__ if name != base}
    parent = getattr(home, base)
    known = [
        name
        for name, kind in exported.items()
        if inspect.isclass(kind) and issubclass(kind, parent) and not inspect.isabstract(kind)
    ]
    if "type" not in options:
        raise ValueError(f"{key} needs type, one of {', '.join(known)}, or module:Class")
    name = options["type"]
    if isinstance(name, str) and ":" in name:
        try:
            kind = import_class(name)
        except ValueError as error:
            raise ValueError(f"{key}.type: {error}") from None
        if not (inspect.isclass(kind) and issubclass(kind, parent)):
            raise ValueError(f"{key}.type: {name} is not derived from optuna's {parent.__name__}")
        return kind
    if name not in known:
        hint = did_you_mean(name, known) or f"; known are {', '.join(known)}, or module:Class"
        raise ValueError(f"{key}.type {name!r} is not one of Optuna's{hint}")
    return exported[name]
