"""Time, energy and memory that the segments of a run have cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from hydragnn_flow.report.text import number
from hydragnn_flow.report.timeline import union
from hydragnn_flow.segment import SegmentResult

_Times = defaultdict[Hashable, list[tuple[float, float]]]
"""Place -> when segments used it, as Unix times [s]."""


def cost_of(segments: Iterable[SegmentResult]) -> dict[str, Any]:
    """What segments have cost; each is looked at once.

    Returns
    -------
    dict
        ``gcd_hours`` and ``node_hours``, in which a GCD, or any GCD of a node, was at work;
        ``cpu_seconds``; ``joules`` of the segments that were counted, and ``uncounted``, the number
        of others that took any time; ``peak_memory_gib`` of a process.
    """
    gcds: _Times = defaultdict(list)
    nodes: _Times = defaultdict(list)
    joules: list[float] = []
    uncounted, cpu_seconds, peak_memory_gib = 0, 0.0, 0.0
    for segment in segments:
        cpu_seconds += segment.cpu_seconds
        peak_memory_gib = max(peak_memory_gib, segment.peak_memory_gib)
        if segment.joules is not None:
            joules.append(segment.joules)
        if segment.gcds and 0 < segment.started < segment.ended:
            uncounted += segment.joules is None
            for place in segment.places:
                gcds[place].append((segment.started, segment.ended))
                nodes[place[0]].append((segment.started, segment.ended))
    return {
        "gcd_hours": _hours(gcds),
        "node_hours": _hours(nodes),
        "cpu_seconds": cpu_seconds,
        "joules": sum(joules) if joules else None,
        "uncounted": uncounted,
        "peak_memory_gib": peak_memory_gib,
    }


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
    return " · ".join(words)


def energy(joules: float, uncounted: int) -> str:
    """Energy in words."""
    told = f"{number(joules / 3.6e6)} kWh" if joules >= 3.6e5 else f"{number(joules)} J"
    return f"{told}, {uncounted:,} segments not counted" if uncounted else told


def _hours(times: _Times) -> float:
    """Hours of all places together in which a segment used them."""
    return sum(end - start for of in times.values() for start, end in union(of)) / 3600
