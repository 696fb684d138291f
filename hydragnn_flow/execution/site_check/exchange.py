"""Exchange between two GCDs: all-reduces, as the ranks of a gang do at every step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hydragnn_flow.errors import InputError

MIB = 64
"""Size of the array that is summed [MiB]."""
_PLUGIN = "librccl-net.so"


def exchange(request: dict[str, Any]) -> dict[str, Any]:
    """Sum arrays over two joined ranks, in trainer processes.

    Parameters
    ----------
    request
        ``device`` for torch; ``interface`` on which nodes exchange data, or None.

    Returns
    -------
    dict
        ``gb_per_s``, the array's size divided by the shortest time of an all-reduce [10⁹ bytes/s];
        and ``missing``, the plugin that RCCL lacks to use Slingshot, or empty.

    Raises
    ------
    InputError
        If the sums are wrong.
    """
    device, least = request["device"], float("inf")
    for _ in range(5):
        array = torch.full((MIB * 2**18,), float(dist.get_rank() + 1), device=device)
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
    """Return whether a directory has the library by which RCCL uses Slingshot."""
    return any(Path(folder, _PLUGIN).exists() for folder in folders if folder)
