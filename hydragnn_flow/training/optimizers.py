"""Optimiser of a training."""

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

# Adagrad's fused kernel is for the CPU alone in most versions of torch, which fail only in a step.
_FUSED = ("Adam", "AdamW", "SGD")
# Fused kernels for which torch has rules to act on shards.
_FUSED_ON_PARTS = ("Adam", "AdamW")


def make_optimizer(
    model: nn.Module, settings: Optimizer, learning_rate: float, world: World
) -> torch.optim.Optimizer:
    """Return the optimiser that `Training.Optimizer` asks for, of the trained parameters.

    Parameters
    ----------
    model
        Network whose parameters are trained, except frozen ones.
    settings
        Section `Training.Optimizer` with type and weight decay.
    learning_rate
        Largest learning rate; a schedule sets the rate of each step.
    world
        Ranks, over which `use_zero_redundancy` shards the state without changing the steps
        (Rajbhandari et al., arXiv:1910.02054, stage 1).
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    kind: Any = Lamb if settings.type == "FusedLAMB" else getattr(torch.optim, settings.type)
    make: Callable[..., torch.optim.Optimizer] = kind
    options: dict[str, Any] = {"lr": learning_rate}
    if settings.weight_decay is not None:
        options["weight_decay"] = settings.weight_decay

    if settings.use_zero_redundancy and world.size > 1:
        # Not fused: it restores step counts on the CPU, and fused kernels need them on the device.
        return ZeroRedundancyOptimizer(weights, optimizer_class=kind, **options)
    in_parts = any(isinstance(weight, DTensor) for weight in weights)
    if settings.type in (_FUSED_ON_PARTS if in_parts else _FUSED):
        with suppress(RuntimeError):  # raised for devices that have no fused kernel
            return make(weights, fused=True, **options)
    return make(weights, **options)


def scaled_learning_rate(settings: Optimizer, graphs_per_step: Callable[[], float]) -> float:
    """Return the learning rate for a number of graphs per step, according to `batch_scaling`.

    The rate is proportional to the number (Goyal et al., arXiv:1706.02677) or to its root, which
    suits Adam and similar optimisers (Malladi et al., arXiv:2205.10287).
    """
    if settings.batch_scaling == "none" or settings.reference_batch is None:
        return settings.learning_rate
    ratio = graphs_per_step() / settings.reference_batch
    return settings.learning_rate * (ratio if settings.batch_scaling == "linear" else ratio**0.5)


def optimizer_state(optimizer: torch.optim.Optimizer, world: World) -> dict[str, Any]:
    """Return the state for a checkpoint (collective); it is complete on the first rank only."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        if not world.is_first:
            return {}
    state: dict[str, Any] = optimizer.state_dict()
    return state
