"""Calls: functions and their results on the way between the driver and the nodes' agents."""

from __future__ import annotations

import os
import pickle

AGENT = "hydragnn_flow.execution.pools.agent"
"""Module that a node runs in place of Parsl's worker pool."""
BLOCK = "PARSL_WORKER_BLOCK_ID"
"""Variable with Parsl's identifier of an agent's block."""


def node_of(manager: str) -> str:
    """The node of the agent with such an identifier."""
    return manager.rpartition("-")[0]


def run_in_block(task: bytes) -> tuple[str, bytes]:
    """Call a function; returns the block of this node as well, which is proved to work.

    Parameters
    ----------
    task
        The function and its arguments. They and the result travel pickled: Parsl's own
        serialisation, which also takes what cannot be imported, costs twenty times as much.
    """
    function, arguments = pickle.loads(task)
    return os.environ.get(BLOCK, ""), pickle.dumps(function(*arguments))
