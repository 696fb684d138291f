"""Sharded training: each rank holds a shard of the network (FSDP2).

Rajbhandari et al., arXiv:1910.02054, stages 2 and 3; Zhao et al., arXiv:2304.11277. Parameters are
sharded by rows. Each rank holds its rows of the parameters, gradients, optimiser state, average and
best weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from hydragnn_flow.config.network.training import Sharding
from hydragnn_flow.models import PropertyModel
from hydragnn_flow.training.checkpoints.checkpoint import ROWS, Rows, divided
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.parallel.alone import Parallel


class Sharded(Parallel):
    """Parallel strategy FSDP: each rank holds a shard (some rows) of every parameter.

    Message-passing layers are gathered one by one. A potential is gathered as a whole, because its
    forces are a gradient within the forward pass, and their own gradient reads all layers again.

    Parameters
    ----------
    model
        The network; if it is on the CPU, its shards are moved to the device layer by layer.
    settings
        Section `Training.sharding`.
    world
        Rank of this process and number of ranks.
    device
        Device that the ranks compute on.
    """

    is_sharded = True

    def __init__(
        self, model: nn.Module, settings: Sharding, world: World, device: torch.device
    ) -> None:
        self.files = settings.replica(world.size)
        self._rank, self._part = world.rank, world.rank % self.files
        mesh = _mesh(world.size, self.files, device)
        self._units: list[FSDPModule] = [
            fully_shard(module, mesh=mesh, reshard_after_forward=settings.reshards)
            for module in [*_units(model), model]
        ]
        super().__init__(model)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this rank's loss to the sharded gradients, which FSDP exchanges."""
        # Not with `inputs`: the pass differentiates by the gathered parameters.
        loss.backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """Context manager: accumulate gradients on each rank, unsharded, without exchange."""
        self._exchange(False)
        try:
            yield
        finally:
            self._exchange(True)

    def part_ways(self) -> None:
        """Stop the exchange with other ranks for good, to time steps as if this rank were alone.

        From its next step on each rank holds all weights. The results are meaningless.
        """
        self._exchange(False)
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.set_reshard_after_backward(False, recurse=False)

    def norm(self) -> Tensor:
        """Compute the norm of the gradient of all shards (collective)."""
        norm = super().norm()
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def settle(self) -> None:
        """Release weights that this rank has gathered from others beyond its own shard.

        Call this before weights are read or changed outside of a training step.
        """
        for unit in self._units:
            unit.reshard()

    def taken_apart(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """Divide a checkpoint's content between the first rank's file and this rank's shard (file).

        Only ranks of the first replica write shards; others get an empty mapping.
        """
        state, rows = divided(state, _rows_here)
        return state, {self._rank: {ROWS: rows}} if self._rank < self.files else {}

    def part(self, value: Tensor | Rows, like: Tensor) -> Tensor:
        """Return this rank's rows of a checkpoint's tensor, sharded and placed like ``like``."""
        if not isinstance(like, DTensor):
            return super().part(value, like)
        rows = -(-len(like) // self.files)
        mine = value[self._part * rows : (self._part + 1) * rows].to(like.device, like.dtype)
        return DTensor.from_local(
            mine.clone(),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def _exchange(self, on: bool) -> None:
        for unit in self._units:
            unit.set_requires_gradient_sync(on, recurse=False)


def _rows_here(value: Tensor) -> Tensor | None:
    """Return this rank's rows of a tensor, on the host; None if it is not sharded."""
    if not isinstance(value, DTensor):
        return None
    with torch.no_grad():
        # A copy, because the file of a view would include the padding of the rows.
        return value.to_local().cpu().clone()


def _units(model: nn.Module) -> Sequence[nn.Module]:
    return list(model.encoder.layers.layers) if isinstance(model, PropertyModel) else []


def _mesh(ranks: int, parts: int, device: torch.device) -> DeviceMesh:
    """Return the mesh of ranks, in which ``parts`` neighbours share one replica of the network."""
    if parts == ranks:
        return init_device_mesh(device.type, (parts,), mesh_dim_names=("part",))
    names = ("replica", "part")
    return init_device_mesh(device.type, (ranks // parts, parts), mesh_dim_names=names)
