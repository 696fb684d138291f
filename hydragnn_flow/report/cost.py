"""Time, energy and memory that the segments of a run have cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from hydragnn_flow.report.text import number
from hydragnn_flow.report.timeline import union
from hydragnn_flow.segment import SegmentResult


def cost_of(segments: Sequence[SegmentResult]) -> dict[str, Any]:
    """What segments have cost.

    Returns
    -------
    dict
        ``gcd_hours`` and ``node_hours``, in which a GCD, or any GCD of a node, was at work;
        ``cpu_seconds``; ``joules`` of the segments that were counted, and ``uncounted``, the number
        of others that took any time; ``peak_memory_gib`` of a process.
    """
    timed = [s for s in segments if s.gcds and s.started > 0 and s.ended > s.started]
    counted = [s.joules for s in segments if s.joules is not None]
    return {
        "gcd_hours": _hours((place, s) for s in timed for place in s.places),
        "node_hours": _hours((node, s) for s in timed for node, _ in s.places),
        "cpu_seconds": sum(s.cpu_seconds for s in segments),
        "joules": sum(counted) if counted else None,
        "uncounted": sum(s.joules is None for s in timed),
        "peak_memory_gib": max((s.peak_memory_gib for s in segments), default=0.0),
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


def _hours(used: Iterable[tuple[Hashable, SegmentResult]]) -> float:
    """Hours of all keys together in which a segment used them."""
    times: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for key, segment in used:
        times[key].append((segment.started, segment.ended))
    return sum(end - start for of in times.values() for start, end in union(of)) / 3600
