"""The optimiser of a training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from hydragnn_flow.config.network import Optimizer
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.lamb import Lamb

# Adagrad's fused kernel is for the CPU alone in most versions of torch, which say so at a step.
_FUSED = ("Adam", "AdamW", "SGD")
# Of these kernels torch knows how they act on parts of parameters.
_FUSED_ON_PARTS = ("Adam", "AdamW")


def make_optimizer(
    model: nn.Module, settings: Optimizer, learning_rate: float, world: World
) -> torch.optim.Optimizer:
    """The optimiser that `Training.Optimizer` asks for, of the parameters that are trained.

    Parameters
    ----------
    model
        What to train.
    settings
        Type and weight decay.
    learning_rate
        The largest; a schedule sets that of each step.
    world
        With more than one rank, `use_zero_redundancy` shares the state among them (Rajbhandari et
        al., arXiv:1910.02054, stage 1). The steps are the same.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kind: Any = Lamb if settings.type == "FusedLAMB" else getattr(torch.optim, settings.type)
    make: Callable[..., torch.optim.Optimizer] = kind
    options: dict[str, Any] = {"lr": learning_rate}
    if settings.weight_decay is not None:
        options["weight_decay"] = settings.weight_decay

    if settings.use_zero_redundancy and world.size > 1:
        # Not fused: it has restored step counts on the CPU, where fused kernels do not find them.
        return ZeroRedundancyOptimizer(weights, optimizer_class=kind, **options)
    in_parts = any(isinstance(weight, DTensor) for weight in weights)
    if settings.type in (_FUSED_ON_PARTS if in_parts else _FUSED):
        with suppress(RuntimeError):  # raised for devices that have no fused kernel
            return make(weights, fused=True, **options)
    return make(weights, **options)


def scaled_learning_rate(settings: Optimizer, graphs_per_step: Callable[[], float]) -> float:
    """The learning rate for steps of a size, by `batch_scaling`; only then is the size asked for.

    In proportion (Goyal et al., arXiv:1706.02677), or to its root, which suits Adam and its kin
    (Malladi et al., arXiv:2205.10287).
    """
    if settings.batch_scaling == "none" or settings.reference_batch is None:
        return settings.learning_rate
    ratio = graphs_per_step() / settings.reference_batch
    return settings.learning_rate * (ratio if settings.batch_scaling == "linear" else ratio**0.5)


def optimizer_state(optimizer: torch.optim.Optimizer, world: World) -> dict[str, Any]:
    """State for a checkpoint; on the first rank whole, on others of no use. All ranks call this."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        if not world.is_first:
            return {}
    state: dict[str, Any] = optimizer.state_dict()
    return state
