"""Utilisation of the GCDs by cause, and time, energy and memory that a run has cost.

All of it follows from one frame of intervals: when each GCD was busy, waited for launches or
started up, when nodes were there, and when segments were ready, sent and at work. Between two
moments at which any of this changes, a GCD without a segment is idle for one reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.report.tables import number, percent
from hydragnn_flow.run_directory import RunDirectory
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
"""Uses and causes of idleness of the GCDs of nodes that are there, each with its meaning."""
CAUSES = HELD | {
    "queue": "not there yet: work waits for nodes",
    "away": "nodes without work: given back or idle",
}
"""The entries of `HELD`, and causes for the GCDs of nodes that have not come yet, or that have
nothing to do."""
_IDLE = ("gang", "ready", "no work", "tail")
SECONDS_IDLE = 20.0
"""Time without work after which a node counts as ``away`` [s]. A batch job whose nodes have no work
for longer is given back, so it is unknown whether such a node is still there."""


def gcd_time(
    segments: Sequence[SegmentResult], to_come: Collection[Kind] = ()
) -> pd.DataFrame | None:
    """Tabulate over time how many GCDs (accelerators) were busy, starting up or idle, and why.

    Time counts from the first segment that could run to the end of the last one. The busy fraction
    of a GCD is the sum of the fractions that were predicted for its segments, at most 1. Between
    the moment at which a segment is sent and the beginning of its training, its GCDs start up. A
    GCD without a segment is idle. The cause is ``gang`` if a segment of several GCDs waits although
    it could run, and ``ready`` if a segment of one GCD does. Otherwise the cause is ``tail`` if no
    more segments of the kinds that run will be sent, else ``no work``.

    Parameters
    ----------
    segments
        Results of segments (jobs of training) of trials and members. For a live run they include
        segments at work, as results that end now, and segments that could run, without a node.
    to_come
        Kinds (``trial``, ``member``) of segments of which more will be sent.

    Returns
    -------
    pandas.DataFrame or None
        A row for each interval, whose index is the Unix time [s] at which the interval begins: its
        duration ``seconds``; ``pause``, True if it is a long interval in which nothing ran or could
        run, for which no time counts; and the number of GCDs for each of :data:`CAUSES`. None if no
        segment has a node and a duration.
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
    # Before a node comes, its time is lost only if work waits.
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
    """Return the GCD-seconds of each use or cause of idleness, the largest first.

    Causes outside :data:`HELD` come last, and causes without time are left out.

    Parameters
    ----------
    frame
        Table of the GCDs' use over time, from :func:`gcd_time`.
    """
    seconds = frame[[*CAUSES]].mul(frame["seconds"], axis=0).sum().to_dict()
    order = sorted(CAUSES, key=lambda cause: (cause not in HELD, -seconds[cause]))
    return {cause: seconds[cause] for cause in order if seconds[cause] > 0}


def gcd_time_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of GCD-hours and share [%] of each use or cause of idleness (`CAUSES`).

    The share is that of the time of all GCDs whose nodes were there. Causes outside :data:`HELD`
    have no share.

    Parameters
    ----------
    frame
        Table of the GCDs' use over time, from :func:`gcd_time`.
    """
    found = spent(frame)
    held = sum(found[cause] for cause in found if cause in HELD)
    rows = [
        (CAUSES[cause], seconds / 3600, 100 * seconds / held if cause in HELD else np.nan)
        for cause, seconds in found.items()
    ]
    return pd.DataFrame(rows, columns=["where the time went", "GCD-hours", "share"])


def gcd_time_sentence(frame: pd.DataFrame) -> str:
    """Return a sentence on the utilisation of GCDs and the cause of most idle time.

    Parameters
    ----------
    frame
        Table of the GCDs' use over time, from :func:`gcd_time`.
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
"""Interval: beginning and end as Unix times [s], name, and number of GCDs or segments."""


def _at_work(runs: pd.DataFrame) -> Iterable[_Span]:
    """Yield intervals in which GCDs were at work or starting up.

    ``runs`` has a row for each segment and GCD.
    """

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
    """Yield intervals in which a node was not there yet, or had no work for more than 20 s.

    ``first`` and ``last`` are the Unix times [s] between which time counts.
    """
    for _, own in runs.sort_values("sent").groupby("node"):
        size, held = float(own["gcd"].nunique()), own["ended"].cummax().to_numpy()
        begins = np.append(own["sent"].to_numpy()[1:], np.inf)
        yield first, own["sent"].iloc[0], "queue", size
        for end, following in zip(held, begins, strict=True):
            if following - end > SECONDS_IDLE:
                yield end, min(following, last), "away", size


def _counts(spans: list[_Span]) -> pd.DataFrame:
    """Return sums of the numbers of overlapping intervals, a column for each name.

    There is a row for each time at which a sum changes.
    """
    frame = pd.DataFrame(spans, columns=["time", "end", "name", "gcds"])
    ends = frame.assign(time=frame["end"], gcds=-frame["gcds"])
    changes = pd.concat([frame, ends]).groupby(["time", "name"])["gcds"].sum().unstack(fill_value=0)
    return changes.sort_index().cumsum().round(9)


def _sent(segment: SegmentResult) -> float:
    """Return the Unix time at which a segment was sent to its node [s]."""
    return min(segment.started, segment.ended - (segment.away_seconds or 0.0))


def _ready(segment: SegmentResult) -> float:
    """Return the Unix time from which a segment could have run [s]."""
    return _sent(segment) - (segment.waited_seconds or 0.0)


_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def cost_of(segments: Iterable[SegmentResult]) -> dict[str, Any]:
    """Compute the time, energy and memory that segments (jobs of training) cost, in one pass.

    Returns
    -------
    dict
        ``gcd_hours``, in which GCDs were at work; ``node_hours``, in which any GCD of a node was;
        ``cpu_seconds``; ``joules`` of segments whose energy was counted, None without such
        segments; ``uncounted``, the number of other segments that ran; ``peak_memory_gib`` of the
        largest process; ``active``, the mean fraction of the time in which GPUs computed anything,
        None if nothing measured it.
    """
    times = defaultdict[tuple[str, ...], list[tuple[float, float]]](list)
    joules: list[float] = []
    active: list[tuple[float, float]] = []
    uncounted, cpu_seconds, peak_memory_gib = 0, 0.0, 0.0
    for segment in segments:
        cpu_seconds += segment.cpu_seconds
        peak_memory_gib = max(peak_memory_gib, segment.peak_memory_gib)
        if segment.joules is not None:
            joules.append(segment.joules)
        if segment.active is not None:
            weight = max(segment.seconds, 1e-9)
            active.append((weight, weight * segment.active))
        if segment.gcds and 0 < segment.started < segment.ended:
            uncounted += segment.joules is None
            for node, gcd in segment.places:
                for place in ((node,), (node, gcd)):
                    times[place].append((segment.started, segment.ended))
    return {
        "gcd_hours": _hours(of for place, of in times.items() if len(place) == 2),
        "node_hours": _hours(of for place, of in times.items() if len(place) == 1),
        "cpu_seconds": cpu_seconds,
        "joules": sum(joules) if joules else None,
        "uncounted": uncounted,
        "peak_memory_gib": peak_memory_gib,
        "active": sum(time for _, time in active) / sum(time for time, _ in active)
        if active
        else None,
    }


def nodes_cost(run_directory: Path) -> dict[str, Any]:
    """Return the energy [J] that a run's nodes used, idle or not, and how it was measured.

    Returns
    -------
    dict
        ``node_joules``, None if no counter measures them; ``counted_node_hours``, the node-hours in
        which they were measured; ``counters``, the names of the energy counters.
    """
    found = read_node_energy(run_directory)
    return {
        "node_joules": None if found is None else found.joules,
        "counted_node_hours": 0.0 if found is None else found.node_seconds / 3600,
        "counters": [] if found is None else [*found.counters],
    }


def rest_watts(directory: RunDirectory) -> float | None:
    """Return a node's mean power beyond that of its segments (jobs of training) [W].

    The result is None if the energy of nodes, or of any segment, is unknown, or if nodes used less
    than segments. This is also so if an ensemble was set aside, as its members are no longer in the
    ledger.
    """
    found, own = read_node_energy(directory.path), cost_of(directory.results())
    if any(directory.path.glob(f"{directory.ensemble.name}.*")):
        return None
    if found is None or not found.node_seconds or own["joules"] is None or own["uncounted"]:
        return None
    rest = (found.joules - own["joules"]) / found.node_seconds
    return rest if rest >= 0 else None


def cost_table(segments: Sequence[SegmentResult]) -> pd.DataFrame:
    """Return a table of time, energy and memory: a row for trials, members, and both together."""
    rows = []
    for name, kinds in (("trials", ["trial"]), ("members", ["member"]), ("together", [])):
        own = [s for s in segments if not kinds or s.kind in kinds]
        cost, epochs = cost_of(own), sum(len(s.history) for s in own)
        joules, uncounted = cost["joules"], cost["uncounted"]
        used = "not counted" if joules is None else energy(joules, uncounted)
        hours = cost["gcd_hours"], cost["node_hours"], cost["cpu_seconds"] / 3600
        rows.append((name, len(own), epochs, *hours, used, cost["peak_memory_gib"], cost["active"]))
    columns = ["", "segments", "epochs", "GCD-hours", "node-hours", "CPU-hours", "energy"]
    table = pd.DataFrame(rows, columns=[*columns, "peak memory", "GPUs active"])
    return table.dropna(axis=1, how="all")


def failures_table(segments: Iterable[SegmentResult]) -> pd.DataFrame:
    """Return a table of the segments that failed, a row per reason, the most frequent first.

    Reasons that differ only in the numbers they mention share a row, which shows the last reason.

    Returns
    -------
    pandas.DataFrame
        ``end`` (the status), ``reason``, number of ``segments``, ``GCD-hours`` that these segments
        took, and ``of``: numbers of their trials (0, …) and members (M0, …).
    """
    groups = defaultdict[tuple[str, str], list[SegmentResult]](list)
    for segment in segments:
        if segment.status not in ("ok", "interrupted"):
            groups[segment.status, _NUMBER.sub("#", segment.reason)].append(segment)
    rows = []
    for (status, _), of in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = [*dict.fromkeys(f"{'M' if s.kind == 'member' else ''}{s.number}" for s in of)]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        hours = sum(s.seconds * len(s.gcds) for s in of) / 3600
        reason = " ".join(of[-1].reason.split())[:240]
        rows.append((status.replace("_", " "), reason, len(of), hours, ", ".join(names[:8]) + more))
    return pd.DataFrame(rows, columns=["end", "reason", "segments", "GCD-hours", "of"])


def cost_sentence(summary: Mapping[str, Any]) -> str:
    """Return the time and energy that a finished run has cost, in one line.

    Parameters
    ----------
    summary
        Content of `ensemble/ensemble.json`.
    """
    words = [
        f"{summary['wall_seconds']:,.0f} s wall",
        f"{summary['cpu_seconds']:,.0f} s CPU in training trials and members",
        f"{number(summary['gcd_hours'])} GCD-hours",
        f"{number(summary['node_hours'])} node-hours",
    ]
    if summary["joules"] is not None:
        words.append(energy(summary["joules"], summary["uncounted"]))
    if summary.get("active") is not None:
        words.append(f"GPUs active for {summary['active']:.0%} of it")
    if summary.get("node_joules") is not None:
        words.append(f"{_joules(summary['node_joules'])} of the nodes, idle included")
    return " · ".join(words)


def energy(joules: float, uncounted: int) -> str:
    """Format the energy of segments in words, with the number of segments without a count."""
    told = _joules(joules)
    return f"{told}, {uncounted:,} segments not counted" if uncounted else told


def energy_sentences(cost: Mapping[str, Any]) -> str:
    """Return a sentence on the known energy of a campaign's nodes and segments.

    Parameters
    ----------
    cost
        Results of :func:`cost_of` and :func:`nodes_cost`, or content of `ensemble/ensemble.json`.
    """
    own, nodes, told = cost["joules"], cost.get("node_joules"), []
    if nodes is not None:
        hours, counters = number(cost["counted_node_hours"]), ", ".join(cost["counters"])
        told.append(f"{_joules(nodes)} of the nodes in {hours} node-hours, counted by {counters}")
    if own is not None:
        # Nodes of an earlier driver were perhaps not counted.
        has_share = nodes and own <= nodes and not cost["uncounted"]
        share = f" ({percent(own / nodes)}); the rest idle or not charged" if has_share else ""
        told.append(f"{energy(own, cost['uncounted'])} in segments{share}")
    return f"Energy: {'; '.join(told) or 'nothing here counts it'}."


def _joules(joules: float) -> str:
    return f"{number(joules / 3.6e6)} kWh" if joules >= 3.6e5 else f"{number(joules)} J"


def _hours(places: Iterable[list[tuple[float, float]]]) -> float:
    """Return the time that intervals cover, summed over places [h].

    A place is a node or a GCD, with a list of intervals; times in which they overlap count once.
    """
    seconds = 0.0
    for stretches in places:
        until = 0.0
        for start, end in sorted(stretches):
            seconds += max(0.0, end - max(start, until))
            until = max(until, end)
    return seconds / 3600
