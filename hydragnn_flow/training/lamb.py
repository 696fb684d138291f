"""LAMB optimiser, which HydraGNN takes from DeepSpeed under the name `FusedLAMB`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """Adam with a step length per layer in proportion to the norm of the layer's weights.

    You et al., arXiv:1904.00962, algorithm 2. Steps do not synchronize with the device.

    Parameters
    ----------
    params
        Parameters that are trained.
    lr, betas, eps, weight_decay
        Settings as in ``torch.optim.AdamW``; the decay is included in the direction that is scaled.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step; ``closure`` is ignored and nothing is returned, unlike in torch."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._step(group, weights)

    def _step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        states = [self._state(weight) for weight in weights]
        first, second = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        for state in states:
            state["step"] += 1
        count = states[0]["step"]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, (1 - beta2**count) ** 0.5)
        torch._foreach_add_(denominator, group["eps"])
        direction = torch._foreach_div(first, 1 - beta1**count)
        torch._foreach_div_(direction, denominator)
        torch._foreach_add_(direction, weights, alpha=group["weight_decay"])
        # Bounds of a layer's rate in units of the learning rate, as in DeepSpeed.
        ratios = [
            # A layer of zeros, such as biases at first, has no norm to scale by.
            torch.where((size > 0) & (length > 0), size / length, 1.0).clamp(0.01, 10.0)
            for size, length in zip(
                torch._foreach_norm(weights), torch._foreach_norm(direction), strict=True
            )
        ]
        torch._foreach_mul_(direction, ratios)
        torch._foreach_add_(weights, direction, alpha=-group["lr"])

    def _state(self, weight: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        if not state:
            state |= {
                "step": 0,
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        return state
