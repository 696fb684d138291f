"""Time, energy and memory that a run has cost: its segments, and its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hydragnn_flow.execution.pools.node_energy import read_node_energy
from hydragnn_flow.report.text import number, percent
from hydragnn_flow.report.timeline import union
from hydragnn_flow.run_directory import RunDirectory
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
    """What is known of the energy of a campaign, and what is not.

    Parameters
    ----------
    cost
        As of :func:`cost_of` and :func:`nodes_cost`, or content of `ensemble/ensemble.json`.
    """
    own, nodes = cost["joules"], cost.get("node_joules")
    if nodes is None and own is None:
        return "Energy: nothing here counts it."
    if nodes is None:
        return (
            f"Energy: {energy(own, cost['uncounted'])} in segments. What the nodes used beside "
            f"that, idle or not, nothing here counts."
        )
    told = (
        f"Energy: {_joules(nodes)} of the nodes in {number(cost['counted_node_hours'])} "
        f"node-hours, counted by {', '.join(cost['counters'])} from the start of each agent to its "
        f"last sign of life."
    )
    if own is not None and own > nodes:  # nodes of an earlier driver were not counted
        return f"{told} In segments: {energy(own, cost['uncounted'])}, of earlier drivers too."
    if own is None:
        return f"{told} What of it the segments used, nothing here counts."
    if cost["uncounted"]:
        return f"{told} In segments: {energy(own, cost['uncounted'])}."
    return (
        f"{told} Of it {_joules(own)} ({percent(own / nodes) if nodes else 'all'}) were used in "
        f"segments; the rest by idle GCDs, and by all that no segment is charged with."
    )


def _joules(joules: float) -> str:
    return f"{number(joules / 3.6e6)} kWh" if joules >= 3.6e5 else f"{number(joules)} J"


def _hours(times: _Times) -> float:
    return sum(end - start for of in times.values() for start, end in union(of)) / 3600
