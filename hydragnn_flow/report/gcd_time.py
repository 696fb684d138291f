"""Utilisation of the GCDs: where their time went, by cause, as far as the ledger tells it.

All of it follows from one frame of intervals: when each GCD was busy, waited for launches or
started up, when nodes were there, and when segments were ready, sent and at work. Between two
moments at which any of this changes, a GCD without a segment is idle for one reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hydragnn_flow.report.tables import percent
from hydragnn_flow.segment import Kind, SegmentResult

HELD = {
    "busy": "busy: computing, as predicted",
    "at work": "at work: how busy is not on record",
    "launches": "at work, waiting for launches",
    "start-up": "starting up, or collecting an end",
    "gang": "idle: a segment of several GCDs waits",
    "ready": "idle: work is ready, not sent",
    "no work": "idle: no work is ready",
    "tail": "idle: the tail, nothing more comes",
}
"""Causes of the time of GCDs whose nodes are there, and their meaning."""
CAUSES = HELD | {
    "queue": "not there yet: work waits for nodes",
    "away": "nodes without work: given back or idle",
}
"""Causes with those of nodes that have not come yet, or have nothing to do."""
_IDLE = ("gang", "ready", "no work", "tail")
SECONDS_IDLE = 20.0
"""A job whose nodes have nothing to do for longer is given back, so that from then on nobody knows
whether a node without work is still there."""


def gcd_time(
    segments: Sequence[SegmentResult], to_come: Collection[Kind] = ()
) -> pd.DataFrame | None:
    """Account for the time of every GCD from the first segment that was ready to the last end.

    A GCD at work is busy for the sum of the predicted shares of the segments there, at most
    wholly. Before a segment begins to train its GCDs start up. What is left is idle, with
    the cause that the ledger shows for that moment: a segment of several GCDs, or of one, waits
    although it could run; nothing is ready, and either nothing of the kind that runs is sent any
    more (the tail) or it is.

    Parameters
    ----------
    segments
        Segments of trials and members; of a live run also those at work, as if they ended now, and
        those that are ready, which have no node yet.
    to_come
        Kinds of which more are yet to become ready.

    Returns
    -------
    pandas.DataFrame or None
        A row for each interval, by its beginning as Unix time [s]: its ``seconds``, whether it is a
        ``pause`` in which nothing ran or was ready and no time counts, and the number of GCDs by
        each of :data:`CAUSES`. None if no segment has a place and a time.
    """
    timed = [s for s in segments if s.gcds and 0 < s.started <= s.ended]
    runs = pd.DataFrame(
        [
            (node, gcd, _sent(s), s.started, s.ended, np.nan if s.busy is None else s.busy)
            for s in timed
            if s.node
            for node, gcd in {*s.places}
        ],
        columns=["node", "gcd", "sent", "started", "ended", "busy"],
    )
    first, last = min(map(_ready, timed), default=0.0), max((s.ended for s in timed), default=0.0)
    if runs.empty or first == last:
        return None
    spans = [*_at_work(runs), *_of_nodes(runs, first, last)]
    for s in timed:
        waits = ["waiting", "several wait"] if len(s.gcds) > 1 else ["waiting"]
        spans += [(_ready(s), _sent(s), name, 1.0) for name in waits]
        spans += [(_sent(s), s.ended, s.kind, 1.0), (_ready(s), s.ended, "alive", 1.0)]
    counts = _counts(spans)
    seconds = np.diff(counts.index)
    states = ["waiting", "several wait", "trial", "member", "alive"]
    frame = counts.iloc[:-1].reindex(columns=[*CAUSES, *states], fill_value=0.0)
    idle = len(runs[["node", "gcd"]].drop_duplicates()) - frame[[*CAUSES]].sum(axis=1)
    # Before a node comes nothing is lost unless work waits for it.
    frame["queue"] = frame["queue"].where(frame["waiting"] > 0, 0.0)
    # While nothing runs at all, one phase has ended and the next has not begun.
    tail = frame["trial"] + frame["member"] > 0
    for kind in {s.kind for s in timed}:
        last_sent = np.inf if kind in to_come else max(_sent(s) for s in timed if s.kind == kind)
        tail &= (frame[kind] == 0) | (frame.index >= last_sent)
    reasons = [frame["several wait"] > 0, frame["waiting"] > 0, tail]
    why = np.select(reasons, ["gang", "ready", "tail"], "no work")
    for cause in _IDLE:
        frame[cause] = idle.where(why == cause, 0.0)
    alive = frame["alive"] > 0
    pause = ~alive & (seconds > max(60.0, 0.25 * seconds[alive].sum()))
    return frame[[*CAUSES]].mul(~pause, axis=0).assign(seconds=seconds, pause=pause)


def spent(frame: pd.DataFrame) -> dict[str, float]:
    """GCD-seconds by cause, of those that took any, the largest first; nodes that were away last.

    Parameters
    ----------
    frame
        Result of :func:`gcd_time`.
    """
    seconds = frame[[*CAUSES]].mul(frame["seconds"], axis=0).sum().to_dict()
    order = sorted(CAUSES, key=lambda cause: (cause not in HELD, -seconds[cause]))
    return {cause: seconds[cause] for cause in order if seconds[cause] > 0}


def gcd_time_table(frame: pd.DataFrame) -> pd.DataFrame:
    """GCD-hours and share of the time held for each cause, the largest first.

    Parameters
    ----------
    frame
        Result of :func:`gcd_time`. GCDs that were not there, or perhaps not, have no share.
    """
    found = spent(frame)
    held = sum(found[cause] for cause in found if cause in HELD)
    rows = [
        (CAUSES[cause], seconds / 3600, 100 * seconds / held if cause in HELD else np.nan)
        for cause, seconds in found.items()
    ]
    return pd.DataFrame(rows, columns=["where the time went", "GCD-hours", "share"])


def gcd_time_sentence(frame: pd.DataFrame) -> str:
    """Utilisation in a sentence, and the cause of most idle time.

    Parameters
    ----------
    frame
        Result of :func:`gcd_time`.
    """
    found = spent(frame)
    held = sum(found[cause] for cause in found if cause in HELD) or 1.0

    def share(*causes: str) -> str:
        return percent(sum(found.get(cause, 0.0) for cause in causes) / held)

    busy = "" if "at work" in found else f" ({share('busy')} busy)"
    worst = next((CAUSES[cause] for cause in found if cause in _IDLE), "")
    return (
        f"time of the GCDs: {share('busy', 'at work', 'launches')} at work{busy}; "
        f"{share('start-up')} starting up; {share(*_IDLE)} idle"
        f"{worst.replace('idle: ', ', most of it ')}"
    )


_Span = tuple[float, float, str, float]
"""Beginning and end as Unix times [s], name, and number of GCDs or segments."""


def _at_work(runs: pd.DataFrame) -> Iterable[_Span]:
    """Intervals in which GCDs were at work or starting up."""

    def change(at: str, sent: int, work: int) -> pd.DataFrame:
        busy = runs["busy"]
        states: dict[str, Any] = {"sent": sent, "work": work, "share": work * busy.fillna(0.0)}
        return runs[["node", "gcd"]].assign(time=runs[at], unknown=work * busy.isna(), **states)

    changes = pd.concat([change("sent", 1, 0), change("started", 0, 1), change("ended", -1, -1)])
    sums = changes.groupby(["node", "gcd", "time"]).sum()
    state = sums.groupby(level=["node", "gcd"]).cumsum().reset_index()
    ends = state.groupby(["node", "gcd"])["time"].shift(-1)
    known = (state["work"] > 0) & (state["unknown"] == 0)
    busy = state["share"].clip(0.0, 1.0).where(known, 0.0)
    for name, gcds in (
        ("busy", busy),
        ("launches", known - busy),
        ("at work", ((state["work"] > 0) & (state["unknown"] > 0)).astype(float)),
        ("start-up", ((state["work"] == 0) & (state["sent"] > 0)).astype(float)),
    ):
        yield from ((a, b, name, n) for a, b, n in zip(state["time"], ends, gcds, strict=True) if n)


def _of_nodes(runs: pd.DataFrame, first: float, last: float) -> Iterable[_Span]:
    """Intervals in which the GCDs of a node were not there yet, or it had no work for a while."""
    for _, own in runs.sort_values("sent").groupby("node"):
        size, held = float(own["gcd"].nunique()), own["ended"].cummax().to_numpy()
        begins = np.append(own["sent"].to_numpy()[1:], np.inf)
        yield first, own["sent"].iloc[0], "queue", size
        for end, following in zip(held, begins, strict=True):
            if following - end > SECONDS_IDLE:
                yield end, min(following, last), "away", size


def _counts(spans: list[_Span]) -> pd.DataFrame:
    """Sums of overlapping intervals by name, at each time at which one changes."""
    frame = pd.DataFrame(spans, columns=["time", "end", "name", "gcds"])
    ends = frame.assign(time=frame["end"], gcds=-frame["gcds"])
    changes = pd.concat([frame, ends]).groupby(["time", "name"])["gcds"].sum().unstack(fill_value=0)
    return changes.sort_index().cumsum().round(9)


def _sent(segment: SegmentResult) -> float:
    """Unix time at which it was sent [s]."""
    return min(segment.started, segment.ended - (segment.away_seconds or 0.0))


def _ready(segment: SegmentResult) -> float:
    """Unix time from which it could have run [s]."""
    return _sent(segment) - (segment.waited_seconds or 0.0)
