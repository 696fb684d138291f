"""The ranks of one job: a world of one process needs no torch.distributed at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

# How long a rank waits for another in a collective operation; saving a checkpoint lies within.
PATIENCE = timedelta(minutes=5)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
# What their messages about a broken connection name.
_TRANSPORTS = ("gloo/transport", "NCCL error", "TCPStore", "Connection closed by peer")


@dataclass(frozen=True)
class World:
    """This process's place among the ranks of a job."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add ``values`` up over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(rank: int, size: int, store: Store | None, device: str) -> Iterator[World]:
    """Be one of the ranks of a job for the length of a ``with`` block.

    Parameters
    ----------
    rank, size
        This process's number, and how many there are.
    store
        Which all ranks share and nobody has used before; a rank that is alone needs none.
    device
        What they compute on: `cpu`, `cuda` or `xpu`.
    """
    if size == 1:
        yield World()
        return
    dist.init_process_group(
        _BACKENDS[device], store=store, rank=rank, world_size=size, timeout=PATIENCE
    )
    try:
        yield World(rank, size)
    finally:
        dist.destroy_process_group()


def lost_a_rank(error: Exception) -> bool:
    """Whether an error says that a connection to another rank broke, and no more than that."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(name in text for name in _TRANSPORTS)
