"""Segments that ended badly, by reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from hydragnn_flow.segment import SegmentResult

_MOST_NAMED = 8
_MOST_CHARACTERS = 240
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def failures_table(segments: Sequence[SegmentResult]) -> pd.DataFrame:
    """Segments that did not end well, those of like reasons together, the most frequent first.

    Reasons are alike if they differ in numbers alone; the last is shown.

    Returns
    -------
    pandas.DataFrame
        ``end``, ``reason``, ``segments``, ``GCD-hours`` that they took, ``of``: trials and members
        (M0, …).
    """
    groups: dict[tuple[str, str], list[SegmentResult]] = {}
    for segment in segments:
        if segment.status not in ("ok", "interrupted"):
            alike = _NUMBER.sub("#", segment.reason)
            groups.setdefault((segment.status, alike), []).append(segment)
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [
        {
            "end": status.replace("_", " "),
            "reason": " ".join(of[-1].reason.split())[:_MOST_CHARACTERS],
            "segments": len(of),
            "GCD-hours": sum(s.seconds * len(s.gcds) for s in of) / 3600,
            "of": _named(of),
        }
        for (status, _), of in ranked
    ]
    return pd.DataFrame(rows)


def _named(segments: Sequence[SegmentResult]) -> str:
    names = [f"{'M' if s.kind == 'member' else ''}{s.number}" for s in segments]
    names = list(dict.fromkeys(names))
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
