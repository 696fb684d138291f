"""Times by which a pool starts, watches and gives back its batch jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Waits:
    """Times of a pool [s]."""

    start_here: float = 120.0
    """From the start of a job until its first workers connect, as processes of this host."""
    start: float = 900.0
    """The same elsewhere, where the environment may come from a busy file system."""
    connect: float = 120.0
    """From the first workers of a block until others that have not connected count as missing."""
    each_node: float = 0.1
    """Added to these times for each node of a block: nodes come one after another."""
    without_workers: float = 10.0
    """Until a block without workers is given up; its job may end on its own before."""
    idle: float = 20.0
    """Idle time before a block is given back. Between two phases there is no work for a moment, and
    a new block may wait for hours."""
    work: float = 600.0
    """Time of work after which there are checkpoints, even if no task has ended."""
    fruitless: float = 10.0
    """After a block that did nothing; each further one in a row triples it, up to five minutes."""
    bad_nodes: float = 120.0
    """After a block on bad nodes: the scheduler would give the same nodes again at once."""
    refusal: float = 10.0
    """After a refused job; each further refusal doubles it, up to five minutes. Six of them take
    ten minutes in all: the scheduler may be in maintenance."""
    cancel: float = 2.0
    """Between attempts to cancel jobs."""
    checks: float = 1.0
    """Between two looks at the workers."""
    questions: float = 15.0
    """Between two queries of the scheduler: many centres ask users for at most one every few
    seconds."""
    readings: float = 30.0
    """Between two readings of the nodes' energy."""
    word: float = 10.0
    """Waits shorter than this are not reported to the user."""
    writes: float = 2.0
    """Between two writes of `workers.json`."""


WAITS = Waits()


def drain_seconds(job_seconds: float) -> float:
    """Time before the end of a batch job in which its nodes take no new tasks [s].

    Segments stop a little before the end, and would otherwise return to the same job.
    """
    return min(90, max(20, job_seconds / 10))
