"""Bytes that a rank sends in the collectives of a training step."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.trainer import Trainer

# Which argument has all that is summed, gathered or scattered; how often that goes around a ring.
_PAYLOADS = {
    "allreduce_": (0, 2),
    "all_reduce": (0, 2),
    "all_reduce_": (0, 2),
    "_allgather_base_": (0, 1),
    "_reduce_scatter_base_": (1, 1),
}


class Traffic(TorchDispatchMode):
    """Counts the bytes of collectives of all ranks, each sent around a ring."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.bytes, self.seen, self._ranks = 0.0, 0, ranks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it is taken apart, and comes here again
        if func.namespace in ("c10d", "_c10d_functional"):
            name = func.overloadpacket.__name__
            if name in _PAYLOADS:
                place, times = _PAYLOADS[name]
                payload = sum(tensor.nbytes for tensor in tree_leaves(args[place]))
                self.bytes += times * (self._ranks - 1) / self._ranks * payload
                self.seen += 1
        return func(*args, **(kwargs or {}))


def sent(world: World, specs: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Bytes that a step sends, and bytes of the parameters, by network."""
    found = {}
    for name, values in specs.items():
        spec = read_segment(values)
        trainer = Trainer(spec, GraphStore.open(spec.store.path), torch.device("cpu"), world)
        trainer.model.train()
        steps = trainer.plan(0)[:3]
        batches = list(trainer.micro_batches(steps))
        for step, pieces in zip(steps[:2], batches, strict=False):
            trainer.train_step(step, pieces)  # DDP arranges its buckets anew in the second
        before = _collectives()
        with Traffic(world.size) as traffic:
            trainer.train_step(steps[2], batches[2])
        assert traffic.seen == _collectives() - before, "a collective was not seen"
        whole = sum(weight.numel() * weight.element_size() for weight in trainer.parallel.weights)
        found[name] = traffic.bytes, float(whole)
    return found


def _collectives() -> int:
    """Number of collectives of all groups so far."""
    groups: Any = distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)
