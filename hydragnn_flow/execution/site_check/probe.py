"""Probe of a GCD, from a process that would train on it."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import psutil
import torch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.energy_counters import NodeMeter
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import address_of
from hydragnn_flow.training.energy import EnergyMeter

# Properties that together identify a device. A runtime's own identifier may be shared by the two
# GCDs of a card or by the tiles of a GPU.
_IDENTITY = ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id")


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Describe the device, cores and interface of this process, a trainer process.

    Parameters
    ----------
    request
        ``device`` for torch (`cuda`, `xpu`, `cpu`); ``store``, the path of a store to read, or
        None; ``interface``, the network interface on which ranks meet, or None.

    Returns
    -------
    dict
        ``device`` and ``identity`` (its name, and its distinctive properties; None on CPUs),
        ``memory_gib``, ``cores`` (those this process may use), ``threads``, ``torch``,
        ``start_seconds`` (from the start of the process, all imports included), ``graphs`` of the
        store and ``address`` on the interface (None if not requested), ``energy`` and
        ``node_energy`` (counters of the GCD and of the node; empty if there are none).

    Raises
    ------
    InputError
        If there is no such device or interface, or the store cannot be read.
    """
    started = time.time() - psutil.Process().create_time()
    found = _device(request["device"])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    of_node = NodeMeter().read()
    return found | {
        "energy": EnergyMeter(torch.device(request["device"])).source,
        "node_energy": "" if of_node is None else of_node.counters,
        "cores": cores,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "start_seconds": started,
        "graphs": None if request["store"] is None else _read(request["store"]),
        "address": None if request["interface"] is None else address_of(request["interface"]),
    }


def _device(device: str) -> dict[str, Any]:
    """Name, identity and memory of the only device that this process sees."""
    if device == "cpu":
        memory = psutil.virtual_memory().total
        return {
            "device": platform.processor() or "CPU",
            "identity": None,
            "memory_gib": memory / 2**30,
        }
    runtime: Any = torch.get_device_module(device)
    seen = runtime.device_count()
    if seen != 1:
        raise InputError(
            f"torch {torch.__version__} sees {seen} devices, and not one; install the build for "
            "this machine, or correct the GCDs of the site"
        )
    properties = runtime.get_device_properties(0)
    side = 256
    ones = torch.ones(side, side, device=device)
    if not bool((ones @ ones == side).all()):
        raise InputError(f"{properties.name} multiplies wrongly; report the node to its centre")
    return {
        "device": properties.name,
        "identity": " ".join(str(getattr(properties, name, "")) for name in _IDENTITY),
        "memory_gib": properties.total_memory / 2**30,
    }


def _read(path: str) -> int:
    """Open a store and read a graph of each split; return the total number of graphs."""
    with GraphStore.open(path, "random") as store:
        for name in store.splits:
            if len(store[name]):
                store[name][0]
        return sum(len(store[name]) for name in store.splits)
