"""Time, energy and memory that a run has cost: its segments, their failures, and its nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.report.tables import number, percent
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def cost_of(segments: Iterable[SegmentResult]) -> dict[str, Any]:
    """Cost of segments, counted in one pass over them.

    Returns
    -------
    dict
        ``gcd_hours`` and ``node_hours``, in which a GCD, or any GCD of a node, was at work;
        ``cpu_seconds``; ``joules`` of the segments that were counted, and ``uncounted``, the number
        of others that took any time; ``peak_memory_gib`` of a process.
    """
    times = defaultdict[tuple[str, ...], list[tuple[float, float]]](list)
    joules: list[float] = []
    uncounted, cpu_seconds, peak_memory_gib = 0, 0.0, 0.0
    for segment in segments:
        cpu_seconds += segment.cpu_seconds
        peak_memory_gib = max(peak_memory_gib, segment.peak_memory_gib)
        if segment.joules is not None:
            joules.append(segment.joules)
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
    }


def nodes_cost(run_directory: Path) -> dict[str, Any]:
    """Energy of the nodes of a run, idle or not.

    Returns
    -------
    dict
        ``node_joules``, None where nothing counts them; ``counted_node_hours``, in which they were
        counted; ``counters``, what counted them.
    """
    found = read_node_energy(run_directory)
    return {
        "node_joules": None if found is None else found.joules,
        "counted_node_hours": 0.0 if found is None else found.node_seconds / 3600,
        "counters": [] if found is None else [*found.counters],
    }


def rest_watts(directory: RunDirectory) -> float | None:
    """Power of a node of a run beside what its segments use [W].

    None where nodes or segments are not counted, or not all of them: a driver of an earlier version
    has counted no nodes, and members of an ensemble that was set aside are no longer in the ledger.
    """
    found, own = read_node_energy(directory.path), cost_of(directory.results())
    if any(directory.path.glob(f"{directory.ensemble.name}.*")):
        return None
    if found is None or not found.node_seconds or own["joules"] is None or own["uncounted"]:
        return None
    rest = (found.joules - own["joules"]) / found.node_seconds
    return rest if rest >= 0 else None


def cost_table(segments: Sequence[SegmentResult]) -> pd.DataFrame:
    """Cost of the trials, of the members, and of both, a row each."""
    rows = []
    for name, kinds in (("trials", ["trial"]), ("members", ["member"]), ("together", [])):
        own = [s for s in segments if not kinds or s.kind in kinds]
        cost, epochs = cost_of(own), sum(len(s.history) for s in own)
        joules, uncounted = cost["joules"], cost["uncounted"]
        used = "not counted" if joules is None else energy(joules, uncounted)
        hours = cost["gcd_hours"], cost["node_hours"], cost["cpu_seconds"] / 3600
        rows.append((name, len(own), epochs, *hours, used, cost["peak_memory_gib"]))
    columns = ["", "segments", "epochs", "GCD-hours", "node-hours", "CPU-hours", "energy"]
    return pd.DataFrame(rows, columns=[*columns, "peak memory"])


def failures_table(segments: Iterable[SegmentResult]) -> pd.DataFrame:
    """Segments that did not end well, those of like reasons together, the most frequent first.

    Reasons are alike if they differ in numbers alone; the last is shown.

    Returns
    -------
    pandas.DataFrame
        ``end``, ``reason``, ``segments``, ``GCD-hours`` that they took, ``of``: trials and members
        (M0, …).
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
    """Cost of a finished run in one line.

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
    if summary.get("node_joules") is not None:
        words.append(f"{_joules(summary['node_joules'])} of the nodes, idle included")
    return " · ".join(words)


def energy(joules: float, uncounted: int) -> str:
    """Energy of segments in words."""
    told = _joules(joules)
    return f"{told}, {uncounted:,} segments not counted" if uncounted else told


def energy_sentences(cost: Mapping[str, Any]) -> str:
    """Energy of a campaign as far as it is known, and what is not.

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
    """Time that the stretches of each place cover together [h]."""
    seconds = 0.0
    for stretches in places:
        until = 0.0
        for start, end in sorted(stretches):
            seconds += max(0.0, end - max(start, until))
            until = max(until, end)
    return seconds / 3600
