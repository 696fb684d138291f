"""The ranks of one job: a world of one process needs no torch.distributed at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


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
def joined(rank: int, size: int, rendezvous: str, device: str) -> Iterator[World]:
    """Meet the other ranks of a job for the length of a ``with`` block.

    Parameters
    ----------
    rank, size
        This process's number, and how many there are.
    rendezvous
        A file on a disk all ranks see, absent at first, where they meet.
    device
        What they compute on: `cpu`, `cuda` or `xpu`.
    """
    if size == 1:
        yield World()
        return
    dist.init_process_group(
        _BACKENDS[device],
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=RENDEZVOUS_TIMEOUT,
    )
    try:
        yield World(rank, size)
    finally:
        dist.destroy_process_group()
