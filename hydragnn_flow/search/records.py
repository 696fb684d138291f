"""Records of trials as plain values."""

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
