"""Tables of where the GCDs' time went: by cause, and by widths and packs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from hydragnn_flow.report.gcd_time import HELD, NOT_HELD, GcdTime
from hydragnn_flow.report.gcd_time_words import MEANINGS
from hydragnn_flow.report.text import percent
from hydragnn_flow.segment import SegmentResult


def gcd_time_table(spent: GcdTime) -> pd.DataFrame:
    """GCD-hours and share of the time held for each cause, the largest first.

    Parameters
    ----------
    spent
        Of a run. GCDs that were not there, or perhaps not, have no share.
    """
    held = sorted(spent.seconds.keys() & set(HELD), key=lambda cause: -spent.seconds[cause])
    rows = [
        {
            "where the time went": MEANINGS[cause],
            "GCD-hours": spent.seconds[cause] / 3600,
            "share": percent(spent.share(cause)) if cause in HELD else "",
        }
        for cause in (*held, *(cause for cause in NOT_HELD if cause in spent.seconds))
    ]
    return pd.DataFrame(rows)


def shapes_table(segments: Sequence[SegmentResult]) -> pd.DataFrame:
    """Segments and GCD-hours by width and by the number that shared a GCD.

    Parameters
    ----------
    segments
        Of trials and members; those without a place or a time are left out.

    Returns
    -------
    pandas.DataFrame
        ``GCDs`` of a segment, ``on a GCD`` (mean number of segments, to the next whole number),
        ``segments``, ``GCD-hours`` (a shared GCD counts once) and the part ``in steps``: the rest
        of a segment is its beginning, validation and checkpoint.
    """
    groups: defaultdict[tuple[int, int], list[SegmentResult]] = defaultdict(list)
    for segment in segments:
        if segment.gcds and 0 < segment.started < segment.ended:
            groups[len(segment.gcds), round(segment.together)].append(segment)
    rows = []
    for (width, together), own in sorted(groups.items()):
        seconds = math.fsum(s.ended - s.started for s in own)
        hours = math.fsum((s.ended - s.started) * width / s.together for s in own) / 3600
        steps = math.fsum(s.steps * s.step_seconds for s in own)
        rows.append(
            {
                "GCDs": width,
                "on a GCD": together,
                "segments": len(own),
                "GCD-hours": hours,
                "in steps": percent(min(1.0, steps / seconds)),
            }
        )
    return pd.DataFrame(rows, columns=["GCDs", "on a GCD", "segments", "GCD-hours", "in steps"])
