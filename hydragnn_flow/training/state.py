"""State that a training needs to continue as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass
class Progress:
    """Progress of a trial or member, stored in its checkpoint."""

    epoch: int = 0
    """Number of epochs trained and evaluated."""
    step: int = 0
    """Number of steps taken in the current epoch."""
    losses: float = 0.0
    """Sum of the losses of these steps."""
    seconds: float = 0.0
    """Time of these steps summed over all GCDs [s]."""
    start: int = 0
    """Number of graphs drawn by earlier epochs, if they draw from an endless order."""
    drawn: int = 0
    """Number of graphs drawn by these steps, if they draw from an endless order."""
    batches: int = 1
    """Number of batches per step in the current epoch, on any number of ranks."""
    best_val_error: float = float("inf")
    """Smallest value of the criterion; for a member since the beginning of its own training."""
    best_val_loss: float = float("inf")
    """Validation loss of the same weights."""
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors of the same weights, by name."""
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of every epoch."""
    patient_since: int = 0
    """Epoch from which early stopping counts: when a member left its trial."""
    ended: int = 0
    """Epoch at which a member's training ended and its last weights were validated unaveraged."""

    def leave_trial(self) -> None:
        """Begin a member's own training: the best weights of its trial no longer compete."""
        self.patient_since = self.epoch
        self.best_val_error = self.best_val_loss = float("inf")
        self.best_epoch, self.metrics = 0, {}


class Spent(NamedTuple):
    """Cost up to a checkpoint, including segments whose results never arrived."""

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
    """Restore random generators from a checkpoint; the device's only if it has its kind."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type in state and device.type != "cpu":
        numbers = state[device.type].cpu()
        torch.get_device_module(device.type).set_rng_state(numbers, device)
