"""Utilisation in words: tables of where the GCDs' time went, and what to change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from hydragnn_flow.report.gcd_time import HELD, NOT_HELD, Cause, GcdTime
from hydragnn_flow.report.text import percent
from hydragnn_flow.segment import SegmentResult

MEANINGS: dict[Cause, str] = {
    "busy": "busy: computing, as predicted",
    "at work": "at work: how busy is not on record",
    "launches": "at work, waiting for launches",
    "start-up": "starting up, or collecting an end",
    "gang": "idle: a segment of several GCDs waits",
    "ready": "idle: work is ready, not sent",
    "no work": "idle: no work is ready",
    "tail": "idle: the tail, nothing more comes",
    "unknown": "idle: cause not on record",
    "queue": "not there yet: work waits for nodes",
    "away": "nodes without work: given back or idle",
}
"""Each cause as tables and figures name it."""
_CHANGES: dict[Cause, str] = {
    "launches": "larger batches, or more segments on a GCD (`most_segments` of the site), use it",
    "start-up": "longer segments (a larger `search.min_epochs`, fewer rungs) begin less often",
    "gang": "fewer GCDs for each trial (`Resources.gcds`) are found sooner",
    "ready": "trials that need less memory fit beside others; driver.log says what was sent when",
    "no work": "more trials (`search.trials`), fewer rungs, or fewer nodes keep GCDs at work",
    "tail": "more trials in flight, or fewer nodes, shorten it",
    "queue": "smaller blocks, and more of them, start sooner",
    "away": "more trials, or fewer nodes, leave fewer without work if they were not given back",
}
# Below this fraction there is nothing to gain.
_WORTH_CHANGING = 0.05


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


def advice(spent: GcdTime) -> str:
    """What to change first, in a sentence.

    Parameters
    ----------
    spent
        Of a run.
    """
    lost = {cause: spent.seconds[cause] for cause in _CHANGES if cause in spent.seconds}
    cause = max(lost, key=lost.__getitem__, default=None)
    if cause is None or lost[cause] < _WORTH_CHANGING * spent.held:
        return "No cause took more than a twentieth of the time: there is nothing to change."
    name = MEANINGS[cause]
    if cause not in HELD:
        hours = spent.seconds[cause] / 3600
        return f"{hours:.3g} GCD-hours: {name}. To change it: {_CHANGES[cause]}."
    return f"{percent(spent.share(cause))} {name}. To change it: {_CHANGES[cause]}."


def utilisation_sentence(spent: GcdTime) -> str:
    """Utilisation so far in a line."""
    idle: tuple[Cause, ...] = ("gang", "ready", "no work", "tail", "unknown")
    worst = max(idle, key=lambda cause: spent.seconds.get(cause, 0.0))
    words = [f"{percent(spent.share('busy', 'at work', 'launches'))} at work"]
    if "at work" not in spent.seconds:
        words[0] += f" ({percent(spent.share('busy'))} busy)"
    words.append(f"{percent(spent.share('start-up'))} starting up")
    words.append(f"{percent(spent.share(*idle))} idle")
    if spent.share(*idle) >= _WORTH_CHANGING:
        words[-1] += f", most of it {MEANINGS[worst].removeprefix('idle: ')}"
    return f"time of the GCDs so far: {'; '.join(words)}"


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
