"""Commands that measure the time of a training step, on one GCD and on many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import (
    RunDir,
    console,
    flattened,
    interruptible,
    say,
    short,
    using,
    writable,
)
from hydragnn_flow.errors import InputError

app = typer.Typer()

Trial = Annotated[
    int | None,
    typer.Option("--trial", help="Trial whose network to use, not the configuration's.", min=0),
]
Seconds = Annotated[float, typer.Option("--seconds", help="Seconds to measure.", min=0.1)]


def _widths(words: str) -> list[int]:
    """Parse numbers of GCDs, as in "1,2,4"."""
    try:
        widths = [int(word) for word in words.split(",")] if words else []
    except ValueError:
        raise InputError(f"--gcds {words}: give numbers with commas, as 1,2,4,8") from None
    if any(width < 1 for width in widths):
        raise InputError(f"--gcds {words}: numbers of GCDs begin with 1")
    return widths


@app.command(rich_help_panel="Machine")
@flattened
def profile(
    run_dir: RunDir,
    machine: sites.Machine,
    trial: Trial = None,
    gcds: Annotated[
        int,
        typer.Option("--gcds", help="GCDs that train together, on one node or on several.", min=1),
    ] = 1,
    seconds: Seconds = 5.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Write a Chrome trace (.json) of some steps of the first GCD.",
            callback=writable(".json", option="--trace"),
        ),
    ] = None,
) -> None:
    """Measure where the time of a training step goes, and say what to do about it.

    The network trains on GCDs of a site. This needs a prepared store and changes nothing.
    """
    site = machine.load()
    from hydragnn_flow.campaign.profiling import profile_on_site
    from hydragnn_flow.report.scaling import profile_tables

    with interruptible(), using(run_dir, trace), console.status("starting") as status:
        measured, nodes = profile_on_site(
            run_dir,
            site,
            trial=trial,
            gcds=gcds,
            seconds=seconds,
            trace=trace,
            say=say,
            waits=status.update,
        )
    console.print(profile_tables(measured, nodes))
    if trace is not None:
        say(f"trace: {short(trace)}; open it at https://ui.perfetto.dev")


@app.command(rich_help_panel="Machine")
@flattened
def scaling(
    run_dir: RunDir,
    machine: sites.Machine,
    trial: Trial = None,
    gcds: Annotated[
        str,
        typer.Option(
            "--gcds",
            help="Numbers of GCDs, as 1,2,4,8. Without it, powers of two up to those of a batch "
            "job of the site.",
            metavar="LIST",
            callback=lambda words: words if _widths(words) else "",
        ),
    ] = "",
    seconds: Seconds = 5.0,
) -> None:
    """Measure how fast a network trains on more and more GCDs, and say where more do not pay.

    In weak scaling each GCD has a batch, in strong scaling all share one. Table and figure are in
    RUN_DIR/scaling and in the report. The same command continues a stopped study.
    """
    site = machine.load()
    from hydragnn_flow.campaign.profiling import scaling_study
    from hydragnn_flow.report.progress import CampaignView
    from hydragnn_flow.report.scaling import scaling_grid, verdicts

    with interruptible(), using(run_dir), CampaignView(console) as view:

        def progress(done: int, total: int, note: str) -> None:
            view.step("scaling", done, total, note)

        study, picture = scaling_study(
            run_dir,
            site,
            trial=trial,
            gcds=_widths(gcds),
            seconds=seconds,
            say=view.say,
            progress=progress,
        )
    console.print(scaling_grid(study))
    for sentence in verdicts(study):
        say(sentence)
    say(short(picture))
