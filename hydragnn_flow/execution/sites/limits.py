"""Limits of queues by the size of a job, so that a site refuses what they would refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydragnn_flow.errors import InputError
from hydragnn_flow.execution.options import Options


@dataclass(frozen=True)
class Limit:
    """Limits of a queue for a range of job sizes."""

    fewest: int
    most: int
    hours: int


def check_limits(site: str, run: Options, queue: str, limits: Sequence[Limit]) -> None:
    """Refuse a batch job that a queue would refuse.

    Parameters
    ----------
    site
        Name of the site, for messages.
    run
        Options as resolved by the site.
    queue
        Name of the queue with these limits.
    limits
        Limits in the order of their nodes, without gaps.

    Raises
    ------
    InputError
        If the run's batch jobs are too small, too large or too long.
    """
    nodes, fewest, most = run.nodes_per_block, limits[0].fewest, limits[-1].most
    if not fewest <= nodes <= most:
        raise InputError(
            f"site {site}: `{queue}` takes jobs of {fewest} to {most} nodes, not of {nodes}; give "
            "other `nodes`, `blocks` or `partition`"
        )
    hours = next(limit.hours for limit in limits if nodes <= limit.most)
    if run.walltime_seconds > 3600 * hours:
        raise InputError(
            f"site {site}: `{queue}` gives a job of {nodes} {'node' if nodes == 1 else 'nodes'} at "
            f"most {hours} h; give a shorter `walltime` than {run.walltime}: another job follows "
            "while there is work"
        )
