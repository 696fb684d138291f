"""The moving average of a model's weights, which is validated and kept."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


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
        self._source = model
        self._module = copy.deepcopy(model).requires_grad_(False) if decay else model
        self._weights: list[torch.Tensor] = list(self._module.parameters())
        self._newest: list[torch.Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        if not self.decay:
            return
        # Short at first, or the random initial weights would linger.
        weight = max(1 - self.decay, 9 / (10 + self.steps)) if self.steps else 1.0
        self.steps += 1
        torch._foreach_lerp_(self._weights, self._newest, weight)

    @torch.no_grad()
    def model(self) -> nn.Module:
        """The model with the averaged weights, ready to predict.

        Its buffers are those of the model that is trained: what they hold, such as running means
        of a normalisation, is an average already.
        """
        if self.decay:
            for mine, theirs in zip(self._module.buffers(), self._source.buffers(), strict=True):
                mine.copy_(theirs)
        return self._module.eval()

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint: plain values and tensors."""
        weights = dict(self._module.named_parameters()) if self.decay else {}
        return {"steps": self.steps, "weights": {k: v.detach() for k, v in weights.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; from one made without an average, with the model's weights."""
        self.steps = state["steps"]
        weights = dict(self._module.named_parameters()) if self.decay else {}
        current = dict(self._source.named_parameters())
        for name, weight in weights.items():
            weight.copy_(state["weights"].get(name, current[name]))
