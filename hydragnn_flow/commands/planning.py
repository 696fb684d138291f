"""Commands that predict the cost of a campaign on a machine, and the tables they print."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import (
    Config,
    Data,
    console,
    flattened,
    say,
    short,
    show,
    using,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.execution import Site

if TYPE_CHECKING:
    from hydragnn_flow import simulation

app = typer.Typer()

Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="GraphStore of the data, where one is prepared. By default that of runs/NAME, or else "
        "one is prepared here.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of all that is drawn.", min=0)]


@dataclass(frozen=True)
class Conditions:
    """Command-line options of a simulated machine: wait in the queue, and losses of nodes."""

    queue_wait: Annotated[
        float,
        typer.Option(
            "--queue-wait", help="Mean wait of a batch job in the queue, in minutes.", min=0
        ),
    ] = 0.0
    losses: Annotated[
        float,
        typer.Option(
            "--losses", help="Nodes lost in an hour, of each node: 1e-5 is one of 100,000.", min=0
        ),
    ] = 0.0

    def on(self, site: Site) -> simulation.Conditions:
        """Convert the options to the conditions of a simulation on a site's nodes."""
        from hydragnn_flow import simulation

        # Without batch jobs the nodes exist, and only start their processes.
        return simulation.Conditions(
            queue_seconds=60 * self.queue_wait,
            losses=self.losses,
            node_seconds=10.0 if site.scheduler is None else 30.0,
        )


@app.command(rich_help_panel="Machine")
@flattened
def simulate(
    config: Config,
    at: sites.Machine,
    conditions: Conditions,
    data: Data = None,
    store: Store = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", help=r"Where to keep the simulated run. \[default: runs/NAME-simulated]"
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Simulate a campaign on virtual nodes: search, placement and ensemble, without training.

    Nothing is submitted: the simulation runs here, even for a machine of thousands of nodes. The
    time and the learning curve of each trial are drawn by the seed. `status`, `trials` and `report`
    read the resulting run directory. To find out how many node-hours to apply for, use `plan`.
    """
    from hydragnn_flow.campaign import load_config
    from hydragnn_flow.commands.planned_tables import machine_name, simulated_rows
    from hydragnn_flow.report.progress import CampaignView
    from hydragnn_flow.simulation import simulate as run

    loaded = load_config(config, data=data)
    loaded.data.check_files()
    machine = _without_account(at)
    path = run_dir or Path("runs") / f"{loaded.name}-simulated"
    with using(path, data, store), CampaignView(console) as view:
        found = run(
            loaded,
            machine,
            path,
            view,
            conditions=conditions.on(machine),
            seed=seed,
            store=_store(store, loaded.name),
        )
    show(simulated_rows(found), f"Simulated on {machine_name(machine)}")
    say(f"simulated run  {short(path)}; nothing was trained")


@app.command(rich_help_panel="Machine")
@flattened
def plan(
    config: Config,
    at: sites.Machine,
    conditions: Conditions,
    data: Data = None,
    store: Store = None,
    draws: Annotated[
        int, typer.Option("--draws", help="Simulations, in which trials take more or less.", min=3)
    ] = 5,
    seed: Seed = 0,
) -> None:
    """Predict what a campaign will take of a machine: time, node-hours, memory and energy.

    Submits nothing. Draws configurations from the search space, and says which fit the machine, and
    why others do not. Then simulates the campaign several times, within the uncertainty of
    the cost model, which is smaller on a machine that has run segments before. To see a single
    simulated campaign in detail, use `simulate`.
    """
    import tempfile

    from hydragnn_flow.campaign import load_config
    from hydragnn_flow.campaign.setup.stores import checked_store
    from hydragnn_flow.commands.planned_tables import (
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
    machine = _without_account(at)
    with (
        using(data, store),
        tempfile.TemporaryDirectory() as folder,
        CampaignView(console) as view,
    ):
        path = _store(store, loaded.name) or Path(folder) / "store.gs"
        with checked_store(loaded, path, view) as opened:
            planner = Planner(loaded, machine, opened, conditions.on(machine), seed)
            found = planner.survey(view)
            fit = sum(not one.reason for one in found)
            drawn_from = "configurations drawn from the search space fit"
            show(survey_rows(found), f"{fit} of {len(found)} {drawn_from}")
            for sentence in misfits(loaded.search.space, found):
                say(sentence)
            drawn, on_nodes = planner.simulate(view, draws)
    title = planned(loaded.search, loaded.ensemble, draws, machine)
    show(plan_rows(drawn, machine, planner.power), title)
    show(nodes_rows(on_nodes), "With other numbers of nodes, as the simulation of median makespan")
    known: dict[str, Any] = {"is_calibrated": planner.is_calibrated, "power": planner.power}
    for sentence in conclusions(drawn, on_nodes, machine, **known):
        say(sentence)


def _without_account(at: sites.Machine) -> Site:
    """Return the site to simulate; an account need not be given, as nothing is paid."""
    from hydragnn_flow.execution.site import about_site

    if at.account is None and Path(at.site).suffix not in (".yaml", ".yml"):
        at = replace(at, account=about_site(at.site)[1].account)
    return at.load()


def _store(given: Path | None, name: str) -> Path | None:
    if given is not None:
        if not (given / "manifest.json").is_file():
            raise InputError(f"--store {given}: is no GraphStore; prepare one or leave it out")
        return given
    prepared = Path("runs") / name / "store.gs"
    return prepared if prepared.exists() else None
