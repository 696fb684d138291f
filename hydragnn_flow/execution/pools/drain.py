"""Drain: the time before the end of its batch job in which a node takes no new tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence

MOST, LEAST = 90, 20
"""Longest and shortest drain time [s]; in between, it is a tenth of the job's. Segments stop a
little before the end, and would otherwise return to the same job."""
_OPTION = "--drain_period"


def drain_seconds(job_seconds: float) -> float:
    """Drain time [s] of a batch job of some length [s]."""
    return min(MOST, max(LEAST, job_seconds / 10))


def in_time(arguments: Sequence[str], now: float) -> list[str]:
    """Adapt a pool's arguments so that it drains as its batch job nears its end.

    Parsl counts the drain period from the start of the pool. The job starts earlier, by the time it
    takes to bring the environment to the nodes.

    Parameters
    ----------
    arguments
        Arguments of the pool, made by Parsl.
    now
        Current Unix time [s].
    """
    end = os.environ.get("HYDRAGNN_FLOW_JOB_END", "")
    given = [a.partition("=")[2] for a in arguments if a.startswith(f"{_OPTION}=")]
    if not end.isdigit() or not given or not given[0].isdigit():
        return list(arguments)
    left = max(1, int(end) - int(now))
    seconds = min(int(given[0]), max(1, left - int(drain_seconds(left))))
    return [f"{_OPTION}={seconds}" if a.startswith(f"{_OPTION}=") else a for a in arguments]
