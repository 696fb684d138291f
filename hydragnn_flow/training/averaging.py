"""The moving average of a model's weights, which is validated and kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Average:
    """Weights averaged over about the last ``1 / (1 - decay)`` steps.

    Polyak & Juditsky, SIAM J. Control Optim. 30, 838 (1992). A trial is judged at whatever epoch
    its rung falls on, in the middle of its schedule, and the average is far less noisy there than
    the last step's weights.

    Parameters
    ----------
    model
        The model that is trained.
    decay
        What the average keeps of itself in a step; with 0 it is the model itself.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self._model = model
        self._newest = dict(model.named_parameters())
        self._averaged = {k: v.detach().clone() for k, v in self._newest.items()} if decay else {}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        if not self.decay:
            return
        weight = self.weight_of_a_step()
        torch._foreach_lerp_(_here(self._averaged), _here(self._newest), weight)

    def weight_of_a_step(self) -> float:
        """Count a step; returns how much of the weights after it the average takes in."""
        # Short at first, or the random initial weights would linger.
        weight = max(1 - self.decay, 9 / (10 + self.steps)) if self.steps else 1.0
        self.steps += 1
        return weight

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """The model, ready to predict, with the averaged weights for the length of a context.

        Its buffers are its own: what they hold, such as running means of a normalisation, is an
        average already.
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
        """Averaged parameters by name; none without an average."""
        return self._averaged

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: plain values and tensors."""
        return {"steps": self.steps, "weights": self._averaged}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; from one made without an average, with the model's weights."""
        self.steps = state["steps"]
        for name, weight in self._averaged.items():
            weight.copy_(state["weights"].get(name, self._newest[name]))


def _here(weights: Mapping[str, Tensor]) -> list[Tensor]:
    """What this rank holds of weights; changing it changes them."""
    return [w.to_local() if isinstance(w, DTensor) else w for w in weights.values()]
