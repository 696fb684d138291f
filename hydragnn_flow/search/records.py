"""Records of trials, jobs of `search.objective`, and the search space in Optuna's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
"""User attribute of a trial that the study did not start: path of its study and its number there.
`another program` stands for a program that added it."""
PASSED = "passed"
"""User attribute of a trial: the last rung from which it continued, counted from 0."""

TrialWord = Literal["running", "complete", "pruned", "failed"]
WORDS: dict[TrialState, TrialWord] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class TrialRecord:
    """Trial of the search: its state, parameters and values, as the study records them."""

    number: int
    state: TrialWord
    parameters: dict[str, Any]
    """Value of each hyper-parameter by dotted path."""
    value: float | None
    """Value of the first objective at the last rung that the trial reached; None before."""
    reason: str = ""
    """Reason why the trial failed; empty if it did not."""
    values: tuple[float, ...] = ()
    """Values of all objectives of a complete trial; empty for any other."""
    feasible: bool = True
    """False if the trial is known to exceed a limit of ``search.constraints``; else True."""


def best_first(
    direction: Direction = "minimize",
) -> Callable[[TrialRecord], tuple[bool, bool, float, int]]:
    """Return a sort key for trial records that puts the best trial first.

    Trials within the limits of ``search.constraints`` come before the others, each sorted by value.
    Trials without a value come last.
    """
    sign = -1.0 if direction == "maximize" else 1.0

    def key(record: TrialRecord) -> tuple[bool, bool, float, int]:
        value = sign * (record.value or 0.0)
        return record.value is None, not record.feasible, value, record.number

    return key


@dataclass(frozen=True)
class Outcome:
    """Result of a trial so far: its objectives, and excesses over limits.

    Attributes
    ----------
    objectives
        Value of each objective of the search [n_objectives].
    excess
        Value minus limit of each quantity in ``search.constraints``; zero or less if the limit is
        kept.
    costs
        Further quantities, which the study records as user attributes of an ended trial.
    """

    objectives: tuple[float, ...]
    excess: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)


def own(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return those of a study's Optuna trials that the study itself has started.

    Trials of earlier studies and other programs, and enqueued ones that have not started or are
    wrong, are left out.
    """
    return [
        trial
        for trial in trials
        if ORIGIN not in trial.user_attrs
        and trial.state != TrialState.WAITING
        and (trial.params or trial.state != TrialState.FAIL or FIXED not in trial.system_attrs)
    ]


def record_of(trial: FrozenTrial) -> TrialRecord:
    """Convert a trial of Optuna to a record of its state, parameters and values."""
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
    )


@dataclass(frozen=True)
class Job:
    """Argument of the user's objective function: a trial, and the length to which to train it."""

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

    A value that the study already has for the trial is kept. So a trial whose suggestion a crash
    interrupted is completed rather than repeated.

    Parameters
    ----------
    trial
        New or running trial.
    space
        Domain of each parameter by dotted path. A parameter comes after those that its condition
        names.

    Returns
    -------
    dict
        Value of each parameter by dotted path.
    """
    values: dict[str, Any] = {}
    for name, parameter in space.items():
        if not parameter.exists(values):
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
    """Return Optuna's distribution of every parameter by dotted path; conditions are ignored.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path.
    """
    return {name: _distribution(parameter) for name, parameter in space.items()}


def active(space: Mapping[str, Parameter], values: Mapping[str, Any]) -> list[str]:
    """List the dotted paths of the parameters that exist in a trial, given their conditions.

    The order is that of the space.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path. A parameter comes after those that its condition
        names.
    values
        Value of each parameter by dotted path. Values of parameters that do not exist are ignored.
        A parameter whose condition names a parameter without a value does not exist.
    """
    existing: dict[str, Any] = {}
    for name, parameter in space.items():
        if parameter.exists(existing):
            existing[name] = values.get(name)
    return list(existing)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.choices)
    assert parameter.bounds is not None
    low, high = parameter.bounds
    if parameter.int is not None:
        return IntDistribution(int(low), int(high), parameter.log, int(parameter.step or 1))
    return FloatDistribution(low, high, parameter.log, parameter.step)
