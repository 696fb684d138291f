"""State that a training needs to continue as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch


@dataclass
class Progress:
    """Progress of a trial's or member's training, stored in its checkpoint."""

    epoch: int = 0
    """Number of epochs trained and evaluated."""
    step: int = 0
    """Number of steps taken in the current epoch."""
    losses: float = 0.0
    """Sum of the training losses of the steps taken in the current epoch."""
    start: int = 0
    """Number of graphs that earlier epochs drew from the endless order of training graphs."""
    drawn: int = 0
    """Number of graphs that the current epoch has drawn from that order so far."""
    batches: int = 1
    """Number of batches per step in the current epoch, over all ranks, however many there are."""
    best_val_error: float = float("inf")
    """Criterion (relative validation error, without unit) of the weights kept so far: for a trial,
    or with early stopping, the smallest of any epoch; for a member that of the latest epoch of its
    own training whose criterion is at most 1 + 1/√n times the smallest, with n validation
    structures."""
    best_val_loss: float = float("inf")
    """Validation loss of the weights kept so far."""
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors of the weights kept so far: name of the error -> value."""
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of every epoch."""
    patient_since: int = 0
    """Epoch from which early stopping counts epochs without improvement: 0, or for a member the
    epoch at which it left its trial."""
    ended: int = 0
    """Epoch at which a member's training ended and its last weights were validated without moving
    average; 0 before."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Progress:
        """Restore the progress from a checkpoint; older ones lack some values or have others."""
        known = values.keys() & {field.name for field in fields(cls)}
        return cls(**{name: values[name] for name in known})

    @property
    def smallest(self) -> float:
        """Smallest criterion of an epoch, for a member of its own training; infinity before."""
        own = (row[3] for row in self.history if row[0] > self.patient_since)
        return min(own, default=float("inf"))

    def leave_trial(self) -> None:
        """Forget the best epoch of the trial that a member continues; only its own epochs count."""
        self.patient_since = self.epoch
        self.best_val_error = self.best_val_loss = float("inf")
        self.best_epoch, self.metrics = 0, {}


class Spent(NamedTuple):
    """Cost of a training up to its checkpoint: time summed over GCDs [s], and energy [J].

    It includes segments (jobs) whose results were lost.
    """

    seconds: float = 0.0
    """Time summed over GCDs [s]."""
    joules: float = 0.0


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of torch's random generators, on the host and on the device."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device.type).get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore torch's random generators from the state that :func:`random_state` returned.

    The device's generator is restored only if the state comes from a device of the same type.
    """
    torch.set_rng_state(state["cpu"].cpu())
    if device.type in state and device.type != "cpu":
        numbers = state[device.type].cpu()
        torch.get_device_module(device.type).set_rng_state(numbers, device)
