"""Exponential moving average of a model's weights, which is validated and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Average:
    """Exponential moving average of weights, over about the last ``1 / (1 - decay)`` steps.

    Polyak & Juditsky, SIAM J. Control Optim. 30, 838 (1992). A trial is compared at its rung, in
    the middle of its learning-rate schedule. There the average is far less noisy than the weights
    of the last step.

    Parameters
    ----------
    model
        The model that is trained.
    decay
        Fraction of the old average that a step keeps. With 0 the average is the model itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self._model = model
        self._newest = dict(model.named_parameters())
        self._averaged = {k: v.detach().clone() for k, v in self._newest.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the weights after a step."""
        if not self.decay:
            return
        # Short at first, or the random initial weights would linger.
        weight = max(1 - self.decay, 9 / (10 + self.steps)) if self.steps else 1.0
        self.steps += 1
        torch._foreach_lerp_(_here(self._averaged), _here(self._newest), weight)

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """Yield the model in evaluation mode with averaged weights; restore its own afterwards.

        Buffers stay as they are: running means of a normalisation are averages already.
        """
        model = self._model.eval()
        if not self.decay:
            yield model
            return
        with torch.no_grad():
            kept = [weight.clone() for weight in _here(self._newest)]
            torch._foreach_copy_(_here(self._newest), _here(self._averaged))
        try:
            yield model
        finally:
            with torch.no_grad():
                torch._foreach_copy_(_here(self._newest), kept)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Averaged parameters by name; empty if ``decay`` is 0."""
        return self._averaged

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain values and tensors."""
        return {"steps": self.steps, "weights": self._averaged}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from a checkpoint; one without averages gives the model's weights."""
        self.steps = state["steps"]
        for name, weight in self._averaged.items():
            weight.copy_(state["weights"].get(name, self._newest[name]))


def _here(weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Return this rank's shard of each weight; writing to it changes the weight."""
    return [w.to_local() if isinstance(w, DTensor) else w for w in weights.values()]
