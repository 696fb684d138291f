"""Probe of a GCD from a trainer process, and of the data exchange between two GCDs."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist

from hydragnn_flow.data import GraphStore
from hydragnn_flow.energy_counters import NodeMeter
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import address_of
from hydragnn_flow.execution.workers.rendezvous import SLINGSHOT
from hydragnn_flow.training.distributed import LIBRARIES
from hydragnn_flow.training.monitor import EnergyMeter
from hydragnn_flow.training.recorded import RECORDERS, replays_wanted

# Properties that together identify a device. A runtime's own identifier may be shared by the two
# GCDs of a card or by the tiles of a GPU.
_IDENTITY = ("uuid", "pci_domain_id", "pci_bus_id", "pci_device_id")


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Describe the device, cores and network interface of this trainer process.

    Parameters
    ----------
    request
        ``device``, torch's type (`cuda`, `xpu`, `cpu`); ``store``, the path of a store to read, or
        None; ``interface``, the network interface between ranks (processes of a job), or None.

    Returns
    -------
    dict
        ``device`` (its name), ``identity`` (distinctive properties of the device; None on CPUs),
        ``memory_gib``, ``cores`` (numbers of the cores that this process may use), ``threads``
        (number of torch's threads), ``torch`` (version),
        ``start_seconds`` (from the start of the process, all imports included), ``graphs`` of the
        store and ``address`` on the interface (None if not requested), ``energy`` and
        ``node_energy`` (counters of the GCD and of the node; empty if there are none),
        ``not_replayed`` (reason why it cannot replay recorded steps; empty if it can or need not).

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
        "not_replayed": _not_replayed(request["device"]),
        "graphs": None if request["store"] is None else _read(request["store"]),
        "address": None if request["interface"] is None else address_of(request["interface"]),
    }


def _device(device: str) -> dict[str, Any]:
    """Describe the only device of torch's type ``device`` here: name, identity, memory [GiB]."""
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


def _not_replayed(device: str) -> str:
    """Return why a GPU cannot replay recorded kernels, in a process that may crash; else empty."""
    if device not in RECORDERS or not replays_wanted():
        return ""
    code = f"import {__name__} as probe; probe.replay()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
        )
    except subprocess.TimeoutExpired:
        return "it hung"
    last = (done.stderr.strip().splitlines() or ["it crashed"])[-1]
    return "" if done.returncode == 0 else f"{last}, status {done.returncode}"


def replay(device: str = "cuda") -> None:
    """Record 4,000 kernels, about as many as the largest step has, and replay them twice.

    Raises
    ------
    RuntimeError
        If the device computes something else than without recording.
    """
    kernels = 4000
    numbers, recorder = torch.zeros(64, device=device), RECORDERS[device](torch.device(device))

    def work() -> None:
        for _ in range(kernels):
            numbers.add_(1.0)

    work()
    again = recorder.record(work)
    numbers.zero_()
    again()
    again()
    if not bool((numbers == 2 * kernels).all()):
        raise RuntimeError("replayed kernels compute something else")


def _read(path: str) -> int:
    """Open the store at ``path`` and read a graph of each split; return its number of graphs."""
    with GraphStore.open(path, "random") as store:
        for name in store.splits:
            if len(store[name]):
                store[name][0]
        return sum(len(store[name]) for name in store.splits)


MIB = 64
"""Size of the array that is summed [MiB]."""


def exchange(request: dict[str, Any]) -> dict[str, Any]:
    """Measure how fast two ranks (processes), this one and another, sum arrays by an all-reduce.

    Parameters
    ----------
    request
        ``device``, torch's type; ``interface`` between the nodes, None if there is only one node.

    Returns
    -------
    dict
        ``gb_per_s``, the array's size divided by the shortest time of an all-reduce [10⁹ bytes/s];
        and ``missing``, the reason why NCCL or RCCL has no plugin for Slingshot, or empty.

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
    is_slingshot = request["interface"] is not None and SLINGSHOT.exists()
    kind = "hip" if torch.version.hip else device
    return {
        "gb_per_s": MIB * 2**20 / least / 1e9,
        "missing": missing_plugin(kind) if is_slingshot else "",
    }


def missing_plugin(device: str) -> str:
    """Return why the plugin for Slingshot cannot be loaded; empty if it can, or none is needed.

    NCCL and RCCL look for it as the loader does (`LD_LIBRARY_PATH`), unless `NCCL_NET_PLUGIN` gives
    a path or another name.

    Parameters
    ----------
    device
        Type of the devices: `cuda`, `hip`, `xpu` or `cpu`.
    """
    names, said = LIBRARIES[device].plugins, ""
    if names and (given := os.environ.get("NCCL_NET_PLUGIN")):
        names = tuple(
            form for name in given.split(",") for form in (name, f"libnccl-net-{name}.so")
        )
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            said = said or str(error)
        else:
            return ""
    return said
