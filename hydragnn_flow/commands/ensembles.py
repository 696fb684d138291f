"""Commands for a trained ensemble: predict, evaluate, recalibrate, select, export."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_flow.commands import sites
from hydragnn_flow.commands.console import (
    DataSetName,
    FinishedRun,
    console,
    existing_data,
    flattened,
    interruptible,
    say,
    short,
    using,
    writable,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.plain_files import sound

if TYPE_CHECKING:
    from hydragnn_flow.ensemble.ensemble import Ensemble
    from hydragnn_flow.ensemble.predictions.files import Written
    from hydragnn_flow.execution import Site

app = typer.Typer()


@dataclass(frozen=True)
class Loading:
    """Command-line options for loading an ensemble: its data set, and members to leave out."""

    data_set: DataSetName = None
    without: Annotated[
        list[int] | None,
        typer.Option(
            "--without",
            help="Leave this member out, by its number in ensemble.json; may be repeated. Weights "
            "of the others are scaled to add up to 1; intervals stay calibrated for all members.",
            metavar="K",
        ),
    ] = None

    def load(self, run_dir: Path) -> Ensemble:
        """Load the ensemble of a run; print which members were left out, if any."""
        from hydragnn_flow.ensemble import Ensemble

        ensemble = Ensemble.load(run_dir, without=self.without or (), data_set=self.data_set)
        if self.without:
            left_out = ", ".join(map(str, sorted(set(self.without))))
            say(f"left out: {left_out}; intervals are those calibrated with all members")
        return ensemble


@dataclass(frozen=True)
class Device(sites.Jobs):
    """Command-line options for where an ensemble predicts: a device here, or a site's GCDs."""

    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="Device of the networks, by torch's name, as cuda. By default the CPU; with "
            "--site, what the site says.",
        ),
    ] = None
    site: Annotated[
        str | None,
        typer.Option(
            "--site",
            help="Spread the work over all GCDs of a machine: the name of a shipped site, a site "
            "file, or a site.yaml. The same command continues what was stopped. All paths must be "
            "on file systems that its nodes see. Without it, this process predicts.",
            autocompletion=sites.completed,
        ),
    ] = None

    def machine(self) -> Site | None:
        """Load the site (machine) that the options name; None to predict in this process."""
        options = dict(vars(self))
        device, site = options.pop("device"), options.pop("site")
        if site is None:
            for name, value in options.items():
                if value is not None:
                    raise InputError(
                        f"--{name} {value}: is an option of a site; name one with --site"
                    )
            return None
        if device is not None:
            raise InputError(f"--device {device}: the site says what its GCDs are; leave it out")
        return sites.Machine(**options, site=site).load()


Structures = Annotated[
    Path,
    typer.Argument(
        help="Structures: a file ASE reads, a directory of such, a GraphStore, a .bp of "
        "HydraGNN's, or a table (.csv) like that of the training data.",
        metavar="STRUCTURES",
        callback=existing_data,
    ),
]


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
        callback=existing_data,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="Use only this split of a GraphStore. Without it, all splits are used; predictions "
        "are in the order of the store, and a column `split` names them.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        help="Key of a target's labels in the files, as in energy=dft_energy; may be repeated. "
        "Without it, the key in the training data, or else the target's name.",
        metavar="TARGET=KEY",
        callback=_by_target,
    ),
]


@app.command(rich_help_panel="Use")
@flattened
def evaluate(
    run_dir: FinishedRun,
    data: Labelled,
    loading: Loading,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the measures to a file too (.csv or .json).",
            callback=writable(".csv", ".json"),
        ),
    ] = None,
    split: Split = None,
    key: Keys = None,
) -> None:
    """Measure the errors of a finished run's ensemble, and its uncertainty, on labelled data."""
    from hydragnn_flow.ensemble import evaluate as measure
    from hydragnn_flow.ensemble.evaluation.measures import save_measures
    from hydragnn_flow.report.errors import measures_frame
    from hydragnn_flow.report.tables import terminal

    keys = dict(words.split("=", 1) for words in key or ())
    with using(out or data, run_dir, data):
        found = measure(loading.load(run_dir), data, split=split, keys=keys, say=say)
        if out is not None:
            save_measures(out, found)
    measures = measures_frame({name: target.to_dict() for name, target in found.items()})
    narrow = measures.drop(columns="meaning")
    console.print(terminal(narrow, caption="intervals: 95 %, from a bootstrap of structures"))
    if out is not None:
        say(short(out))


@app.command(rich_help_panel="Use")
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
    from hydragnn_flow.ensemble.summary import ensemble_folder
    from hydragnn_flow.ensemble.uncertainty.calibration import FILE

    keys = dict(words.split("=", 1) for words in key or ())
    with using(run_dir, data):
        found = calibrate(run_dir, data, split=split, keys=keys, data_set=data_set, say=say)
    for target, structures in found.items():
        say(f"{target}: calibrated on {structures:,} structures")
    say(short(ensemble_folder(run_dir) / FILE))


@app.command(rich_help_panel="Use")
def export(
    run_dir: FinishedRun,
    out: Annotated[Path, typer.Argument(help="Directory to make.", metavar="OUT")],
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            help="Send it to the Hugging Face hub too, to a private repository unless there is "
            "one. `Ensemble.load` fetches it as hf://OWNER/NAME.",
            metavar="OWNER/NAME",
        ),
    ] = None,
) -> None:
    """Export the ensemble of a finished run: a directory that predicts wherever it is copied.

    The directory holds networks and weights of the members, the calibration, the statistics of the
    training data that they need, a model card (README.md) and checksums, which are verified on
    loading. `predict`, `evaluate` and `select` accept it in place of RUN_DIR. It holds no data, no
    state of the search or of an optimizer, and nothing that runs code.
    """
    with using(out, run_dir), sound(run_dir):
        from hydragnn_flow.ensemble import hub
        from hydragnn_flow.ensemble.ensemble import check_export, export_ensemble
        from hydragnn_flow.ensemble.summary import ensemble_folder, verify_checksums
        from hydragnn_flow.report.html import model_card

        check_export(run_dir, out)
        verify_checksums(ensemble_folder(run_dir))  # before the model card reads the files
        if push is not None:
            hub.make(push)
        export_ensemble(run_dir, out, model_card(run_dir, out.name))
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    say(f"{short(out)}: {size / 1e6:.1f} MB")
    if push is not None:
        say(hub.send(out, push))


@app.command(rich_help_panel="Use")
@flattened
def predict(
    run_dir: FinishedRun,
    structures: Structures,
    loading: Loading,
    where: Device,
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
    split: Split = None,
    members: Annotated[
        bool, typer.Option("--members", help="Add every member's prediction.")
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--coverage",
            help="Fraction of true values that the intervals are to hold, as 0.95. Without it, "
            "that of the run.",
        ),
    ] = None,
) -> None:
    """Predict structures with the ensemble of a finished run.

    Rows are in the order of the input; files of a directory in natural order (run-2 before run-10),
    with columns `file` and `frame`. A structure that cannot be predicted has the reason in the
    column `note`. Files that cannot be read are left out and named. Labels in the input are shown
    next to the predictions, with the errors. Units are those of the training data; they are
    printed, and written to the metadata of Parquet files.
    """
    machine = where.machine()
    asked: dict[str, Any] = {"split": split, "members": members, "say": say}
    with using(*out, run_dir, structures):
        ensemble = loading.load(run_dir)
        if coverage is not None:
            ensemble = ensemble.at(coverage)
        if machine is None:
            done = _here(ensemble, structures, out, device=where.device or "cpu", **asked)
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
    units = {name: targets[name].unit or "unknown units" for name in ensemble.calibrations}
    for name, classes in ((name, targets[name].classes) for name in [*units]):
        if classes:
            del units[name]
            say(f"{name}: _probability_ of {', '.join(classes)}; _predicted is the most probable")
    if units:
        told = ", ".join(f"{name} in {unit}" for name, unit in units.items())
        say(f"{told}; _lo to _hi is the {ensemble.coverage * 100:g} % interval")


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
    from hydragnn_flow.campaign.prediction import predict_on_site
    from hydragnn_flow.report.progress import CampaignView

    with interruptible(), CampaignView(console) as view:

        def progress(done: int, total: int, note: str) -> None:
            view.step("predict", done, total, note)

        return predict_on_site(ensemble, data, paths, site, progress=progress, **asked)


_SUFFIX = ".extxyz"


@app.command(rich_help_panel="Use")
def select(
    run_dir: FinishedRun,
    structures: Structures,
    n: Annotated[int, typer.Option("-n", help="How many to select.", min=1)],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write (.extxyz).", callback=writable(_SUFFIX)),
    ] = Path(f"selected{_SUFFIX}"),
    data_set: DataSetName = None,
) -> None:
    """Select structures to label next, on which members disagree and which differ from each other.

    The structure about which the members disagree most comes first. Each further one has the
    largest product of disagreement and distance from those selected before, by node features. Each
    is written with its `file`, its position in it as `frame`, its `id` if it has one, and its
    `disagreement`, 1 where structures begin to be flagged. From a GraphStore it also has `split`
    and `graph_id`.
    """
    from hydragnn_flow.data import GraphStore
    from hydragnn_flow.data.sources.structures import name_of
    from hydragnn_flow.ensemble import Ensemble
    from hydragnn_flow.ensemble.acquisition import select_structures, write_selection
    from hydragnn_flow.ensemble.predictions.files import check_keeps_input
    from hydragnn_flow.ensemble.predictions.labels import keys_of_label
    from hydragnn_flow.ensemble.predictions.structure_files import (
        naming,
        open_path,
        readable_records,
        store_records,
    )

    with using(out, run_dir, structures):
        check_keeps_input(structures, [out])
        ensemble = Ensemble.load(run_dir, data_set=data_set)
        opened = open_path(structures, ensemble.manifest)
        if isinstance(opened, GraphStore):
            records = store_records(opened)
            origins = [
                {"split": one.file, "graph_id": one.frame, **one.found.values}
                for one in records.values()
            ]
        else:
            records = readable_records(ensemble, opened, say)
            origins = [
                {"file": file, "frame": frame, "id": name_of(one.found.values)}
                for one in records.values()
                for file, frame in (one.place,)
            ]
        atoms = [record.atoms for record in records.values()]
        with naming(structures, records):
            selection = select_structures(ensemble, atoms, n, names=list(records))
        labels = {
            key
            for target in ensemble.calibrations
            for key in keys_of_label(ensemble.manifest, target)
        }
        write_selection(out, selection, atoms, origins, labels)
    say(f"{short(out)}: {n:,} of {len(records):,} structures")
