"""The command that judges an ensemble by labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import (
    FinishedRun,
    Without,
    console,
    existing_data,
    refuse_unwritable,
    say,
    say_without,
    short,
    using,
)
from hydragnn_flow.errors import InputError

app = typer.Typer()


def _writable(out: Path | None) -> Path | None:
    return refuse_unwritable(out, ".csv", ".json")


def _by_target(given: list[str] | None) -> list[str] | None:
    for words in given or ():
        target, sign, key = words.partition("=")
        if not (target and sign and key):
            raise InputError(f"--key {words}: must be TARGET=KEY, as in --key energy=dft_energy")
    return given


@app.command()
def evaluate(
    run_dir: FinishedRun,
    data: Annotated[
        Path,
        typer.Argument(
            help="Labelled structures: a file ASE reads, a directory of such files, a GraphStore, "
            "or a .bp of HydraGNN's. Labels are in the units of the training data.",
            metavar="LABELLED_DATA",
            show_default=False,
            callback=existing_data,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the measures to a file too (.csv or .json).",
            show_default=False,
            callback=_writable,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help="Evaluate only this split of a GraphStore. Without it, all splits count together.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="Key of a target's labels in the files, as in energy=dft_energy; may be repeated. "
            "Without it, the key in the training data, or else the target's name.",
            metavar="TARGET=KEY",
            show_default=False,
            callback=_by_target,
        ),
    ] = None,
    without: Without = None,
) -> None:
    """Measure the errors of a finished run's ensemble, and its uncertainty, on labelled data."""
    from hydragnn_flow.ensemble import Ensemble
    from hydragnn_flow.ensemble import evaluate as measure
    from hydragnn_flow.ensemble.target_measures import save_measures
    from hydragnn_flow.report.measures import measures_table

    keys = dict(words.split("=", 1) for words in key or ())
    with using(out or data, run_dir, data):
        ensemble = Ensemble.load(run_dir, without=without or ())
        say_without(without)
        found = measure(ensemble, data, split=split, keys=keys, say=say)
        if out is not None:
            save_measures(out, found)
    console.print(measures_table({name: target.to_dict() for name, target in found.items()}))
    if out is not None:
        say(short(out))
