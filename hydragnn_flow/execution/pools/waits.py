"""Times by which a pool starts, watches and gives back its batch jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Waits:
    """Times by which a pool starts, watches and gives back its batch jobs, all in seconds."""

    start_here: float = 120.0
    """Longest time from the start of a batch job on this host to its first connected worker."""
    start: float = 900.0
    """Longest time from the start of a batch job on other nodes to its first connected worker."""
    connect: float = 120.0
    """Time after the first workers of a block until others that have not connected count as
    missing."""
    each_node: float = 0.1
    """Time added to ``start_here``, ``start`` and ``connect`` for each node of a block, since nodes
    connect one after another."""
    without_workers: float = 10.0
    """Time until a block that lost all workers is given up; its batch job may end before."""
    idle: float = 20.0
    """Idle time before a block is given back. Between two phases there is no work for a moment, and
    a new block may wait for hours."""
    work: float = 600.0
    """Working time after which a block is taken to have written checkpoints, even if none of its
    tasks has ended."""
    fruitless: float = 10.0
    """Pause after a block that did no work; each further such block in a row triples the pause, up
    to five minutes."""
    bad_nodes: float = 120.0
    """Pause after a block on bad nodes: the scheduler would give the same nodes again at once."""
    refusal: float = 10.0
    """Pause after a refused job; each further refusal doubles the pause, up to five minutes. Six
    pauses take ten minutes in all: the scheduler may be in maintenance."""
    cancel: float = 2.0
    """Pause between attempts to cancel jobs."""
    checks: float = 1.0
    """Time between two checks of the connected workers."""
    questions: float = 15.0
    """Time between two queries of the scheduler: many centres ask users for at most one every few
    seconds."""
    readings: float = 30.0
    """Time between two readings of the nodes' energy."""
    word: float = 10.0
    """Shortest wait that is reported to the user."""
    writes: float = 2.0
    """Time between two writes of `workers.json`."""


WAITS = Waits()


def drain_seconds(job_seconds: float) -> float:
    """Return the time before the end of a batch job in which its nodes take no new tasks [s].

    Segments stop a little before the end, and would otherwise be sent to the same batch job again.

    Parameters
    ----------
    job_seconds
        Time limit of the batch job [s].
    """
    return min(90, max(20, job_seconds / 10))
