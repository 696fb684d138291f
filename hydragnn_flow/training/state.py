"""State that a training needs to continue as if it had never stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


@dataclass
class Progress:
    """History of a trial or member so far."""

    epoch: int = 0
    """Epochs trained and evaluated."""
    step: int = 0
    """Steps taken in the epoch after those."""
    losses: float = 0.0
    """Sum of the losses of these steps."""
    seconds: float = 0.0
    """Time of these steps on all GCDs together [s]."""
    start: int = 0
    """Graphs that the epochs before have drawn, where they are drawn from an endless order."""
    drawn: int = 0
    """Graphs that these steps have drawn from it."""
    batches: int = 1
    """Batches in each of these steps, and in the others of the epoch, on however many ranks."""
    best_val_error: float = float("inf")
    """Smallest criterion; of a member, since it left its trial."""
    best_val_loss: float = float("inf")
    """Validation loss of the same weights."""
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors of the same weights."""
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss, criterion] of every epoch."""
    patient_since: int = 0
    """Epoch before which early stopping does not count: where a member left its trial."""
    ended: int = 0
    """Epoch at which a member's training ended and its last weights were judged as they are."""

    def leave_trial(self) -> None:
        """Begin a member's own training: its trial's best weights are no candidate any more."""
        self.patient_since = self.epoch
        self.best_val_error = self.best_val_loss = float("inf")
        self.best_epoch, self.metrics = 0, {}


class Spent(NamedTuple):
    """Cost of a checkpoint, including segments whose results never arrived."""

    seconds: float = 0.0
    """Time of each GCD [s]."""
    joules: float = 0.0


def random_state(device: torch.device) -> dict[str, Any]:
    """State of torch's random numbers, on the host and on the device."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device.type).get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue with the random numbers of a checkpoint, and those of the device if it has them."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type in state and device.type != "cpu":
        numbers = state[device.type].cpu()
        torch.get_device_module(device.type).set_rng_state(numbers, device)
