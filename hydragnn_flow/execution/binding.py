"""Binding of a trainer process to its device, CPU cores and network interface."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager

import psutil

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.site import Node, cores_in

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
_DEVICE_LISTS = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "hip": "ROCR_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
}
# oneCCL of ranks that no MPI launcher started (oneCCL, Environment Variables). Aurora's modules set
# the launcher `pmix` and the transport `mpi`. Of oneCCL 2021.17 on CPUs, two such processes ended
# with an error of MPI by these, and summed arrays by what is here.
_WITHOUT_MPI = {
    "CCL_PROCESS_LAUNCHER": "none",  # with CCL_LOCAL_RANK and CCL_LOCAL_SIZE, of each gang
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_KVS_MODE": None,  # `mpi` is only for the transport `mpi`
    "CCL_ZE_IPC_EXCHANGE": "sockets",  # ALCF, vLLM on Aurora: ranks that mpiexec did not start
}


def environment(node: Node, position: int) -> dict[str, str | None]:
    """Return the environment variables with which a trainer process sees only its own GCD.

    Parameters
    ----------
    node
        Description of the site's nodes.
    position
        Position of the GCD on the node, from 0.

    Returns
    -------
    dict
        Values of variables to set by name; None removes a variable.

    Raises
    ------
    InputError
        If the batch job got fewer devices than the site's nodes have.
    """
    variables: dict[str, str | None] = {"OMP_NUM_THREADS": str(node.cores_per_gcd)}
    # torch resolves the host name of every rank it connects to. On a node whose name server did
    # not answer, ranks met after 20 s with the system's settings, and after 2 s with these.
    variables["RES_OPTIONS"] = "timeout:1 attempts:1"
    if node.device == "cpu":
        return variables | {"CUDA_VISIBLE_DEVICES": ""}
    device, interface = _device(node, position), node.interface or LOOPBACK
    # Communication libraries read these once per process, and would otherwise listen on whichever
    # interface they find first. `=` requires this exact name; the user's own choice is kept.
    name, value = "NCCL_SOCKET_IFNAME", f"={interface}"
    if node.device == "xpu":
        name, value = "CCL_KVS_IFACE", interface
    if name not in os.environ:
        variables[name] = value
    if node.device == "hip":
        # ROCR_VISIBLE_DEVICES filters first; CUDA_ and HIP_VISIBLE_DEVICES would then index what
        # is left and hide every GCD but the first (parsl issue 3858).
        return variables | {
            "ROCR_VISIBLE_DEVICES": device,
            "CUDA_VISIBLE_DEVICES": None,
            "HIP_VISIBLE_DEVICES": None,
        }
    if node.device == "cuda":
        # Devices in PCI order, like the cores; by default the fastest device comes first.
        return variables | {
            "CUDA_VISIBLE_DEVICES": device,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "ROCR_VISIBLE_DEVICES": None,
        }
    # Tiles have numbers of their own, or are written `card.tile`; the hierarchy says which.
    hierarchy = "COMPOSITE" if "." in device else "FLAT"
    return (
        variables
        | _WITHOUT_MPI
        | {"ZE_AFFINITY_MASK": device, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    )


def _device(node: Node, position: int) -> str:
    """Return the name of the device of the GCD at index ``position`` on this node.

    The batch job may have only some of the node's devices. A scheduler may name these in the
    variable that programs read. If it hides the other devices instead, it numbers these from 0.
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
    """Return the numbers of the CPU cores to which a GCD's process is bound; empty for no binding.

    ``position`` is the index of the GCD on the node.
    """
    if not node.cores or not hasattr(os, "sched_getaffinity"):
        return set()
    return cores_in(node.cores[position]) & os.sched_getaffinity(0)


@contextmanager
def bound_to(cores: Set[int]) -> Iterator[None]:
    """Context manager: bind processes that are started inside it to the cores with these numbers.

    The processes inherit the binding from the calling thread, so it holds before they allocate
    memory or start threads. If ``cores`` is empty, nothing is bound.
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
    """Find the IPv4 address of one of this machine's network interfaces, such as `hsn0`.

    An address is used rather than a name since a compute node may reach no name server.

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
