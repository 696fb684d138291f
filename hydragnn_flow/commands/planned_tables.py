"""Tables and sentences of a plan and of a simulated campaign."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_flow.config import EnsembleConfig, SearchConfig
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import Power
from hydragnn_flow.report.tables import number
from hydragnn_flow.simulation import Configuration, Simulated

Rows = list[dict[str, Any]]
"""Cells of a table by the names of its columns."""


def simulated_rows(found: Simulated) -> Rows:
    """Return a table of a simulated campaign's time and resources, one row per quantity."""
    told = {
        "makespan": duration(found.makespan),
        "of it the search": duration(found.search_seconds),
        "node-hours": number(found.node_hours),
        "batch jobs": f"{found.batch_jobs:,}",
        "GCDs occupied": f"{found.occupied:.1%} of their time",
        "GCDs busy": f"{found.busy:.1%} of their time",
        "trials": ", ".join(f"{n:,} {state}" for state, n in sorted(found.trials.items())),
        "members": f"{found.members:,}",
        "failed segments": f"{found.failed_segments:,}",
    }
    return [{"": name, "simulated": value} for name, value in told.items()]


def survey_rows(found: Sequence[Configuration]) -> Rows:
    """Return a table, one row per message-passing type: how many configurations fit, and cost."""
    rows: Rows = []
    for name in sorted({one.mpnn_type for one in found}):
        of_type = [one for one in found if one.mpnn_type == name]
        fitting = [one for one in of_type if not one.reason]
        row = {"type": name, "fit": f"{len(fitting)} of {len(of_type)}"}
        if fitting:
            low, _, high = percentiles([one.seconds for one in fitting])
            _, middle, most = percentiles([one.memory_gib for one in fitting])
            row |= {
                "GCDs": _span([one.gcds for one in fitting]),
                "micro-batches": _span([one.micro_batches for one in fitting]),
                "a trial, P10 to P90": f"{duration(low)} to {duration(high)}",
                "GiB, P50": number(middle),
                "GiB, P90": number(most),
            }
        rows.append(row)
    return rows


def plan_rows(draws: Sequence[Simulated], site: Site, power: Power | None = None) -> Rows:
    """Return a table of a planned campaign's time and resources: percentiles 10, 50 and 90.

    Parameters
    ----------
    draws
        Simulations of the campaign, from `Planner.simulate`.
    site
        Site of the machine.
    power
        Measured power of GCDs and nodes; None if unknown.
    """
    hours = [draw.node_hours for draw in draws]
    rows = [
        ("makespan", [draw.makespan for draw in draws], duration),
        ("of it the search", [draw.search_seconds for draw in draws], duration),
        ("node-hours", hours, number),
        ("GCDs idle", [1 - draw.occupied for draw in draws], "{:.0%}".format),
        ("GCDs busy", [draw.busy for draw in draws], "{:.0%}".format),
        ("batch jobs", [float(draw.batch_jobs) for draw in draws], number),
    ]
    if power is not None:
        energy = [draw.gcd_hours * power.gcd_watts / 1000 for draw in draws]
        rows.append(("energy of segments [kWh]", energy, number))
        whole = [power.joules(draw.gcd_hours, draw.node_hours) for draw in draws]
        if known := [joules / 1000 for joules in whole if joules is not None]:
            rows.append(("energy of nodes, idle included [kWh]", known, number))
    elif site.node.watts is not None:
        energy = [hour * site.node.watts / 1000 for hour in hours]
        rows.append(("energy of the GCDs, at most [kWh]", energy, number))
    return [
        {"": name} | dict(zip(("P10", "P50", "P90"), map(told, percentiles(values)), strict=True))
        for name, values, told in rows
    ]


def nodes_rows(on_nodes: Mapping[int, Simulated]) -> Rows:
    """Return a table of a campaign's simulated time and node-hours, one row per number of nodes."""
    return [
        {
            "nodes": f"{nodes:,}",
            "makespan": duration(found.makespan),
            "node-hours": number(found.node_hours),
            "GCDs idle": f"{1 - found.occupied:.0%}",
        }
        for nodes, found in sorted(on_nodes.items())
    ]


def planned(search: SearchConfig, ensemble: EnsembleConfig | None, draws: int, site: Site) -> str:
    """Return the title of a plan's table: numbers of trials, members, nodes and simulations."""
    members = f" and {ensemble.size} members" if ensemble else ""
    return f"{search.trials:,} trials{members} on {machine_name(site)}, {draws} simulations"


def conclusions(
    draws: Sequence[Simulated],
    on_nodes: Mapping[int, Simulated],
    site: Site,
    *,
    is_calibrated: bool,
    power: Power | None = None,
) -> Iterator[str]:
    """Yield sentences on what to request for a planned campaign: batch jobs, node-hours, nodes.

    Parameters
    ----------
    draws
        Simulations with the site's number of nodes, from `Planner.simulate`.
    on_nodes
        One simulation for each number of nodes, by that number; the site's and twice the site's
        are among them.
    site
        Site of the simulated machine.
    is_calibrated
        True if segments were measured on the site before.
    power
        Measured power of GCDs and nodes; None if unknown.
    """
    _, _, longest = percentiles([draw.makespan for draw in draws])
    _, _, most = percentiles([draw.node_hours for draw in draws])
    if site.scheduler is not None:
        yield _jobs(longest, site)
        if site.priority:
            yield site.priority
        yield (
            f"apply for {number(most)} node-hours: it takes less nine times of ten, as far as is "
            f"known"
        )
    now, twice = on_nodes[site.nodes], on_nodes[2 * site.nodes]
    gain = 1 - twice.makespan / now.makespan
    extra = twice.node_hours / now.node_hours - 1
    pays = "" if gain > 0.1 else "; they do not pay"
    yield f"twice the nodes: {gain:.0%} shorter, {extra:+.0%} node-hours{pays}"
    yield _of_energy(site, power)
    if not is_calibrated:
        yield (
            f"no segment was ever measured on {site.name}: rates are guessed, and times may be off "
            f"by more than the percentiles say; give it a small run there first"
        )


def _of_energy(site: Site, power: Power | None) -> str:
    """Return a sentence that names the source of the energies in a plan."""
    if power is None:
        unknown = f"no segment on {site.name} had its energy counted"
        if site.node.watts is None:
            return f"energy is not known: {unknown}, and the site does not say its `watts`"
        return f"energy: at most, by the site's `watts`; {unknown}"
    rest = "; what idle GCDs and the rest of the nodes draw was not counted"
    if power.rest_watts is not None:
        rest = f", and {number(power.rest_watts)} W for the rest of each node"
    return (
        f"energy: {number(power.gcd_watts)} W of a GCD at work, from the {power.segments:,} "
        f"segments on {site.name} that were counted last{rest}"
    )


def _jobs(seconds: float, site: Site) -> str:
    asked = math.ceil(seconds / 600) * 600  # in steps of ten minutes
    hours, rest = divmod(round(min(asked, site.walltime)), 3600)
    jobs = f"ask for {site.blocks} x {site.nodes // site.blocks:,} nodes with --walltime "
    jobs += f"{hours:02}:{rest // 60:02}:00"
    if asked <= site.walltime:
        return jobs
    return f"{jobs}: about {math.ceil(seconds / site.walltime)} jobs follow each other"


def duration(seconds: float) -> str:
    """Format a time in seconds as words: 0.9 s, 42 s, 3 min 10 s, 5 h 20 min."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def machine_name(site: Site) -> str:
    """Return a site's number of nodes and name in words, as `4 nodes of frontier`."""
    return f"{'one node' if site.nodes == 1 else f'{site.nodes:,} nodes'} of {site.name}"


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the tenth, fiftieth and ninetieth percentile of values."""
    low, middle, high = np.percentile(values, (10, 50, 90)).tolist()
    return low, middle, high


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
