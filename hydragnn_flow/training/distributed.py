"""The ranks of one job: a world of one process needs no torch.distributed at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

# How long a rank waits for another in a collective operation; saving a checkpoint is within it.
PATIENCE = timedelta(minutes=5)
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
_kept: list[object] = []
# Words in their messages about a broken connection.
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

    def told(self, text: str, device: torch.device, rank: int = 0) -> str:
        """What one rank has to say to all of them; all ranks call this."""
        if self.size == 1:
            return text
        said = text.encode(errors="surrogateescape") if self.rank == rank else b""
        length = int(self.sum(torch.tensor(float(len(said)), device=device)))
        codes = [*said] or [0] * length
        codes = self.sum(torch.tensor(codes, dtype=torch.float64, device=device)).tolist()
        return bytes(map(int, codes)).decode(errors="surrogateescape")

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """End what the ranks do together; all call this, as with NCCL none can leave alone."""
        if self.is_joined:
            dist.destroy_process_group()

    @property
    def is_joined(self) -> bool:
        """Whether there are other ranks that have not been left yet."""
        return self.size > 1 and dist.is_initialized()


def join(rank: int, size: int, store: Store | None, device: str) -> World:
    """Be one of the ranks of a job, until all :meth:`World.leave` it.

    A rank that ends otherwise, by an error that the others do not have, must end its process: with
    NCCL it would wait in `destroy_process_group` for those that wait for it.

    Parameters
    ----------
    rank, size
        This process's number, and how many there are.
    store
        A fresh key-value store that all ranks share; a single rank needs none.
    device
        What they compute on: `cpu`, `cuda` or `xpu`.
    """
    if size == 1:
        return World()
    # ZeRO's ranks send their states pickled, over connections that anybody on the network may make,
    # and torch reads them as it reads any pickle: it may run code. Read as weights they cannot.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)  # torch refuses both
    dist.init_process_group(
        _BACKENDS[device], store=store, rank=rank, world_size=size, timeout=PATIENCE
    )
    return World(rank, size)


@contextmanager
def joined(rank: int, size: int, store: Store | None, device: str) -> Iterator[World]:
    """As :func:`join`, and leave at the end of a ``with`` block that all ranks come to."""
    world = join(rank, size, store, device)
    yield world
    world.leave()


def keep_forever(thing: object) -> None:
    """Do not free a thing; for a process that is about to end.

    Freed with an all-reduce on its way, DDP's reducer waits for gloo's thread while it holds the
    lock of Python that this thread wants (torch 2.13).
    """
    _kept.append(thing)


def lost_a_rank(error: Exception) -> bool:
    """Whether an error says that a connection to another rank broke, and no more than that."""
    text = str(error)
    return isinstance(error, RuntimeError) and any(name in text for name in _TRANSPORTS)
