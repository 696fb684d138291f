"""Parsl's worker pool under a name that says which node it is on.

Started on each node of a block in place of `process_worker_pool.py`. Parsl tells the driver the
identifiers of the pools that are connected, and not their nodes; with the node in the identifier,
a node that spoils work can be told apart.
"""

from __future__ import annotations

import os
import platform
import runpy
import sys
import uuid
from collections.abc import Callable
from typing import Any

PARSLS = "parsl.executors.high_throughput.process_worker_pool"


def node_of(manager: str) -> str:
    """The node on which a worker pool with such an identifier runs."""
    return manager.rpartition("-")[0]


def run_in_block(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Call a function; returns the block of this worker too, whose workers are good then."""
    return os.environ.get("PARSL_WORKER_BLOCK_ID", ""), function(*arguments)


if __name__ == "__main__":
    sys.argv += ["--uid", f"{platform.node()}-{uuid.uuid4().hex[:12]}"]
    # Altered, for the worker processes to find the pool's main module.
    runpy.run_module(PARSLS, run_name="__main__", alter_sys=True)
