"""Command that predicts structures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import (
    DataSetName,
    FinishedRun,
    Without,
    console,
    existing_data,
    interruptible,
    say,
    say_without,
    short,
    using,
    writable,
)
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble
    from hydragnn_flow.ensemble.predictions.files import Written
    from hydragnn_flow.execution import Site

app = typer.Typer()


@app.command()
@sites.with_options
def predict(
    run_dir: FinishedRun,
    structures: Annotated[
        Path,
        typer.Argument(
            help="Structures: a file ASE reads, a directory of such, a GraphStore, a .bp of "
            "HydraGNN's, or a table (.csv) like that of the training data.",
            metavar="STRUCTURES",
            show_default=False,
            callback=existing_data,
        ),
    ],
    out: Annotated[
        list[Path],
        typer.Option(
            "-o",
            "--out",
            help="File to write (.csv, .parquet or .extxyz); may be repeated. In the first two, "
            "targets of atoms go to a second table beside it, NAME_nodes.",
            callback=writable(".csv", ".parquet", ".extxyz"),
        ),
    ] = [Path("predictions.csv")],  # noqa: B006  # typer reads it once
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help="Predict only this split of a GraphStore. Without it all splits are predicted, "
            "in the order of the store, and a column `split` names them.",
            show_default=False,
        ),
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", help="Add every member's prediction.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--coverage",
            help="Fraction of true values that the intervals are to hold, as 0.95. Without it, "
            "that of the run.",
            show_default=False,
        ),
    ] = None,
    data_set: DataSetName = None,
    without: Without = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="Device of the networks, by torch's name, as cuda. By default the CPU; with "
            "--site, what the site says.",
            show_default=False,
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            "--site",
            help="Spread the work over all GCDs of a machine: the name of a shipped site, a site "
            "file, or a site.yaml. The same command continues what was stopped. All paths must be "
            "on file systems that its nodes see. Without it, this process predicts.",
            show_default=False,
        ),
    ] = None,
    **options: Any,
) -> None:
    """Predict structures with the ensemble of a finished run.

    Rows are in the order of the input; files of a directory in natural order (run-2 before run-10),
    with columns `file` and `frame`. A structure that cannot be predicted has the reason in the
    column `note`. Files that cannot be read are left out and named. Labels in the input are shown
    next to the predictions, with the errors. Units are those of the training data; they are
    printed, and written to the metadata of Parquet files.
    """
    machine = _machine(site, device, options)
    from hydragnn_flow.ensemble import Ensemble

    asked: dict[str, Any] = {"split": split, "members": members, "say": say}
    with using(*out, run_dir, structures):
        ensemble = Ensemble.load(run_dir, without=without or (), data_set=data_set)
        if coverage is not None:
            ensemble = ensemble.at(coverage)
        say_without(without)
        if machine is None:
            done = _here(ensemble, structures, out, device=device or "cpu", **asked)
        else:
            done = _on_site(ensemble, structures, out, machine, **asked)
    for path in done.files:
        say(short(path))
    if done.without:
        say(f"{done.without:,} of {done.structures:,} structures have no prediction; see `note`")
    if done.unlike:
        say(
            f"{done.unlike:,} of {done.structures:,} structures are unlike the training data; see "
            f"`flagged` and `note`"
        )
    targets = ensemble.manifest.targets
    units = (f"{name} in {targets[name].unit or 'unknown units'}" for name in ensemble.calibrations)
    say(f"{', '.join(units)}; _lo to _hi is the {ensemble.coverage * 100:g} % interval")


def _machine(site: str | None, device: str | None, options: dict[str, Any]) -> Site | None:
    """Load the site that the options name; None for this process."""
    if site is not None:
        if device is not None:
            raise InputError(f"--device {device}: the site says what its GCDs are; leave it out")
        return sites.load(site, options)
    for name, value in options.items():
        if value is not None:
            raise InputError(f"--{name} {value}: is an option of a site; name one with --site")
    return None


def _here(ensemble: Ensemble, data: Path, paths: list[Path], **asked: Any) -> Written:
    from hydragnn_flow.ensemble import write_predictions
    from hydragnn_flow.report.progress import CampaignView
    from hydragnn_flow.training.memory import keep_freed_memory

    keep_freed_memory()
    begun = time.monotonic()
    with CampaignView(console) as view:

        def progress(done: int, total: int | None) -> None:
            if total and time.monotonic() > begun + 3.0:  # a shorter bar would only flicker
                view.step("predict", done, total)

        return write_predictions(ensemble, data, paths, progress=progress, **asked)


def _on_site(
    ensemble: Ensemble, data: Path, paths: list[Path], site: Site, **asked: Any
) -> Written:
    from hydragnn_flow.campaign.on_site.prediction import predict_on_site
    from hydragnn_flow.report.progress import CampaignView

    with interruptible(), CampaignView(console) as view:

        def progress(done: int, total: int, note: str) -> None:
            view.step("predict", done, total, note)

        return predict_on_site(ensemble, data, paths, site, progress=progress, **asked)
