"""Records of trials, jobs of `search.objective`, and the search space in Optuna's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import Parameter
from hydragnn_flow.config.search import Direction

REASON = "reason"
FIXED = "fixed_params"
"""System attribute in which Optuna keeps the parameters of an enqueued trial."""
ORIGIN = "origin"
"""User attribute of a trial from another study: the place it was read from."""
PASSED = "passed"
"""User attribute: the last rung from which the trial continued."""
PROMOTES = "promotes"
"""User attribute of a study whose trials wait at each rung to be promoted."""

TrialWord = Literal["running", "complete", "pruned", "failed"]
WORDS: dict[TrialState, TrialWord] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class TrialRecord:
    """Trial as recorded in the study."""

    number: int
    state: TrialWord
    parameters: dict[str, Any]
    value: float | None
    """Value of the first objective at the last rung."""
    reason: str = ""
    """Reason why a failed trial failed."""
    values: tuple[float, ...] = ()
    """Values of all objectives, if the trial has ended."""
    feasible: bool = True
    """False if the trial is known to exceed a limit of ``search.constraints``."""
    waits: bool = False
    """True if the trial waits at a rung to be promoted; its state is still running."""


def best_first(
    direction: Direction = "minimize",
) -> Callable[[TrialRecord], tuple[bool, bool, float, int]]:
    """Sort key: best value first, and trials within the limits before all others."""
    sign = -1.0 if direction == "maximize" else 1.0

    def key(record: TrialRecord) -> tuple[bool, bool, float, int]:
        value = sign * (record.value or 0.0)
        return record.value is None, not record.feasible, value, record.number

    return key


@dataclass(frozen=True)
class Outcome:
    """Objectives, limits and learning curve of a trial so far.

    Attributes
    ----------
    objectives
        Value of each objective of the search.
    excess
        Difference of each constrained quantity from its limit; at most zero if it is kept.
    curve
        (epoch, criterion) of every epoch so far; the validation loss instead if that is the first
        objective.
    """

    objectives: tuple[float, ...]
    excess: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[Sequence[float]] = ()


def own(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Filter the trials that the study asked for itself."""
    return [
        trial
        for trial in trials
        if ORIGIN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def waits(trial: FrozenTrial) -> bool:
    """True if a trial waits to be promoted: Optuna calls it running, but nothing runs."""
    reported = len(trial.intermediate_values)
    return trial.state == TrialState.RUNNING and reported > trial.user_attrs.get(PASSED, -1) + 1


def as_pruned(trial: FrozenTrial) -> FrozenTrial:
    """Copy a waiting trial as if it had been pruned at its rung."""
    pruned = copy(trial)
    pruned.state = TrialState.PRUNED
    pruned.value = trial.intermediate_values[max(trial.intermediate_values)]
    return pruned


def record_of(trial: FrozenTrial) -> TrialRecord:
    """Make the record of a trial that was asked for."""
    last = trial.last_step
    ended = trial.state == TrialState.COMPLETE
    return TrialRecord(
        number=trial.number,
        state=WORDS[trial.state],
        parameters=dict(trial.params),
        value=trial.intermediate_values[last] if last is not None else None,
        reason=trial.user_attrs.get(REASON, ""),
        values=tuple(trial.values) if ended and trial.values else (),
        feasible=all(excess <= 0 for excess in trial.constraints.values()),
        waits=waits(trial),
    )


@dataclass(frozen=True)
class Job:
    """One call of an objective: a trial, up to a number of epochs."""

    number: int
    """Number of the trial."""
    parameters: Mapping[str, Any]
    """Values of its hyper-parameters, by the names of `search.space`."""
    budget: int
    """Total length of the trial in the unit of `search.epochs`, earlier calls included."""
    directory: Path
    """Folder of the trial, the same in each of its calls. Checkpoints in it let a call continue
    where an earlier call, or a killed one, stopped."""
    seed: int
    """Seed of the trial."""


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
