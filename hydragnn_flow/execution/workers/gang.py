"""Gang: the ranks of one segment on several GCDs, with one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydragnn_flow.segment import SegmentResult

ANOTHER_RANK = "another rank of the gang ended"
"""Beginning of the reason of a rank that was ended because of another."""


def merged(results: Sequence[SegmentResult]) -> SegmentResult:
    """Merge the results of a segment's ranks into one.

    Parameters
    ----------
    results
        Results in the order of their ranks. If its worker was lost, a result has no `node`.

    Returns
    -------
    SegmentResult
        Result of rank 0, or the root cause if any rank failed. CPU seconds and joules are summed,
        memory is the largest. GCDs on another node than the first's are written `node/gcd`. Joules
        are known only if every rank that ended well has counted its own.
    """
    bad = [result for result in results if result.status != "ok"]
    home = results[0].node
    return replace(
        min(bad, key=_rank_of_blame) if bad else results[0],
        node=home,
        gcds=[
            gcd if result.node == home else f"{result.node}/{gcd}"
            for result in results
            for gcd in result.gcds
        ],
        cpu_seconds=sum(result.cpu_seconds for result in results),
        joules=_energy(results, "joules"),
        steady_joules=_energy(results, "steady_joules"),
        peak_memory_gib=max(result.peak_memory_gib for result in results),
    )


def _energy(results: Sequence[SegmentResult], name: str) -> float | None:
    joules = [(result.status, getattr(result, name)) for result in results]
    counted = [value for status, value in joules if status == "ok" or value is not None]
    known = [value for value in counted if value is not None]
    return sum(known) if known and len(known) == len(counted) else None


def _rank_of_blame(result: SegmentResult) -> int:
    """Sort key, root cause first: a dead rank breaks the connections of all others."""
    if result.status in ("diverged", "out_of_memory"):
        return 0  # caused by the network, whichever rank reports it
    if not result.node:
        return 1  # its worker was lost
    if result.reason.startswith(ANOTHER_RANK):
        return 6
    return {"killed": 2, "refused": 2, "error": 3, "lost": 4}.get(result.status, 5)
