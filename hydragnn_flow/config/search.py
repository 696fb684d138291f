"""Schema of `search`: space, sampler, objectives and rungs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.budget import TrainingBudget
from hydragnn_flow.config.domain import Parameter, Scalar, check_conditions, did_you_mean
from hydragnn_flow.config.optuna_classes import build_pruner, build_sampler
from hydragnn_flow.config.samplers import SAMPLERS

__all__ = ["Failures", "LearningCurve", "Parameter", "Patience", "Scalar", "SearchConfig"]

if TYPE_CHECKING:
    SamplerName = str
else:
    SamplerName = Literal[tuple(SAMPLERS)]
CRITERION = "val_error"
LOSSES = ("val_loss", "train_loss")
COSTS = ("throughput", "seconds", "joules")
MAXIMISED = ("throughput",)
"""Objectives that are maximised; all others are minimised."""
MOST_OBJECTIVES = 3
STRUCTURES = 1000
"""Number of structures trained on in `seconds` and `joules`, if no objective is an error."""
WARM_UP_STEPS = 5
"""Steps at the beginning of a segment that are not measured: kernels are chosen, memory is
allocated, and ranks learn the order in which gradients come."""
LIMITS = ("peak_memory_gib", "seconds", "gcd_hours", "joules")


Direction = Literal["minimize", "maximize"]
"""Direction of an objective, as Optuna calls it."""


def direction_of(objective: str) -> Direction:
    """Return the direction in which an objective improves."""
    return "maximize" if objective in MAXIMISED else "minimize"


class Patience(Section):
    """`search.patience`: early stopping of trials that no longer improve."""

    epochs: int = Field(ge=1)
    """Epochs without improvement before a trial stops."""
    min_delta: float = Field(default=0.0, ge=0)
    """Smallest decrease of the criterion (of ``val_loss``, if that is the first objective) that
    counts as improvement."""


class LearningCurve(Section):
    """`search.learning_curve`: early stopping of trials by their extrapolated learning curve."""

    probability: float = Field(default=0.95, gt=0.5, lt=1)
    """Probability at which a trial is stopped: that it would miss the ensemble if fully trained."""


class Failures(Section):
    """`search.failures`: treatment of trials that diverge, run out of memory or are lost.

    ``record`` ends the trial as failed, with the reason. ``retry`` trains its segment again; the
    trial fails at the third such end without progress, or at the tenth if its node or job was lost.
    """

    diverged: Literal["record", "retry"] = "record"
    """Treatment of a loss that is no longer finite."""
    out_of_memory: Literal["resize", "retry", "record"] = "resize"
    """Treatment of a segment that runs out of memory. ``resize`` trains it again with twice as many
    micro-batches. The default is ``record`` if the space varies ``Training.accumulation_steps`` or
    no objective is a loss or an error."""
    lost: Literal["retry", "record"] = "retry"
    """Treatment of a segment that ends in any other way, by an error or a lost worker, node or
    job."""


class SearchConfig(Section):
    """`search`: the space, the sampler, the objectives and the rungs."""

    trials: int = Field(ge=1)
    """Number of configurations to try."""
    sampler: SamplerName | dict[str, Any] = "auto"
    """Method that proposes configurations. A mapping names any class of ``optuna.samplers``, or one
    of your own (``module:Class``), with its arguments."""
    objectives: tuple[str, ...] = (CRITERION,)
    """One to three quantities by which trials are compared: ``val_error``, ``val_loss``,
    ``train_loss``, ``val.TARGET``, ``throughput``, ``seconds``, ``joules``. Rungs judge by the
    first, which is a loss or an error if there is one. If neither loss is an objective, the space
    may vary the loss and its weights."""
    constraints: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Limits of a trial: ``{peak_memory_gib: 48, gcd_hours: 2}``, ``seconds`` and ``joules``."""
    energy_kwh: float | None = Field(default=None, gt=0)
    """Energy of all trials [kWh] after which no new trial is started."""
    budget: TrainingBudget | None = None
    """Training length of a trial that no rung ends. By default ``Training.num_epoch`` passes
    through the training split."""
    validation_samples: int | Literal["auto", "all"] = "auto"
    """Size of the validation subset used after each epoch. ``auto`` is all of the split, but with a
    ``budget`` in ``steps`` or ``samples`` as many structures as an epoch trains on and at least
    1,000, in ``seconds`` 10,000, and 1 if no objective is a loss or an error."""
    min_epochs: int = Field(default=2, ge=1)
    """Epochs of training before the first rung."""
    reduction_factor: int = Field(default=3, ge=2)
    """Ratio of the epochs of successive rungs. Each rung keeps one trial in this many."""
    rungs: Literal["stopping", "promotion", "hyperband", "none"] = "stopping"
    """Rule at the rungs: end trials that are not among the best so far (``stopping``), let them
    wait (``promotion``), ``stopping`` in brackets that begin at different rungs (``hyperband``), or
    no rule."""
    brackets: int | None = Field(default=None, ge=1)
    """Number of brackets of ``hyperband``. By default the number of rungs."""
    pruner: dict[str, Any] | None = None
    """Pruner that decides at the rungs instead of the rule: a class of ``optuna.pruners``, or
    ``module:Class``, and its arguments."""
    patience: Patience | None = None
    """Stop trials that no longer improve, in addition to the rule."""
    learning_curve: LearningCurve | None = None
    """Stop trials whose learning curve is not promising, in addition to the rule."""
    failures: Failures = Failures()
    """Treatment of trials that diverge, run out of memory or are lost."""
    keep_checkpoints: Literal["all", "best"] = "all"
    """Checkpoints of ended trials that stay on disk. ``best`` keeps those of possible members: the
    best 64 of each message-passing type (or three times ``ensemble.size``, if that is more)."""
    warm_start: tuple[Path, ...] = ()
    """Run directories or Optuna journals of earlier searches, from whose trials the sampler learns.
    ``trials`` does not count them."""
    enqueue: tuple[dict[str, Scalar], ...] = ()
    """Configurations to try first, as mappings from paths of ``space`` to values. The sampler
    chooses the other parameters."""
    space: dict[str, Parameter] = Field(min_length=1)
    """Search space: dotted path into ``NeuralNetwork`` → domain."""

    @field_validator("sampler", mode="before")
    @classmethod
    def _a_known_sampler(cls, name: object) -> object:
        if not isinstance(name, dict) and str(name) not in SAMPLERS:
            hint = did_you_mean(name, SAMPLERS) or (
                f"; known are {', '.join(SAMPLERS)}, and {{type: Class}} for any of Optuna's"
            )
            raise ValueError(f"{name!r} is not a sampler{hint}")
        return name

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
        if not 1 <= len(objectives) <= MOST_OBJECTIVES:
            raise ValueError(f"must be one to {MOST_OBJECTIVES} objectives, got {len(objectives)}")
        known = (CRITERION, *LOSSES, *COSTS)
        for i, name in enumerate(objectives):
            if name not in known and not re.fullmatch(r"val\.\w+", name):
                hint = did_you_mean(name, known) or f"; known are {', '.join(known)}, val.TARGET"
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

    @field_validator("constraints")
    @classmethod
    def _known_limits(cls, constraints: dict[str, float]) -> dict[str, float]:
        for name in constraints:
            if name not in LIMITS:
                hint = did_you_mean(name, LIMITS) or f"; known are {', '.join(LIMITS)}"
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

    @model_validator(mode="after")
    def _one_rule(self) -> SearchConfig:
        if not isinstance(self.sampler, str):
            build_sampler(self.sampler, self.space, seed=0)
        if self.brackets is not None and self.rungs != "hyperband":
            raise ValueError(
                f"brackets = {self.brackets} belongs to rungs: hyperband, but rungs is "
                f"{self.rungs!r}; correct one of them"
            )
        prunes = self.rungs != "none" or self.patience or self.learning_curve
        chosen = self.sampler if isinstance(self.sampler, str) else self.sampler["type"]
        if chosen in ("tpe", "TPESampler") and len(self.objectives) > 1 and prunes:
            raise ValueError(
                f"sampler: Optuna's {chosen} cannot learn from pruned trials of several "
                f"objectives; write batched_tpe, or rungs: none"
            )
        if chosen == "CmaEsSampler" and len(self.objectives) > 1:
            raise ValueError(
                "sampler: CmaEsSampler knows one objective; write batched_tpe or NSGAIISampler"
            )
        if chosen == "CmaEsSampler" and self.constraints:
            raise ValueError(
                "sampler: CmaEsSampler ignores constraints; write batched_tpe, or remove them"
            )
        if self.pruner is not None and self.rungs != "stopping":
            raise ValueError(
                f"pruner judges at the rungs instead of the rule, but rungs is {self.rungs!r}; "
                f"remove one of them"
            )
        if self.pruner is not None and len(self.objectives) > 1:
            raise ValueError(
                f"pruner knows one objective, as Optuna's do, but there are "
                f"{len(self.objectives)}; remove it, rungs judge by the first"
            )
        if self.patience is not None and not self.judges_errors:
            raise ValueError(
                f"patience waits for a smaller error, but the objectives are "
                f"{' and '.join(self.objectives)}; remove it"
            )
        if self.learning_curve is not None and self.objectives[0] not in (CRITERION, "val_loss"):
            raise ValueError(
                f"learning_curve predicts {CRITERION} or val_loss, but the first objective is "
                f"{self.objectives[0]!r}; remove it, or put one of those first"
            )
        return self

    @model_validator(mode="after")
    def _trials_can_exist(self) -> SearchConfig:
        check_conditions(self.space)
        for i, values in enumerate(self.enqueue):
            self._check_enqueued(f"enqueue.{i}", values)
        return self

    def _check_enqueued(self, place: str, values: dict[str, Scalar]) -> None:
        if not values:
            raise ValueError(f"{place} names no parameter; give at least one or remove it")
        for name, value in values.items():
            if name not in self.space:
                raise ValueError(
                    f"{place} names {name!r}, which is not in space"
                    f"{did_you_mean(name, self.space) or '; remove it'}"
                )
            if not self.space[name].contains(value):
                raise ValueError(
                    f"{place}: {name} = {value!r} is not in its domain; correct the value or "
                    f"space.{name}"
                )
            for other, allowed in self.space[name].when.items():
                if other in values and values[other] not in allowed:
                    raise ValueError(
                        f"{place}: {name} does not exist while {other} = {values[other]!r}; "
                        f"remove it"
                    )

    @property
    def judges_errors(self) -> bool:
        """True if an objective is a loss or an error; otherwise all are costs of training."""
        return any(name not in COSTS for name in self.objectives)

    @property
    def times_steps(self) -> bool:
        """True if trials are compared by step time, which nothing may then disturb."""
        return "throughput" in self.objectives or not self.judges_errors

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Direction in which each objective improves."""
        return tuple(map(direction_of, self.objectives))

    def rung_epochs(self, num_epoch: int) -> tuple[int, ...]:
        """Return the epochs at which a trial is judged; the last is ``num_epoch``.

        Without a rule, patience and a learning curve, a trial is judged only at its end.

        Parameters
        ----------
        num_epoch
            Epochs of a trial that no rung ends, `Training.num_epoch`.
        """
        if self.rungs == "none" and self.patience is None and self.learning_curve is None:
            return (num_epoch,)
        epochs, rungs = self.min_epochs, []
        while epochs < num_epoch:
            rungs.append(epochs)
            epochs *= self.reduction_factor
        return (*rungs, num_epoch)
