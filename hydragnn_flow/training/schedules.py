"""Learning rate of every step.

The rate depends only on the progress of the training in epochs, and for ``ReduceLROnPlateau`` on
past validation losses. So it is the same after a restart, and on any number of ranks.
"""

from __future__ import annotations

import math
from typing import Any

from hydragnn_flow.config.network import Scheduler, Training

# Constants of one_cycle, as in torch's OneCycleLR.
_LAST = 1 / 25e4


class Schedule:
    """Schedule of `Training.Scheduler`, or the default schedule.

    Parameters
    ----------
    training
        Section `Training`, with schedule and number of epochs.
    learning_rate
        Largest learning rate of the schedule.
    decay
        First and last epoch of a member's schedule; by default those of the whole training.
    """

    def __init__(
        self, training: Training, learning_rate: float, decay: tuple[int, int] | None
    ) -> None:
        self.settings = training.Scheduler
        self.learning_rate = learning_rate
        self.decay = decay
        self.first, self.last = decay or (0, training.num_epoch)
        self._plateau = {"level": 1.0, "best": math.inf, "waited": 0}

    def rate(self, epoch: int, step: int, steps: float) -> float:
        """Return the learning rate of a step.

        Parameters
        ----------
        epoch, step
            Epoch and step within it, both counted from 0.
        steps
            Number of steps in the epoch.
        """
        if self.settings is None:
            return self.learning_rate * decay_factor(epoch, self.decay)
        return self._rate(self.settings, epoch - self.first + step / steps, 1 / steps)

    def observe(self, val_loss: float) -> None:
        """Record the validation loss of an epoch."""
        settings, state = self.settings, self._plateau
        if settings is None or settings.type != "ReduceLROnPlateau":
            return
        # A difference and not a ratio as in torch, because a likelihood can be negative.
        # Least relative decrease of the validation loss that counts as an improvement, as in torch.
        if math.isinf(state["best"]) or val_loss < state["best"] - 1e-4 * abs(state["best"]):
            state["best"], state["waited"] = val_loss, 0
            return
        state["waited"] += 1
        if state["waited"] > settings.patience:
            state["level"] *= settings.factor
            state["waited"] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain values."""
        return dict(self._plateau)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self._plateau = dict(state)

    def _rate(self, settings: Scheduler, done: float, one_step: float) -> float:
        """Return the rate after ``done`` scheduled epochs; a step is ``one_step`` of an epoch."""
        largest, span = self.learning_rate, max(self.last - self.first, 1)
        smallest = min(settings.min_lr, largest)
        warm_up = settings.warmup_epochs
        if settings.type == "one_cycle":
            return largest * _one_cycle(done, span - one_step, warm_up or 0.3 * span - one_step)
        rising = min(1.0, (done + one_step) / warm_up) if warm_up else 1.0
        if settings.type == "ReduceLROnPlateau":
            return rising * max(largest * self._plateau["level"], smallest)
        if settings.type == "cosine":
            passed = _clamped((done - warm_up) / max(span - warm_up, one_step))
            return rising * (smallest + (largest - smallest) * _half_cosine(passed))
        return rising * largest


def decay_factor(epoch: int, decay: tuple[int, int] | None) -> float:
    """Return the default factor of the learning rate in an epoch, counted from 0.

    A trial keeps its learning rate, so that its checkpoint can be continued from any rung. A
    member's rate falls along half a cosine, so that it converges (the stable and decay phases of Hu
    et al., arXiv:2404.06395).
    """
    if decay is None:
        return 1.0
    start, end = decay
    return _half_cosine(_clamped((epoch - start) / max(end - start, 1)))


def _one_cycle(done: float, span: float, rise: float) -> float:
    """Return the factor of a rise and fall in one training; Smith & Topin, arXiv:1708.07120."""
    if done < rise:
        return 1 + (1 / 25 - 1) * _half_cosine(_clamped(done / rise))
    passed = _clamped((done - rise) / max(span - rise, 1e-9))
    return _LAST + (1 - _LAST) * _half_cosine(passed)


def _half_cosine(x: float) -> float:
    """Return half a cosine from one at 0 to zero at 1."""
    return 0.5 * (1 + math.cos(math.pi * x))


def _clamped(x: float) -> float:
    return min(max(x, 0.0), 1.0)
