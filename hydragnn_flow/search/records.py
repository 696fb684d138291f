"""Records of trials, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config.search import Direction

REASON = "reason"
FIXED = "fixed_params"
"""System attribute in which Optuna keeps the parameters of an enqueued trial."""
ORIGIN = "origin"
"""User attribute of a trial that another study has made: where it was read."""
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
    """A trial as the study records it."""

    number: int
    state: TrialWord
    parameters: dict[str, Any]
    value: float | None
    """Value of the first objective, at the last rung."""
    reason: str = ""
    """Why a failed trial failed."""
    values: tuple[float, ...] = ()
    """Values of all objectives, if the trial has ended."""
    feasible: bool = True
    """Whether it kept the limits of ``search.constraints``, as far as is known."""
    waits: bool = False
    """Whether, though running, it waits at a rung to be promoted."""


def best_first(
    direction: Direction = "minimize",
) -> Callable[[TrialRecord], tuple[bool, bool, float, int]]:
    """Key to sort by: the best value first, after all that kept the limits what did not."""
    sign = -1.0 if direction == "maximize" else 1.0

    def key(record: TrialRecord) -> tuple[bool, bool, float, int]:
        value = sign * (record.value or 0.0)
        return record.value is None, not record.feasible, value, record.number

    return key


@dataclass(frozen=True)
class Outcome:
    """Objectives, limits and curve of a trial so far.

    Attributes
    ----------
    objectives
        A value for each objective of the search.
    excess
        By how much each constrained quantity is above its limit; at most zero if it is kept.
    curve
        (epoch, criterion) of every epoch so far, or the validation loss where that is the first
        objective.
    """

    objectives: tuple[float, ...]
    excess: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[Sequence[float]] = ()


def own(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Trials that the study has asked for itself."""
    return [
        trial
        for trial in trials
        if ORIGIN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def waits(trial: FrozenTrial) -> bool:
    """Whether a trial of a study that promotes waits: Optuna calls it running, but nothing runs."""
    reported = len(trial.intermediate_values)
    return trial.state == TrialState.RUNNING and reported > trial.user_attrs.get(PASSED, -1) + 1


def as_pruned(trial: FrozenTrial) -> FrozenTrial:
    """A copy of a trial that waits, as if it had been pruned there."""
    pruned = copy(trial)
    pruned.state = TrialState.PRUNED
    pruned.value = trial.intermediate_values[max(trial.intermediate_values)]
    return pruned


def record_of(trial: FrozenTrial) -> TrialRecord:
    """The record of a trial that has been asked for."""
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
