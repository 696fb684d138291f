"""Parsl's interchange, ending with the driver that started it.

Parsl's own lives on when its driver is killed, and keeps the worker pools alive with it: processes
on a shared login node and idle nodes, until a person notices. Run with the driver as its parent,
this one ends within seconds of it; the pools then miss its heartbeat and end too.

Each worker pool that is connected takes a file descriptor. When a process has no descriptor left,
libzmq lets no more pools in and says nothing, so this one takes all that it may have.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
from contextlib import suppress

from hydragnn_flow.errors import InputError
from hydragnn_flow.processes import end_with_parent

# Descriptors beside those of worker pools.
SPARE_DESCRIPTORS = 100


def check_descriptors(site: str, nodes: int) -> None:
    """Refuse more nodes than an interchange may be connected with.

    Raises
    ------
    InputError
        If the hard limit of this host's processes is too low.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < nodes + SPARE_DESCRIPTORS:
        raise InputError(
            f"site {site}: {nodes} nodes take {nodes + SPARE_DESCRIPTORS} file descriptors, and a "
            f"process of this host may have {most} (`ulimit -Hn`); give fewer `nodes`, or have the "
            "limit raised"
        )


def _take_descriptors() -> None:
    """Raise the soft limit, often 1024, to the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS takes no unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    # Ctrl-C in a terminal, and its loss, are for the driver, which ends this process when it has
    # given all back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _take_descriptors()
    end_with_parent(os.getppid())
    runpy.run_module("parsl.executors.high_throughput.interchange", run_name="__main__")
