"""Commands that evaluate an ensemble on labelled data, and calibrate it on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import (
    DataSetName,
    FinishedRun,
    Without,
    console,
    existing_data,
    say,
    say_without,
    short,
    using,
    writable,
)
from hydragnn_flow.errors import InputError

app = typer.Typer()


def _by_target(given: list[str] | None) -> list[str] | None:
    for words in given or ():
        target, sign, key = words.partition("=")
        if not (target and sign and key):
            raise InputError(f"--key {words}: must be TARGET=KEY, as in --key energy=dft_energy")
    return given


Labelled = Annotated[
    Path,
    typer.Argument(
        help="Labelled structures: a file ASE reads, a directory of such files, a GraphStore, "
        "a .bp of HydraGNN's, or a table (.csv) like that of the training data. Labels are in the "
        "units of the training data.",
        metavar="LABELLED_DATA",
        show_default=False,
        callback=existing_data,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Use only this split of a GraphStore. Without it, all splits count together.",
        show_default=False,
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="Key of a target's labels in the files, as in energy=dft_energy; may be repeated. "
        "Without it, the key in the training data, or else the target's name.",
        metavar="TARGET=KEY",
        show_default=False,
        callback=_by_target,
    ),
]


@app.command()
def evaluate(
    run_dir: FinishedRun,
    data: Labelled,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the measures to a file too (.csv or .json).",
            show_default=False,
            callback=writable(".csv", ".json"),
        ),
    ] = None,
    split: Split = None,
    key: Keys = None,
    data_set: DataSetName = None,
    without: Without = None,
) -> None:
    """Measure the errors of a finished run's ensemble, and its uncertainty, on labelled data."""
    from hydragnn_flow.ensemble import Ensemble
    from hydragnn_flow.ensemble import evaluate as measure
    from hydragnn_flow.ensemble.evaluation.measures import save_measures
    from hydragnn_flow.report.errors import measures_frame
    from hydragnn_flow.report.tables import terminal

    keys = dict(words.split("=", 1) for words in key or ())
    with using(out or data, run_dir, data):
        ensemble = Ensemble.load(run_dir, without=without or (), data_set=data_set)
        say_without(without)
        found = measure(ensemble, data, split=split, keys=keys, say=say)
        if out is not None:
            save_measures(out, found)
    measures = measures_frame({name: target.to_dict() for name, target in found.items()})
    console.print(terminal(measures, caption="intervals: 95 %, from a bootstrap of structures"))
    if out is not None:
        say(short(out))


@app.command()
def recalibrate(
    run_dir: FinishedRun,
    data: Labelled,
    split: Split = None,
    key: Keys = None,
    data_set: DataSetName = None,
) -> None:
    """Calibrate the error bars of a finished run's ensemble on other labelled data.

    Nothing is trained, and the predicted means stay. The data must differ from those of training,
    and resemble those to be predicted. Predictions of RUN_DIR have the new error bars from then on;
    delete ensemble/calibration.json in it to return to those of the run.
    """
    from hydragnn_flow.ensemble import recalibrate as calibrate
    from hydragnn_flow.ensemble.calibration_file import FILE
    from hydragnn_flow.ensemble.summary import ensemble_folder

    keys = dict(words.split("=", 1) for words in key or ())
    with using(run_dir, data):
        found = calibrate(run_dir, data, split=split, keys=keys, data_set=data_set, say=say)
    for target, structures in found.items():
        say(f"{target}: calibrated on {structures:,} structures")
    say(short(ensemble_folder(run_dir) / FILE))
