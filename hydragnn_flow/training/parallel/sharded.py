"""Training by ranks each of which holds a part of the network (FSDP2).

Rajbhandari et al., arXiv:1910.02054, stages 2 and 3; Zhao et al., arXiv:2304.11277. Parameters are
divided by rows. Each rank holds its rows of the parameters, of their gradients, of the optimiser's
state, of the average and of the best weights so far.
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

from hydragnn_flow.config.network import Sharding
from hydragnn_flow.models import PropertyModel
from hydragnn_flow.training.checkpoint_parts import ROWS, Rows, divided
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.parallel.alone import Parallel


class Sharded(Parallel):
    """Training of a network of which each rank holds a part.

    Layers of message passing are gathered one by one. A potential is gathered as a whole: its
    forces are a gradient within the forward pass, whose own gradient reads all layers once more.

    Parameters
    ----------
    model
        The network; if on the CPU, its parts come to the device layer by layer.
    settings
        `Training.sharding`.
    world
        This process's place among the ranks.
    device
        What the ranks compute on.
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
        if settings.prefetch == "none":
            for unit in self._units:
                # In place of the layer that comes next; what is there already is not gathered.
                unit.set_modules_to_backward_prefetch([unit])
        super().__init__(model)

    def backward(self, loss: Tensor) -> None:
        """See :meth:`Parallel.backward`."""
        # Not by `inputs`: what the pass differentiates by are the gathered parameters.
        loss.backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def without_exchange(self) -> Iterator[None]:
        """See :meth:`Parallel.without_exchange`; whole gradients are held until they are."""
        self._exchange(False)
        try:
            yield
        finally:
            self._exchange(True)

    def part_ways(self) -> None:
        """See :meth:`Parallel.part_ways`; each rank holds all weights from its next step on."""
        self._exchange(False)
        for unit in self._units:
            unit.set_reshard_after_forward(False, recurse=False)
            unit.set_reshard_after_backward(False, recurse=False)

    def clip(self, most: float) -> Tensor:
        """See :meth:`Parallel.clip`."""
        norm = super().clip(most)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def settle(self) -> None:
        """See :meth:`Parallel.settle`."""
        for unit in self._units:
            unit.reshard()

    def taken_apart(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """See :meth:`Parallel.taken_apart`: the first replica's ranks write all of the network."""
        state, rows = divided(state, _rows_here)
        return state, {self._rank: {ROWS: rows}} if self._rank < self.files else {}

    def part(self, value: Tensor | Rows, like: Tensor) -> Tensor:
        """See :meth:`Parallel.part`."""
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
    """The rows that this rank has of a tensor, on the host; None if it has all."""
    if not isinstance(value, DTensor):
        return None
    with torch.no_grad():
        # A copy, or a file of it would hold what the rows are padded with.
        return value.to_local().cpu().clone()


def _units(model: nn.Module) -> Sequence[nn.Module]:
    return list(model.encoder.layers.layers) if isinstance(model, PropertyModel) else []


def _mesh(ranks: int, parts: int, device: torch.device) -> DeviceMesh:
    """Ranks by replica and part; neighbours, which are on one node if may be, share a replica."""
    if parts == ranks:
        return init_device_mesh(device.type, (parts,), mesh_dim_names=("part",))
    names = ("replica", "part")
    return init_device_mesh(device.type, (ranks // parts, parts), mesh_dim_names=names)
