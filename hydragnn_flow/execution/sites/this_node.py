"""Description of this machine, for sites that describe no other machine."""

from __future__ import annotations

import os
from typing import Any

import psutil

from hydragnn_flow.execution.site import Device, Node, guessed_gcd

# Fraction of the memory of a GCD (or of the machine, per slot) for segments; the rest is left to
# the system.
_USABLE = 0.9


def this_node(interface: str | None = None) -> Node:
    """Describe this machine as a node: one GCD per GPU or, without any, per CPU core.

    There are fewer CPU slots if each would have less than 1 GiB.

    Parameters
    ----------
    interface
        Network interface by which ranks (processes of a job) on several nodes connect.
    """
    # Imported here, since it takes seconds: mistakes in a site's options are reported first.
    import torch

    from hydragnn_flow.training.distributed import this_device

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    kind = this_device().type
    if kind == "cpu":
        total = psutil.virtual_memory().total
        # A CPU slot has at least 1 GiB: a process takes 0.6 before it has a model.
        gcds = max(1, min(cores, int(_USABLE * total / 2**30)))
        memory = total // gcds
        device: Device = "cpu"
    else:
        runtime: Any = torch.get_device_module(kind)
        gcds = runtime.device_count()
        memory = runtime.get_device_properties(0).total_memory
        device = "xpu" if kind == "xpu" else "hip" if torch.version.hip else "cuda"
    return Node(
        gcds=tuple(str(gcd) for gcd in range(gcds)),
        gcd=guessed_gcd(device, _USABLE * memory / 2**30),
        cores_per_gcd=max(1, cores // gcds),
        device=device,
        interface=interface,
    )
