"""Commands that predict the cost of a campaign on a machine, and the tables they print."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import Config, Data, console, say, short, show, using
from hydragnn_flow.config import EnsembleConfig, SearchConfig
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site
from hydragnn_flow.placement import Power
from hydragnn_flow.report.tables import number
from hydragnn_flow.simulation import Configuration, Simulated

if TYPE_CHECKING:
    from hydragnn_flow.simulation import Conditions

app = typer.Typer()

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="GraphStore of the data, where one is prepared. By default that of runs/NAME, or else "
        "one is prepared here.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of all that is drawn.", min=0)]
QueueWait = Annotated[
    float,
    typer.Option("--queue-wait", help="Mean wait of a batch job in the queue, in minutes.", min=0),
]
Losses = Annotated[
    float,
    typer.Option(
        "--losses", help="Nodes lost in an hour, of each node: 1e-5 is one of 100,000.", min=0
    ),
]


@app.command()
@sites.with_options
def simulate(
    config: Config,
    site: sites.SiteOption = "local",
    data: Data = None,
    store: Store = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", help=r"Where to keep the simulated run. \[default: runs/NAME-simulated]"
        ),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--recorded",
            help="Directory of a run of the same configuration: trials take as long, and err as "
            "much, as they did there.",
            show_default=False,
        ),
    ] = None,
    queue_wait: QueueWait = 0.0,
    losses: Losses = 0.0,
    seed: Seed = 0,
    **options: Any,
) -> None:
    """Run a campaign on simulated nodes, in virtual time: the whole loop of search, placement and
    ensemble, without training anything.

    Nothing is submitted: it runs here, even for a machine of thousands of nodes. The time and the
    learning curve of each trial are drawn by the seed, or taken from a recorded run. `status`,
    `trials` and `report` read the resulting run directory. To find out how many node-hours to apply
    for, use `plan`.
    """
    from hydragnn_flow.campaign import load_config
    from hydragnn_flow.report.progress import CampaignView
    from hydragnn_flow.simulation import simulate as run

    loaded = load_config(config, data=data)
    loaded.data.check_files()
    machine = _machine(site, options)
    path = run_dir or Path("runs") / f"{loaded.name}-simulated"
    with using(path, data, store, recorded), CampaignView(console) as view:
        found = run(
            loaded,
            machine,
            path,
            view,
            conditions=_conditions(machine, queue_wait, losses),
            seed=seed,
            store=_store(store, loaded.name),
            recorded=recorded,
        )
    show(simulated_rows(found), f"Simulated on {machine_name(machine)}")
    say(f"simulated run  {short(path)}; nothing was trained")


@app.command()
@sites.with_options
def plan(
    config: Config,
    site: sites.SiteOption = "local",
    data: Data = None,
    store: Store = None,
    node_hours: Annotated[
        float | None,
        typer.Option(
            "--node-hours",
            help="Node-hours there are for it, to compare with.",
            min=0,
            show_default=False,
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", help="Simulations, in which trials take more or less.", min=3)
    ] = 5,
    queue_wait: QueueWait = 0.0,
    losses: Losses = 0.0,
    seed: Seed = 0,
    **options: Any,
) -> None:
    """Say what a campaign will probably take of a machine: time, node-hours, memory, energy.

    Submits nothing. Draws configurations from the search space, and says which fit the machine how,
    and which do not and why. Then simulates the campaign several times, within the uncertainty of
    the cost model, which is smaller on a machine that has run segments before. To see a single
    simulated campaign in detail, use `simulate`.
    """
    import tempfile

    from hydragnn_flow.campaign import load_config
    from hydragnn_flow.campaign.setup.stores import checked_store
    from hydragnn_flow.commands.planning import (
        conclusions,
        nodes_rows,
        plan_rows,
        planned,
        survey_rows,
    )
    from hydragnn_flow.report.progress import CampaignView
    from hydragnn_flow.simulation import Planner, misfits

    loaded = load_config(config, data=data)
    loaded.data.check_files()
    machine = _machine(site, options)
    with (
        using(data, store),
        tempfile.TemporaryDirectory() as folder,
        CampaignView(console) as view,
    ):
        path = _store(store, loaded.name) or Path(folder) / "store.gs"
        with checked_store(loaded, path, view) as opened:
            planner = Planner(
                loaded, machine, opened, _conditions(machine, queue_wait, losses), seed
            )
            found = planner.survey(view)
            fit = sum(not one.reason for one in found)
            drawn_from = "configurations drawn from the search space fit"
            show(survey_rows(found), f"{fit} of {len(found)} {drawn_from}")
            for sentence in misfits(loaded.search.space, found):
                say(sentence)
            drawn, on_nodes = planner.simulate(view, draws)
    title = planned(loaded.search, loaded.ensemble, draws, machine)
    show(plan_rows(drawn, machine, planner.power), title)
    show(nodes_rows(on_nodes), "With other numbers of nodes, as the middle simulation")
    known: dict[str, Any] = {"is_calibrated": planner.is_calibrated, "power": planner.power}
    for sentence in conclusions(drawn, on_nodes, machine, node_hours=node_hours, **known):
        say(sentence)


def _conditions(site: Site, queue_wait: float, losses: float) -> Conditions:
    from hydragnn_flow.simulation import Conditions

    # Without batch jobs the nodes exist, and only start their processes.
    return Conditions(
        queue_seconds=60 * queue_wait,
        losses=losses,
        node_seconds=10.0 if site.scheduler is None else 30.0,
    )


def _machine(site: str, options: dict[str, Any]) -> Site:
    """Return the site to simulate; an account need not be given, as nothing is paid."""
    from hydragnn_flow.execution.site import about_site

    if options["account"] is None and Path(site).suffix not in (".yaml", ".yml"):
        options["account"] = about_site(site)[1].account
    return sites.load(site, options)


def _store(given: Path | None, name: str) -> Path | None:
    if given is not None:
        if not (given / "manifest.json").is_file():
            raise InputError(f"--store {given}: is no GraphStore; prepare one or leave it out")
        return given
    prepared = Path("runs") / name / "store.gs"
    return prepared if prepared.exists() else None


Rows = list[dict[str, Any]]
"""Cells of a table by the names of its columns."""


def simulated_rows(found: Simulated) -> Rows:
    """Return table rows on time and resources of a simulated campaign."""
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
    """Return a table row for each message-passing type: how many configurations fit, their cost."""
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
    """Return table rows on time and resources of a campaign: 10th, 50th, 90th percentile.

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
    """Return a table row for each number of nodes, with the simulated time."""
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
    """Return the title of the table of a plan."""
    members = f" and {ensemble.size} members" if ensemble else ""
    return f"{search.trials:,} trials{members} on {machine_name(site)}, {draws} simulations"


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
    _, _, longest = percentiles([draw.makespan for draw in draws])
    _, middle, most = percentiles([draw.node_hours for draw in draws])
    if site.scheduler is not None:
        yield _jobs(longest, site)
        yield (
            f"apply for {number(most)} node-hours: it takes less nine times of ten, as far as is "
            f"known"
        )
    if node_hours is not None:
        enough = "enough" if most <= node_hours else "enough in the median"
        yield (
            f"{number(node_hours)} node-hours are "
            f"{enough if middle <= node_hours else 'too little'}: it takes {number(middle)} in the "
            f"median and {number(most)} at P90"
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
    """Return a sentence on where the figures for energy come from."""
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
    """Format a time in words: 0.9 s, 42 s, 3 min 10 s, 5 h 20 min."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def machine_name(site: Site) -> str:
    """Return the number of nodes and name of a site in words."""
    return f"{'one node' if site.nodes == 1 else f'{site.nodes:,} nodes'} of {site.name}"


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the tenth, fiftieth and ninetieth percentile of values."""
    low, middle, high = np.percentile(values, (10, 50, 90)).tolist()
    return low, middle, high


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"
