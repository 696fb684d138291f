"""Rendezvous of the ranks (processes) of a job before they start.

The first rank opens a key-value store on one address of one network interface and writes the
address to a file; the others wait for that file. Neither host names nor agreed ports are needed,
and ranks need not start together. On each node, one rank looks at the file on the shared file
system, and copies it for the others.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its stubs
from torch.distributed.distributed_c10d import Store

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.binding import LOOPBACK, address_of
from hydragnn_flow.files import write_json
from hydragnn_flow.training.monitor import Stopped

FILE = "rendezvous.json"
_NODE = socket.gethostname()
SLINGSHOT = Path("/sys/class/cxi")
"""Folder that a node on the network Slingshot has, with its network cards."""


class RanksMissing(RuntimeError):
    """Error of a rank (process of a job) that waited too long for the job's other ranks."""


@contextmanager
def rendezvous(
    folder: str | None,
    here: str,
    key: str,
    interface: str | None,
    patience: float,
    *,
    rank: int,
    size: int,
    should_stop: Callable[[], bool],
) -> Iterator[Store]:
    """Context manager: let all ranks (processes) of a job meet; yield their key-value store.

    Parameters
    ----------
    folder
        Directory visible to all ranks; None if all ranks are on this node, or if another rank on
        this node reads the directory.
    here
        Existing directory visible to the ranks on this node.
    key
        Key that distinguishes this rendezvous from earlier ones in the folder.
    interface
        Network interface between the ranks; None for loopback.
    patience
        Longest time that each rank waits [s].
    rank, size
        Index of this rank, and number of ranks.
    should_stop
        Function called while waiting; True ends the wait.

    Raises
    ------
    RanksMissing
        If a rank has not come after ``patience``; the message names it.
    Stopped
        If ``should_stop`` returned True.
    InputError
        If this machine lacks the interface, or none is given and the ranks are on several nodes.
    """
    address = address_of(interface or LOOPBACK)
    os.environ["GLOO_SOCKET_IFNAME"] = interface or LOOPBACK
    end = time.monotonic() + patience
    local, shared = Path(here) / FILE, None if folder is None else Path(folder) / FILE

    def pause(seconds: float = 0.2) -> None:
        if should_stop():
            raise Stopped("asked to stop before the ranks had met")
        time.sleep(seconds)

    if rank == 0:
        store = _open(address)
        place: dict[str, Any] = {
            "key": key,
            "node": _NODE,
            "address": address,
            "port": store.port,
        }
        write_json(local, place)
        if shared is not None:
            shared.parent.mkdir(parents=True, exist_ok=True)
            write_json(shared, place)
    else:
        while (found := _published(shared or local, key)) is None:
            if time.monotonic() > end:
                raise RanksMissing(
                    f"rank {rank} of {size} waited {patience:.0f} s for rank 0, which did not come"
                )
            pause(1.0 if shared else 0.2)  # all nodes share the file system
        place = found
        if shared:
            write_json(local, place)
        if interface is None and place["node"] != _NODE:
            raise InputError(
                f"a gang has ranks on {place['node']} and {_NODE}, and the site does not say how "
                f"they reach each other; name its network `interface`"
            )
        store = TCPStore(
            place["address"], place["port"], is_master=False, timeout=timedelta(seconds=30)
        )
    names = [f"rank {number}" for number in range(size)]
    store.set(names[rank], f"{_step()} on {_NODE}")
    while not store.check(names):
        if time.monotonic() > end:
            missing = [name for name in names if not store.check([name])]
            raise RanksMissing(
                f"only {size - len(missing)} of {size} ranks met in {patience:.0f} s "
                f"(missing: {', '.join(missing)})"
            )
        pause()
    places = [told.decode().split(" on ") for told in store.multi_get(names)]
    # oneCCL without an MPI launcher asks for both (its CCL_PROCESS_LAUNCHER `none`).
    neighbours = [number for number, (_, node) in enumerate(places) if node == _NODE]
    os.environ["CCL_LOCAL_RANK"] = str(neighbours.index(rank))
    os.environ["CCL_LOCAL_SIZE"] = str(len(neighbours))
    if len(steps := {step for step, _ in places}) > 1 and SLINGSHOT.exists():
        # Slingshot connects only processes of one job step, which share its VNI. RCCL's plugin does
        # not know that and would wait for ever. oneCCL takes the provider of libfabric (oneCCL,
        # Transport Selection).
        sockets = {"NCCL_NET": "Socket", "FI_PROVIDER": "tcp"}
        os.environ |= sockets | {"FI_TCP_IFACE": interface or LOOPBACK}
        print(f"rank {rank}: the ranks are in {len(steps)} job steps, and use sockets")
    yield store


def _step() -> str:
    """Return the name of the Slurm or PBS job step that this process belongs to."""
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID", "")
    return f"step {job}.{os.environ.get('SLURM_STEP_ID', '')}"


def _open(address: str) -> TCPStore:
    """Open a key-value store that listens on ``address`` only; torch listens on all by default."""
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=30),
            master_listen_fd=listener.detach(),
        )


def _published(path: Path, key: str) -> dict[str, Any] | None:
    try:
        place: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return place if place["key"] == key else None
