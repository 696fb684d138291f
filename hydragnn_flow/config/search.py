"""Schema of `search`: space, sampler, objectives and rungs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from hydragnn_flow.config.base import Section, check_callable
from hydragnn_flow.config.domain import (
    Parameter,
    Rule,
    Scalar,
    check_conditions,
    did_you_mean,
    satisfying,
)
from hydragnn_flow.config.optuna_classes import SAMPLERS, build_pruner, build_sampler

__all__ = ["Parameter", "Scalar", "SearchConfig"]

if TYPE_CHECKING:
    SamplerName = str
else:
    SamplerName = Literal[tuple(SAMPLERS)]
CRITERION = "val_error"
LOSSES = ("val_loss", "train_loss")
PARAMETERS = "parameters"
COSTS = ("throughput", "seconds", "joules", PARAMETERS)
MAXIMISED = ("throughput",)
"""Objectives that are maximised; all others are minimised."""
Objectives = Annotated[tuple[str, ...], Field(min_length=1, max_length=3)]
STRUCTURES = 1000
"""Number of structures whose training the objectives `seconds` and `joules` measure, if no
objective is a loss or an error."""
WARM_UP_STEPS = 5
"""Number of steps at the beginning of a segment (a job of training) that are not measured: kernels
are chosen, memory is allocated, and ranks learn the order in which gradients come."""
LIMITS = ("peak_memory_gib", "seconds", "gcd_hours", "joules", PARAMETERS)


Direction = Literal["minimize", "maximize"]
"""Direction of an objective, as Optuna calls it."""


def direction_of(objective: str) -> Direction:
    """Return the direction in which an objective improves: ``minimize`` or ``maximize``."""
    return "maximize" if objective in MAXIMISED else "minimize"


Unit = Literal["steps", "samples"]


class TrainingBudget(Section):
    """`search.budget`: training length of a whole trial, in steps or structures.

    A whole trial is one that is not stopped early. Exactly one key is given. The budget is divided
    evenly into the ``Training.num_epoch`` epochs of a trial. A trial is validated at the end of
    each epoch, and judged at the end of some epochs (rungs). An epoch continues in the shuffled
    training split where the previous epoch ended.
    """

    steps: int | None = Field(default=None, ge=1)
    """Number of optimiser steps."""
    samples: int | None = Field(default=None, ge=1)
    """Number of structures trained on, repetitions included."""

    def _conflicts(self) -> Iterator[str]:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            what = f"has {' and '.join(given)}" if given else "has none of them"
            yield f"{what}; give steps or samples"

    @property
    def unit(self) -> Unit:
        """Unit of the budget, which is the key that is given: steps or samples."""
        return "samples" if self.steps is None else "steps"

    @property
    def size(self) -> float:
        """Amount of training of a whole trial, in the budget's :attr:`unit`."""
        return float(getattr(self, self.unit))


class SearchConfig(Section):
    """`search`: space of hyper-parameters, sampler, objectives, and rungs (epochs of judgement)."""

    trials: int = Field(ge=1)
    """Number of configurations to try."""
    sampler: SamplerName | dict[str, Any] = "auto"
    """Method that proposes configurations. A mapping names any class of ``optuna.samplers``, or one
    of your own (``module:Class``), with its arguments."""
    objectives: Objectives = (CRITERION,)
    """One to three quantities by which trials are compared: ``val_error``, ``val_loss``,
    ``train_loss``, ``val.TARGET``, ``throughput``, ``seconds``, ``joules``, ``parameters``, or
    ``module:function``, a function of your own of the validation predictions. Rungs judge by the
    first objective, which must be a loss or an error if any objective is. The space may vary the
    loss and its weights if neither ``val_loss`` nor ``train_loss`` is an objective."""
    constraints: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Upper limits of a trial for ``peak_memory_gib``, ``gcd_hours``, ``seconds``, ``joules`` or
    ``parameters``, as in ``{peak_memory_gib: 48, parameters: 200000}``. No trial is proposed that
    is expected to exceed one, but for ``joules``."""
    energy_kwh: float | None = Field(default=None, gt=0)
    """Energy used by all trials together [kWh] after which no new trial is started."""
    budget: TrainingBudget | None = None
    """Training length of a trial that no rung ends. By default ``Training.num_epoch`` passes
    through the training split."""
    validation_samples: int | Literal["auto", "all"] = "auto"
    """Number of structures of the validation split that are used after each epoch. ``auto`` uses
    all of them, but with a ``budget`` as many as an epoch trains on and at least 1,000, and few if
    no objective is a loss or an error."""
    min_epochs: int | None = Field(default=None, ge=1)
    """Number of epochs before the first rung, the first point at which trials are judged. By
    default ``num_epoch / reduction_factor``, at least 2: one rung before the end."""
    reduction_factor: int = Field(default=3, ge=2)
    """Ratio of the epochs at successive rungs. Of ranked trials, one in this many continues."""
    rungs: Literal["stopping", "none"] = "stopping"
    """Rule at the rungs: end trials predicted to gain less than new ones, or not among the best
    (``stopping``), or no rule (``none``)."""
    pruner: dict[str, Any] | None = None
    """Pruner that decides at the rungs instead of the rule ``rungs``: a class of
    ``optuna.pruners``, or ``module:Class``, and its arguments."""
    keep_checkpoints: Literal["all", "best"] = "all"
    """Checkpoints of ended trials that stay on disk. ``best`` keeps only the checkpoints of trials
    that may become members: the best 64 of each message-passing type, or three times
    ``ensemble.size`` if that is more."""
    warm_start: tuple[Path, ...] = ()
    """Run directories or Optuna journals of earlier searches, from whose trials the sampler learns.
    ``trials`` does not include these trials."""
    enqueue: tuple[dict[str, Scalar], ...] = ()
    """Configurations to try first, as mappings from paths of ``space`` to values. The sampler
    chooses the other parameters, but not those by which one of them exists."""
    callbacks: tuple[str, ...] = ()
    """Functions of your own, as ``module:function``, called as Optuna's callbacks with the study
    and the trial after each trial that has ended. One may enqueue trials."""
    space: dict[str, Parameter] = Field(min_length=1)
    """Search space: dotted path into ``NeuralNetwork`` → domain."""
    where: tuple[str, ...] = ()
    """Rules that the parameters of every trial meet, as in
    ``hidden_dim % global_attn_heads == 0``."""
    limits: ClassVar[tuple[str, ...]] = LIMITS
    """Quantities that ``constraints`` may limit."""

    @field_validator("sampler", mode="before")
    @classmethod
    def _a_known_sampler(cls, name: object) -> object:
        if not isinstance(name, dict) and str(name) not in SAMPLERS:
            hint = did_you_mean(name, SAMPLERS) or (
                f"; known are {', '.join(SAMPLERS)}, and {{type: Class}} for any of Optuna's"
            )
            raise ValueError(f"{name!r} is not a sampler{hint}")
        return name

    @field_validator("where", mode="before")
    @classmethod
    def _one_or_more_rules(cls, where: object) -> object:
        return (where,) if isinstance(where, str) else where

    @field_validator("validation_samples", mode="before")
    @classmethod
    def _some_to_judge_by(cls, samples: object) -> object:
        is_number = isinstance(samples, int) and not isinstance(samples, bool) and samples > 0
        if samples not in ("auto", "all") and not is_number:
            raise ValueError(f"must be auto, all, or a whole number from 1 on, got {samples!r}")
        return samples

    @field_validator("objectives")
    @classmethod
    def _few_known_objectives(cls, objectives: tuple[str, ...]) -> tuple[str, ...]:
        known = (CRITERION, *LOSSES, *COSTS)
        for i, name in enumerate(objectives):
            if ":" in name:
                check_callable(name, "a function of predictions and labels")
            elif name not in known and not re.fullmatch(r"val\.\w+", name):
                hint = (
                    did_you_mean(name, known)
                    or f"; known are {', '.join(known)}, val.TARGET, module:function"
                )
                raise ValueError(f"{name!r} is not an objective{hint}")
            if name in objectives[:i]:
                raise ValueError(f"{name!r} is given twice; remove one")
        errors = [name for name in objectives if name not in COSTS]
        if errors and objectives[0] in COSTS:
            raise ValueError(
                f"the first is {objectives[0]!r}, but rungs judge by the first; begin with "
                f"{errors[0]}"
            )
        return objectives

    @field_validator("callbacks")
    @classmethod
    def _can_be_called(cls, callbacks: tuple[str, ...]) -> tuple[str, ...]:
        for name in callbacks:
            check_callable(name, "a function of a study and a trial")
        return callbacks

    @field_validator("constraints")
    @classmethod
    def _known_limits(cls, constraints: dict[str, float]) -> dict[str, float]:
        for name in constraints:
            if name not in cls.limits:
                hint = did_you_mean(name, cls.limits) or f"; known are {', '.join(cls.limits)}"
                raise ValueError(f"{name!r} is not a constraint{hint}")
        return constraints

    @field_validator("pruner", mode="before")
    @classmethod
    def _a_pruner(cls, pruner: Any) -> Any:
        if isinstance(pruner, str):
            raise ValueError(f"must be a mapping, as {{type: {pruner}}}")
        if isinstance(pruner, dict):
            build_pruner(pruner)
        return pruner

    def _conflicts(self) -> Iterator[str]:
        if not isinstance(self.sampler, str):
            build_sampler(self.sampler, self.space, seed=0)
            if self.sampler.get("type") == "CmaEsSampler" and self.constraints:
                yield (
                    "sampler: CmaEsSampler ignores constraints; write batched_tpe, or remove them"
                )
        if self.pruner is not None and self.rungs != "stopping":
            yield (
                f"pruner judges at the rungs instead of the rule, but rungs is {self.rungs!r}; "
                f"remove one of them"
            )
        if self.pruner is not None and len(self.objectives) > 1:
            yield (
                f"pruner knows one objective, as Optuna's do, but there are "
                f"{len(self.objectives)}; remove it, rungs judge by the first"
            )
        check_conditions(self.space)
        for i, values in enumerate(self.enqueue):
            for conflict in self.wrong_enqueued(values):
                yield f"enqueue.{i}{conflict}"
        if self.where and not _can_meet(self.space, self.rules, {}):
            yield (
                f"where: {' and '.join(map(repr, self.where))}: none of 10,000 random "
                f"configurations meets it; correct it, or take out of space what other parameters "
                f"decide"
            )

    @property
    def rules(self) -> list[Rule]:
        """Conditions that the parameters of every trial meet, parsed from the key `where`."""
        try:
            return [Rule(text, self.space) for text in self.where]
        except ValueError as error:
            raise ValueError(f"where: {error}") from error

    def wrong_enqueued(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the faults of a configuration to enqueue, each as the end of an error message.

        ``values`` has the values of the configuration by dotted path. A fault is a name, a value or
        a combination that is not in the space, or a rule of `where` that cannot hold.
        """
        if not values:
            yield " names no parameter; give at least one or remove it"
        for name, value in values.items():
            if name not in self.space:
                hint = did_you_mean(name, self.space) or "; remove it"
                yield f" names {name!r}, which is not in space{hint}"
                return
            if not self.space[name].contains(value):
                yield f": {name} = {value!r} is not in its domain; correct it or space.{name}"
            for other, allowed in self.space[name].when.items():
                if other not in values:
                    words = " or ".join(map(str, allowed))
                    yield f": {name} exists only while {other} is {words}; add {other}"
                elif not self.space[name].exists(values):
                    yield f": {name} does not exist while {other} = {values[other]!r}; remove it"
        if not all(self.space[name].contains(value) for name, value in values.items()):
            return
        rules, can_meet = self.rules, partial(_can_meet, self.space, given=values)
        if can_meet([]) and not can_meet(rules):
            broken = [rule.text for rule in rules if not can_meet([rule])] or self.where
            yield f": {' and '.join(map(repr, broken))} of where cannot hold with it; correct it"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Objectives that are functions of the user, each as ``module:function``."""
        return tuple(name for name in self.objectives if ":" in name)

    @property
    def judges_errors(self) -> bool:
        """True if an objective is a loss or an error; otherwise all are costs of training."""
        return any(name not in COSTS for name in self.objectives)

    @property
    def times_steps(self) -> bool:
        """True if an objective depends on the time of a training step; trials then share no GCD."""
        return "throughput" in self.objectives or not self.judges_errors

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Direction, ``minimize`` or ``maximize``, of each objective [n_objectives]."""
        return tuple(map(direction_of, self.objectives))

    def rung_epochs(self, num_epoch: int) -> tuple[int, ...]:
        """Return the epochs at which a trial is judged; the last is ``num_epoch``.

        Without a rule, a trial is judged only at its end.

        Parameters
        ----------
        num_epoch
            Number of epochs of a trial that is not stopped early, `Training.num_epoch`.
        """
        if self.rungs == "none":
            return (num_epoch,)
        # Earlier rungs foretell too badly which of several good trials will be best.
        first = max(2, math.ceil(num_epoch / self.reduction_factor))
        epochs, rungs = self.min_epochs or first, []
        while epochs < num_epoch:
            rungs.append(epochs)
            epochs *= self.reduction_factor
        return (*rungs, num_epoch)


def _can_meet(
    space: Mapping[str, Parameter], rules: Sequence[Rule], given: Mapping[str, Any]
) -> bool:
    """Return whether a random configuration with the values ``given`` meets all rules."""
    return next(satisfying(space, rules, given), None) is not None
