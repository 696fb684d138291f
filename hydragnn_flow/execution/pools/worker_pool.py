"""Parsl's worker pool under a name that says which node it is on.

Started on each node of a block in place of `process_worker_pool.py`. Parsl tells the driver the
identifiers of the pools that are connected, and not their nodes; with the node in the identifier,
a node that spoils work can be identified.
"""

from __future__ import annotations

import os
import pickle
import platform
import runpy
import sys
import time
import uuid
from collections.abc import Sequence

_PARSLS = "parsl.executors.high_throughput.process_worker_pool"
# Seconds before the end of its batch job at which a pool stops accepting tasks (a tenth of short
# jobs). Segments stop a little before that end, and would otherwise return to the same job.
MOST_TO_DRAIN, LEAST_TO_DRAIN = 90, 20
_DRAIN = "--drain_period"


def node_of(manager: str) -> str:
    """The node on which a worker pool with such an identifier runs."""
    return manager.rpartition("-")[0]


def run_in_block(task: bytes) -> tuple[str, bytes]:
    """Call a function; returns the block of this worker as well, which is proved to work.

    Parameters
    ----------
    task
        The function and its arguments. They and the result travel pickled: Parsl's own
        serialisation, which also takes what cannot be imported, costs twenty times as much.
    """
    function, arguments = pickle.loads(task)
    return os.environ.get("PARSL_WORKER_BLOCK_ID", ""), pickle.dumps(function(*arguments))


def in_time(arguments: Sequence[str], now: float) -> list[str]:
    """A pool's arguments, draining as its batch job nears its end.

    Parsl counts the drain period from the start of the pool. The job has begun before that, by as
    long as it took to bring the environment to the nodes.

    Parameters
    ----------
    arguments
        As Parsl gives them.
    now
        Unix time [s].
    """
    end = os.environ.get("HYDRAGNN_FLOW_JOB_END", "")
    given = [a.partition("=")[2] for a in arguments if a.startswith(f"{_DRAIN}=")]
    if not end.isdigit() or not given or not given[0].isdigit():
        return list(arguments)
    left = max(1, int(end) - int(now))
    drain = min(MOST_TO_DRAIN, max(LEAST_TO_DRAIN, left // 10))
    seconds = min(int(given[0]), max(1, left - drain))
    return [f"{_DRAIN}={seconds}" if a.startswith(f"{_DRAIN}=") else a for a in arguments]


if __name__ == "__main__":
    sys.argv[1:] = in_time(sys.argv[1:], time.time())
    sys.argv += ["--uid", f"{platform.node()}-{uuid.uuid4().hex[:12]}"]
    # Altered, for the worker processes to find the pool's main module.
    runpy.run_module(_PARSLS, run_name="__main__", alter_sys=True)
