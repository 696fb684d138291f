"""Parallel training of one network: what each rank holds, and what the ranks exchange."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from hydragnn_flow.config.network.training import DDP, Training
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import EngineModel
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.parallel.alone import Parallel, Replicated
from hydragnn_flow.training.parallel.division import Division, division_of
from hydragnn_flow.training.parallel.task_parallel import TaskParallel

__all__ = ["DDP", "Division", "Parallel", "division_of", "parallel"]


def parallel(
    model: nn.Module,
    settings: Training,
    world: World,
    device: torch.device,
    division: Division | None = None,
    *,
    records: bool = False,
) -> Parallel:
    """Return the strategy (single, DDP, sharded or task-parallel) by which ranks train a network.

    Parameters
    ----------
    model
        The network, with all of its parameters.
    settings
        Section `Training`; its `sharding` and `ddp` choose the strategy.
    world
        Rank of this process and number of ranks.
    device
        Device that computes; the network is moved to it.
    division
        Assignment of branches to ranks, if their heads are distributed.
    records
        True if steps are recorded, whose gradients the caller sums over the ranks.

    Raises
    ------
    InputError
        If the strategy does not fit the network or the number of ranks.
    """
    if world.size == 1 or records:
        alike = model.to(device)
        for tensor in alike.state_dict().values() if world.size > 1 else ():
            dist.broadcast(tensor, 0)
        return Parallel(alike)
    foreign = isinstance(model, EngineModel)
    ddp = settings.ddp
    if division is not None:
        return TaskParallel(model, ddp, division, world, device)
    if not settings.is_sharded:
        return Replicated(model.to(device), ddp, foreign=foreign)
    if foreign:
        raise InputError(
            "network: Training.sharding.strategy: a network of an engine may leave weights out of "
            "a step, or normalise by running means, which fully_shard does not know of; write "
            "NO_SHARD"
        )
    if wrong := settings.sharding.wrong_width(world.size):
        raise InputError(f"network: {wrong}")
    from hydragnn_flow.training.parallel.sharded import Sharded  # which imports torch's FSDP

    return Sharded(model, settings.sharding, world, device)
