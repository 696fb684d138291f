"""Budgets: how long a trial or member trains."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from hydragnn_flow.config.base import Section

Unit = Literal["steps", "samples", "epochs", "seconds"]


class TrainingBudget(Section):
    """`search.budget`, `ensemble.budget`: how long a trial or member trains; one of the keys.

    Divided evenly into the ``Training.num_epoch`` epochs of a trial, which are counted as ever: at
    the end of each a trial is validated, and rungs lie at some of them. An epoch goes on in the
    shuffled training split where the one before it ended.
    """

    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps."""
    samples: int | None = Field(default=None, ge=1)
    """Structures trained on, one counted as often as it is drawn."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes through the training split; takes the place of ``Training.num_epoch``."""
    seconds: float | None = Field(default=None, gt=0)
    """Time of training steps on a GCD [s]; on several of them, the sum of their times. Start,
    validation and checkpoints are not counted. Results depend on the machine, and on what else a
    GCD has to do."""

    @model_validator(mode="after")
    def _one_of_them(self) -> TrainingBudget:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            what = f"has {' and '.join(given)}" if given else "has none of them"
            raise ValueError(f"{what}; give one of steps, samples, epochs and seconds")
        return self

    @property
    def unit(self) -> Unit:
        """The key that is given."""
        units: tuple[Unit, ...] = get_args(Unit)
        return next(unit for unit in units if getattr(self, unit) is not None)

    @property
    def size(self) -> float:
        """Its value."""
        return float(getattr(self, self.unit))
