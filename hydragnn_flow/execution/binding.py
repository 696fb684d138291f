"""Binding of a trainer process: its device, its CPU cores and its network interface."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager

import psutil

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.options import cores_in
from hydragnn_flow.execution.site import Node

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
_DEVICE_LISTS = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "ROCR_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}


def environment(node: Node, position: int) -> dict[str, str | None]:
    """Environment variables with which a process sees its GCD and no other.

    Parameters
    ----------
    node
        What the site's nodes have.
    position
        Position of the GCD on the node.

    Returns
    -------
    dict
        Variables to set; None removes one.

    Raises
    ------
    InputError
        If the batch job was given fewer devices than the site's nodes have.
    """
    variables: dict[str, str | None] = {"OMP_NUM_THREADS": str(node.cores_per_gcd)}
    # torch resolves the name of every rank it connects to, for its messages. On a node whose name
    # server does not answer, ranks met after 20 s with the system's settings and 2 s with these.
    variables["RES_OPTIONS"] = "timeout:1 attempts:1"
    if node.device == "cpu":
        return variables | {"CUDA_VISIBLE_DEVICES": ""}
    # NCCL and RCCL read this once in a process and would otherwise take, and listen on, whichever
    # interface they find first. `=` asks for this very name; the user's own choice is kept.
    if "NCCL_SOCKET_IFNAME" not in os.environ:
        variables["NCCL_SOCKET_IFNAME"] = f"={node.interface or LOOPBACK}"
    device = _device(node, position)
    if node.device == "hip":
        # ROCR_VISIBLE_DEVICES filters first; CUDA_ and HIP_VISIBLE_DEVICES would then index what
        # is left and hide every GCD but the first (parsl issue 3858).
        return variables | {
            "ROCR_VISIBLE_DEVICES": device,
            "CUDA_VISIBLE_DEVICES": None,
            "HIP_VISIBLE_DEVICES": None,
        }
    if node.device == "cuda":
        # Devices in the order of the bus, as the cores are; by default the fastest comes first.
        return variables | {
            "CUDA_VISIBLE_DEVICES": device,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "ROCR_VISIBLE_DEVICES": None,
        }
    # Tiles have numbers of their own, or are written `card.tile`; the hierarchy says which.
    hierarchy = "COMPOSITE" if "." in device else "FLAT"
    return variables | {"ZE_AFFINITY_MASK": device, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}


def _device(node: Node, position: int) -> str:
    """The device's name for this batch job, which may have been given some of the node's only.

    A scheduler that confines a job to some devices says which in the variable that programs read;
    one that hides the others numbers the rest anew from 0, and needs no care.
    """
    variable = _DEVICE_LISTS[node.device]
    given = [name for name in os.environ.get(variable, "").split(",") if name]
    if not given or set(node.gcds) <= set(given):
        return node.gcds[position]
    if position >= len(given):
        raise InputError(
            f"GCD {node.gcds[position]} of {socket.gethostname()}: the batch job was given only "
            f"{variable}={','.join(given)}; ask the scheduler for whole nodes, or give the site "
            f"{len(given)} GCDs"
        )
    return given[position]


def cores_of(node: Node, position: int) -> set[int]:
    """The CPU cores of a GCD, as far as this process may use them; empty if it is not bound."""
    if not node.cores or not hasattr(os, "sched_getaffinity"):
        return set()
    return cores_in(node.cores[position]) & os.sched_getaffinity(0)


@contextmanager
def bound_to(cores: Set[int]) -> Iterator[None]:
    """Have processes that are started within a ``with`` block run on these cores alone.

    They inherit it from the calling thread, so they are bound before they allocate memory or start
    threads of their own. Without cores nothing is bound.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def address_of(interface: str) -> str:
    """The IP address of one of this machine's network interfaces.

    An address, not a name: a compute node need not reach a name server.

    Raises
    ------
    InputError
        If there is no such interface, or it has no IPv4 address.
    """
    interfaces = psutil.net_if_addrs()
    for address in interfaces.get(interface, []):
        if address.family == socket.AF_INET:
            return address.address
    having = [name for name, found in interfaces.items() if any(a.family == 2 for a in found)]
    raise InputError(
        f"{socket.gethostname()} has no network interface '{interface}' with an IPv4 address (it "
        f"has {', '.join(having)}); correct the site's `interface`"
    )
