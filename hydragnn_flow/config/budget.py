"""Training budget: how long a trial or member trains."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section

Unit = Literal["steps", "samples", "epochs", "seconds"]


class TrainingBudget(Section):
    """`search.budget`, `ensemble.budget`: length of a training, given by one of the keys.

    The budget is divided evenly into the ``Training.num_epoch`` epochs of a trial. A trial is
    validated at the end of each epoch, and rungs lie at some of them. An epoch continues in the
    shuffled training split where the previous one ended.
    """

    steps: int | None = Field(default=None, ge=1)
    """Number of optimiser steps."""
    samples: int | None = Field(default=None, ge=1)
    """Number of structures trained on, repetitions included."""
    epochs: int | None = Field(default=None, ge=1)
    """Number of passes through the training split; replaces ``Training.num_epoch``."""
    seconds: float | None = Field(default=None, gt=0)
    """Time of training steps, summed over GCDs [s], without start-up, validation and checkpoints.
    Results depend on the machine and its load."""

    @model_validator(mode="after")
    def _one_of_them(self) -> TrainingBudget:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            what = f"has {' and '.join(given)}" if given else "has none of them"
            raise ValueError(f"{what}; give one of steps, samples, epochs and seconds")
        return self

    @property
    def unit(self) -> Unit:
        """Key that is given, the unit of :attr:`size`."""
        units: tuple[Unit, ...] = get_args(Unit)
        return next(unit for unit in units if getattr(self, unit) is not None)

    @property
    def size(self) -> float:
        """Value of the key that is given."""
        return float(getattr(self, self.unit))
