"""A gang: several tasks that run the ranks of one segment, and so end as one.

A part that ends badly leaves the ranks of the others waiting in a collective operation, so it
leaves a note in the segment's folder that every part looks for while it runs. The note carries the
claim of one sending of the segment: sent again, the segment knows nothing of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydragnn_flow.files import write_json
from hydragnn_flow.segment import SegmentResult, SegmentSpec

ANOTHER_PART = "another part of the gang ended"
"""Beginning of the reason of a part that was ended because of another."""
_NOTE = "abort"
_logger = logging.getLogger(__name__)


def abort(spec: SegmentSpec, reason: str) -> None:
    """End every part of this sending of a segment; the first reason given stays.

    Parts that have not begun end as soon as they do.

    Parameters
    ----------
    spec
        The segment, as it was sent.
    reason
        Why, in a few words.

    Raises
    ------
    OSError
        If the note cannot be written into the segment's folder.
    """
    note = _note(spec)
    if not note.exists():
        _logger.info("%s %d: its ranks are called off: %s", spec.kind, spec.number, reason)
        spec.folder.mkdir(parents=True, exist_ok=True)  # none of the parts may have begun
        write_json(note, {"reason": reason})


def abort_reason(spec: SegmentSpec) -> str | None:
    """Why this sending of a segment is to end; None where it is not."""
    try:
        return str(json.loads(_note(spec).read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError):
        return None


def forget_earlier_notes(spec: SegmentSpec) -> None:
    """Delete what earlier sendings of a segment left; for the rank that holds its folder."""
    for note in spec.folder.glob(f"{_NOTE}.*"):
        if note != _note(spec):
            note.unlink(missing_ok=True)


def whole(parts: Sequence[SegmentResult]) -> SegmentResult:
    """Merge the results of a segment's parts, or of a part's ranks, into one.

    Parameters
    ----------
    parts
        Results in the order of their ranks. One whose worker was lost has no `node`.

    Returns
    -------
    SegmentResult
        That of the first part, or where any ended badly that of the cause and not of those that
        followed. CPU seconds and joules are those of all parts, memory that of the largest; GCDs on
        another node than the first part's are written `node/gcd`. Joules are known where every part
        that ended well knows its own.
    """
    bad = [part for part in parts if part.status != "ok"]
    home = parts[0].node
    joules = [part.joules for part in parts if part.status == "ok" or part.joules is not None]
    known = [value for value in joules if value is not None]
    return replace(
        min(bad, key=_rank_of_blame) if bad else parts[0],
        node=home,
        gcds=[
            gcd if part.node == home else f"{part.node}/{gcd}"
            for part in parts
            for gcd in part.gcds
        ],
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        joules=sum(known) if known and len(known) == len(joules) else None,
        peak_memory_gib=max(part.peak_memory_gib for part in parts),
    )


def _rank_of_blame(result: SegmentResult) -> int:
    """Sort key, root cause first: a dead rank breaks the connections of all others."""
    if result.status in ("diverged", "out_of_memory"):
        return 0  # the network's, whichever rank shows it
    if not result.node:
        return 1  # the worker itself was lost
    if result.reason.startswith(ANOTHER_PART):
        return 6
    return {"killed": 2, "refused": 2, "error": 3, "lost": 4}.get(result.status, 5)


def _note(spec: SegmentSpec) -> Path:
    return spec.folder / f"{_NOTE}.{spec.claim}"
