"""Exchange between two GCDs: all-reduces, as the ranks of a gang make them at every step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.site import Node
from hydragnn_flow.execution.workers.rendezvous import rendezvous
from hydragnn_flow.execution.workers.worker import ask_trainer
from hydragnn_flow.processes import ProcessDied
from hydragnn_flow.training.distributed import joined

MIB = 64
"""Size of the array that is summed."""
SECONDS_TO_MEET = 120.0
_TIMES = 5
_PLUGIN = "librccl-net.so"


def run_exchange(node: Node, position: int, request: dict[str, Any]) -> dict[str, Any]:
    """Have a trainer process be one of two ranks; a task of a worker.

    Parameters
    ----------
    node
        What the site's nodes have.
    position
        The GCD, by its position on the node.
    request
        As :func:`exchange` takes it.

    Returns
    -------
    dict
        Its answer, or a ``fault``.
    """
    try:
        answer = ask_trainer(node, f"{__name__}:exchange", request, position)
    except (ProcessDied, OSError, InputError) as error:
        return {"fault": str(error)}
    fault = answer.get("reason") or answer.get("error")
    return {"fault": str(fault)} if fault else answer


def exchange(request: dict[str, Any]) -> dict[str, Any]:
    """Sum arrays over two ranks; what a trainer process answers.

    Parameters
    ----------
    request
        ``device`` for torch; ``rank``; ``folder``, ``key`` and ``interface`` of the rendezvous.

    Returns
    -------
    dict
        ``gb_per_s``, the array's size divided by the time of an all-reduce [10⁹ bytes/s], the best
        of some; and ``missing``, the plugin that RCCL lacks to use Slingshot, empty if it has all.

    Raises
    ------
    InputError
        If the sums are wrong, or there is no such interface.
    """
    device, rank = request["device"], request["rank"]
    with (
        TemporaryDirectory() as here,
        rendezvous(
            *(request["folder"], here, request["key"], request["interface"], SECONDS_TO_MEET),
            leads=True,
            rank=rank,
            size=2,
            should_stop=lambda: False,
        ) as store,
        joined(rank, 2, store, device),
    ):
        least = float("inf")
        for _ in range(_TIMES):
            array = torch.full((MIB * 2**18,), float(rank + 1), device=device)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(array)
            is_right = bool((array == 3.0).all())  # waits for the device
            least = min(least, time.perf_counter() - begin)
            if not is_right:
                raise InputError("an all-reduce gives wrong sums; report the nodes to their centre")
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    needs_plugin = torch.version.hip is not None and request["interface"] is not None
    return {
        "gb_per_s": MIB * 2**20 / least / 1e9,
        "missing": _PLUGIN if needs_plugin and not has_plugin(folders) else "",
    }


def has_plugin(folders: list[str]) -> bool:
    """Whether a directory has the library by which RCCL uses Slingshot."""
    return any(Path(folder, _PLUGIN).exists() for folder in folders if folder)
