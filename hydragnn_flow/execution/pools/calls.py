"""Calls: functions and their results on the way between the driver and the nodes' agents."""

from __future__ import annotations

import os
import pickle
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.execution.pools.node_energy import reading

AGENT = "hydragnn_flow.execution.pools.agent"
"""Module that a node runs instead of Parsl's worker pool."""
BLOCK = "PARSL_WORKER_BLOCK_ID"
"""Environment variable with Parsl's identifier of an agent's block."""
POOL = "PARSL_WORKER_POOL_ID"
"""Environment variable with Parsl's identifier of an agent."""
_ahead = time.time() - time.monotonic()
STEADY_TIME: Any = SimpleNamespace(time=lambda: _ahead + time.monotonic(), monotonic=time.monotonic)
"""Replacement of `time` for Parsl, which measures the silence of nodes; changes of the wall clock
do not affect it."""


def node_of(manager: str) -> str:
    """Return the name of a node from the identifier of its agent, which begins with the name."""
    return manager.rpartition("-")[0]


class Answer(NamedTuple):
    """Result of a function that was called on a node, with the names of node and batch job."""

    block: str
    """Parsl's identifier of the node's block, which is thus known to work."""
    result: bytes
    manager: str = ""
    """Parsl's identifier of the node's agent."""
    used: Reading | None = None
    """Energy that the node has used; None if it is not counted."""


def run_in_block(task: bytes) -> Answer:
    """Call a function on this node, and return its result with the node's identifiers.

    Parameters
    ----------
    task
        Pickled function with its arguments. Parsl's own serialisation, which also handles objects
        that cannot be imported, takes twenty times as long.
    """
    function, arguments = pickle.loads(task)
    result = pickle.dumps(function(*arguments))
    return Answer(os.environ.get(BLOCK, ""), result, os.environ.get(POOL, ""), reading())
