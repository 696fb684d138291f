"""Tables and sentences of a plan and of a simulated campaign."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.table import Table

from hydragnn_flow.config import RunConfig
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import Power
from hydragnn_flow.report.tables import number
from hydragnn_flow.simulation import Configuration, Simulated

_PERCENTILES = (10, 50, 90)
# Granularity of requested walltimes [s].
_STEP = 600
# Least relative reduction of the makespan for which more nodes pay.
_WORTH = 0.1


def simulated_table(found: Simulated, site: Site) -> Table:
    """Table of the time and resources of a simulated campaign."""
    table = Table(title=f"Simulated on {_machine(site)}", show_header=False)
    for name, value in (
        ("makespan", duration(found.makespan)),
        ("of it the search", duration(found.search_seconds)),
        ("node-hours", number(found.node_hours)),
        ("batch jobs", f"{found.batch_jobs:,}"),
        ("GCDs occupied", f"{found.occupied:.1%} of their time"),
        ("GCDs busy", f"{found.busy:.1%} of their time"),
        ("trials", ", ".join(f"{n:,} {state}" for state, n in sorted(found.trials.items()))),
        ("members", f"{found.members:,}"),
        ("failed segments", f"{found.failed_segments:,}"),
    ):
        table.add_row(name, value)
    return table


def survey_table(found: Sequence[Configuration]) -> Table:
    """Table of the fit of configurations to a machine, by message-passing type."""
    fit = sum(not one.reason for one in found)
    table = Table(title=f"{fit} of {len(found)} configurations drawn from the search space fit")
    table.add_column("type")
    for column in ("fit", "GCDs", "micro-batches", "a trial, P10 to P90", "GiB, P50", "GiB, P90"):
        table.add_column(column, justify="right")
    by_type: defaultdict[str, list[Configuration]] = defaultdict(list)
    for one in found:
        by_type[one.mpnn_type].append(one)
    for name, of_type in sorted(by_type.items()):
        fitting = [one for one in of_type if not one.reason]
        row = [name, f"{len(fitting)} of {len(of_type)}"]
        if fitting:
            low, _, high = _percentiles([one.seconds for one in fitting])
            _, middle, most = _percentiles([one.memory_gib for one in fitting])
            row += [
                _span([one.gcds for one in fitting]),
                _span([one.micro_batches for one in fitting]),
                f"{duration(low)} to {duration(high)}",
                *map(number, (middle, most)),
            ]
        table.add_row(*row)
    return table


def plan_table(
    draws: Sequence[Simulated], site: Site, config: RunConfig, power: Power | None = None
) -> Table:
    """Table of the time and resources of a campaign, with percentiles.

    Parameters
    ----------
    draws
        Simulations of the campaign, from `Planner.simulate`.
    site, config
        Site of the machine, and configuration of the campaign.
    power
        Measured power of GCDs and nodes; None if unknown.
    """
    planned = f"{config.search.trials:,} trials"
    planned += f" and {config.ensemble.size} members" if config.ensemble else ""
    table = Table(title=f"{planned} on {_machine(site)}, {len(draws)} simulations")
    table.add_column("")
    for percentile in _PERCENTILES:
        table.add_column(f"P{percentile}", justify="right")
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
        rows.append((r"energy of segments \[kWh]", energy, number))
        whole = [power.joules(draw.gcd_hours, draw.node_hours) for draw in draws]
        if known := [joules / 1000 for joules in whole if joules is not None]:
            rows.append((r"energy of nodes, idle included \[kWh]", known, number))
    elif site.node.watts is not None:
        energy = [hour * site.node.watts / 1000 for hour in hours]
        rows.append((r"energy of the GCDs, at most \[kWh]", energy, number))
    for name, values, told in rows:
        table.add_row(name, *map(told, _percentiles(values)))
    return table


def nodes_table(on_nodes: Mapping[int, Simulated]) -> Table:
    """Table of the effect of half and twice the nodes."""
    table = Table(title="With other numbers of nodes, as the middle simulation")
    for column in ("nodes", "makespan", "node-hours", "GCDs idle"):
        table.add_column(column, justify="right")
    for nodes, found in sorted(on_nodes.items()):
        told = duration(found.makespan), number(found.node_hours), f"{1 - found.occupied:.0%}"
        table.add_row(f"{nodes:,}", *told)
    return table


def conclusions(
    draws: Sequence[Simulated],
    on_nodes: Mapping[int, Simulated],
    site: Site,
    *,
    is_calibrated: bool,
    node_hours: float | None,
    power: Power | None = None,
) -> Iterator[str]:
    """Yield sentences that recommend what to request.

    Parameters
    ----------
    draws, on_nodes
        Simulations with the site's and with other numbers of nodes, from `Planner.simulate`.
    site
        Site of the simulated machine.
    is_calibrated
        True if segments were measured on the site before.
    node_hours
        Available node-hours; None if unknown.
    power
        Measured power of GCDs and nodes; None if unknown.
    """
    _, _, longest = _percentiles([draw.makespan for draw in draws])
    _, middle, most = _percentiles([draw.node_hours for draw in draws])
    if site.scheduler is not None:
        yield _jobs(longest, site)
        yield (
            f"apply for {number(most)} node-hours: it takes less nine times of ten, as far as is "
            f"known"
        )
    if node_hours is not None:
        enough = (
            "enough"
            if most <= node_hours
            else "enough in the median"
            if (middle <= node_hours)
            else "too little"
        )
        yield (
            f"{number(node_hours)} node-hours are {enough}: it takes {number(middle)} in the "
            f"median and {number(most)} at P90"
        )
    now, twice = on_nodes[site.nodes], on_nodes[2 * site.nodes]
    gain = 1 - twice.makespan / now.makespan
    extra = twice.node_hours / now.node_hours - 1
    yield f"twice the nodes: {gain:.0%} shorter, {extra:+.0%} node-hours" + (
        "" if gain > _WORTH else "; they do not pay"
    )
    yield _of_energy(site, power)
    if not is_calibrated:
        yield (
            f"no segment was ever measured on {site.name}: rates are guessed, and times may be off "
            f"by more than the percentiles say; give it a small run there first"
        )


def _of_energy(site: Site, power: Power | None) -> str:
    """Sentence on the source of the figures for energy."""
    if power is not None:
        measured = (
            f"energy: {number(power.gcd_watts)} W of a GCD at work, from the "
            f"{power.segments:,} segments on {site.name} that were counted last"
        )
        if power.rest_watts is None:
            return f"{measured}; what idle GCDs and the rest of the nodes draw was not counted"
        return f"{measured}, and {number(power.rest_watts)} W for the rest of each node"
    unknown = f"no segment on {site.name} had its energy counted"
    if site.node.watts is None:
        return f"energy is not known: {unknown}, and the site does not say its `watts`"
    return f"energy: at most, by the site's `watts`; {unknown}"


def _jobs(seconds: float, site: Site) -> str:
    asked = math.ceil(seconds / _STEP) * _STEP
    nodes = f"{site.nodes // site.blocks:,} nodes"
    if asked <= site.walltime:
        return f"ask for {site.blocks} x {nodes} with --walltime {_clock(asked)}"
    times = math.ceil(seconds / site.walltime)
    return (
        f"ask for {site.blocks} x {nodes} with --walltime {_clock(site.walltime)}: about {times} "
        f"jobs follow each other"
    )


def duration(seconds: float) -> str:
    """Format a time in words: 0.9 s, 42 s, 3 min 10 s, 5 h 20 min."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:02}:{rest // 60:02}:00"


def _machine(site: Site) -> str:
    nodes = "one node" if site.nodes == 1 else f"{site.nodes:,} nodes"
    return f"{nodes} of {site.name}"


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(values, _PERCENTILES).tolist()
    return low, middle, high
