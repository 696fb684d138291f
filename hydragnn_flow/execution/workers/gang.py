"""A gang: several tasks that run the ranks of one segment, and so end as one.

A rank group that ends badly leaves the ranks of the others waiting in a collective operation, so it
writes an abort file into the segment's folder, which every group checks for while it runs. The file
is named after the attempt: a segment that is sent again does not see it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydragnn_flow.files import write_json
from hydragnn_flow.segment import SegmentResult, SegmentSpec

ANOTHER_GROUP = "another rank group of the gang ended"
"""Beginning of the reason of a rank group that was ended because of another."""
_ABORT = "abort"
_logger = logging.getLogger(__name__)


def abort(spec: SegmentSpec, reason: str) -> None:
    """End every rank group of this attempt of a segment; the first reason given stays.

    Groups that have not begun end as soon as they do.

    Parameters
    ----------
    spec
        The segment, as it was sent.
    reason
        Why, in a few words.

    Raises
    ------
    OSError
        If the abort file cannot be written into the segment's folder.
    """
    file = _abort_file(spec)
    if not file.exists():
        _logger.info("%s %d: its ranks are called off: %s", spec.kind, spec.number, reason)
        spec.folder.mkdir(parents=True, exist_ok=True)  # none of the groups may have begun
        write_json(file, {"reason": reason})


def abort_reason(spec: SegmentSpec) -> str | None:
    """Why this attempt of a segment is to end; None if it is not."""
    try:
        return str(json.loads(_abort_file(spec).read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError):
        return None


def forget_earlier_aborts(spec: SegmentSpec) -> None:
    """Delete the abort files of earlier attempts; for the rank that holds the folder."""
    for file in spec.folder.glob(f"{_ABORT}.*"):
        if file != _abort_file(spec):
            file.unlink(missing_ok=True)


def merged(results: Sequence[SegmentResult]) -> SegmentResult:
    """Merge the results of a segment's rank groups, or of a group's ranks, into one.

    Parameters
    ----------
    results
        Results in the order of their ranks. One whose worker was lost has no `node`.

    Returns
    -------
    SegmentResult
        That of the first, or if any ended badly that of the cause and not of those that
        followed. CPU seconds and joules are those of all, memory that of the largest; GCDs on
        another node than the first's are written `node/gcd`. Joules are known where every group
        that ended well knows its own.
    """
    bad = [result for result in results if result.status != "ok"]
    home = results[0].node
    joules = [
        result.joules for result in results if result.status == "ok" or result.joules is not None
    ]
    known = [value for value in joules if value is not None]
    return replace(
        min(bad, key=_rank_of_blame) if bad else results[0],
        node=home,
        gcds=[
            gcd if result.node == home else f"{result.node}/{gcd}"
            for result in results
            for gcd in result.gcds
        ],
        cpu_seconds=sum(result.cpu_seconds for result in results),
        joules=sum(known) if known and len(known) == len(joules) else None,
        peak_memory_gib=max(result.peak_memory_gib for result in results),
    )


def _rank_of_blame(result: SegmentResult) -> int:
    """Sort key, root cause first: a dead rank breaks the connections of all others."""
    if result.status in ("diverged", "out_of_memory"):
        return 0  # the network's, whichever rank shows it
    if not result.node:
        return 1  # the worker itself was lost
    if result.reason.startswith(ANOTHER_GROUP):
        return 6
    return {"killed": 2, "refused": 2, "error": 3, "lost": 4}.get(result.status, 5)


def _abort_file(spec: SegmentSpec) -> Path:
    return spec.folder / f"{_ABORT}.{spec.attempt}"
