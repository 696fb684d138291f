"""Ranks of one job and their devices; a world of one process does not need torch.distributed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from hydragnn_flow.errors import InputError

# Timeout of collective operations; saving a checkpoint has to fit into it.
PATIENCE = timedelta(minutes=5)


class Library(NamedTuple):
    """Communication library of a type of devices, as torch.distributed uses it."""

    backend: str
    errors: tuple[str, ...]
    """Words in its messages about a broken connection."""
    plugins: tuple[str, ...] = ()
    """Files of the plugin for the network Slingshot, any of which will do."""


LIBRARIES = {
    "cpu": Library("gloo", ("gloo/transport", "Connection closed by peer")),
    "cuda": Library("nccl", ("NCCL error",), ("libnccl-net.so",)),
    # RCCL; the name that it looks for depends on its version (OLCF, PyTorch on Frontier).
    "hip": Library("nccl", ("NCCL error",), ("librccl-net.so", "libnccl-net.so")),
    # oneCCL uses libfabric itself; its transport failed, or a collective for that reason.
    "xpu": Library("xccl", ("oneCCL: atl_", "atl_status: FAILURE")),
}
"""Communication library of each type of devices."""
_kept: list[object] = []


@dataclass(frozen=True)
class World:
    """Ranks (processes) of one job: index of this rank, their number, and collective operations."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """True for rank 0 of the job, which writes files and reports."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum the tensor ``values`` over all ranks, in place, and return it (collective)."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def told(self, text: str, device: torch.device, rank: int = 0) -> str:
        """Return on every rank the ``text`` of rank ``rank`` (collective broadcast)."""
        if self.size == 1:
            return text
        said = text.encode(errors="surrogateescape") if self.rank == rank else b""
        length = int(self.sum(torch.tensor(float(len(said)), device=device)))
        codes = [*said] or [0] * length
        codes = self.sum(torch.tensor(codes, dtype=torch.float64, device=device)).tolist()
        return bytes(map(int, codes)).decode(errors="surrogateescape")

    def wait(self) -> None:
        """Wait until every rank of the job has called this method (collective)."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Destroy the job's process group of torch.distributed (collective).

        With NCCL no rank can leave alone.
        """
        if self.is_joined:
            dist.destroy_process_group()

    @property
    def is_joined(self) -> bool:
        """True while the job has other ranks and its process group exists."""
        return self.size > 1 and dist.is_initialized()


def join(rank: int, size: int, store: Store | None, device: str) -> World:
    """Join the process group of a job's ranks; all ranks end it with :meth:`World.leave`.

    A rank that fails with an error that the others do not have must end its process. With NCCL it
    would hang in `destroy_process_group`, waiting for ranks that wait for it.

    Parameters
    ----------
    rank, size
        Index of this process and number of processes.
    store
        New key-value store that all ranks share; a single rank needs none.
    device
        Kind of device that the ranks compute on: `cpu`, `cuda` or `xpu`.
    """
    if size == 1:
        return World()
    dist.init_process_group(
        LIBRARIES[device].backend, store=store, rank=rank, world_size=size, timeout=PATIENCE
    )
    return World(rank, size)


def keep_forever(thing: object) -> None:
    """Keep an object alive until the process ends, which it is about to do.

    If DDP's reducer is freed during an all-reduce, it waits for gloo's thread while holding the
    GIL, which that thread needs (torch 2.13).
    """
    _kept.append(thing)


def lost_a_rank(error: Exception) -> bool:
    """Return whether an error only says that the connection to another rank broke."""
    words = ["TCPStore", *(word for library in LIBRARIES.values() for word in library.errors)]
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


ACCELERATORS = ("cuda", "xpu")
"""Kinds of accelerators that are supported; AMD's are `cuda` to torch. Others lack float64."""


def this_device() -> torch.device:
    """Return this machine's accelerator, or the CPU if it has none.

    A build of torch for an accelerator names its kind even on machines without one.
    """
    seen = torch.accelerator.current_accelerator(check_available=True)
    return torch.device(seen.type if seen is not None and seen.type in ACCELERATORS else "cpu")


def usable_device(name: str | torch.device) -> torch.device:
    """Return the device that torch knows by a name, after checking that it can be used.

    Raises
    ------
    InputError
        If this machine has no such device.
    """
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {name}: cannot be used ({reason}); name one that this machine has, such as cpu"
        ) from None
