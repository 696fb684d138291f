"""Command that selects structures to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hydragnn_flow.commands.console import (
    DataSetName,
    FinishedRun,
    existing_data,
    say,
    short,
    using,
    writable,
)

app = typer.Typer()

_SUFFIX = ".extxyz"


@app.command()
def select(
    run_dir: FinishedRun,
    structures: Annotated[
        Path,
        typer.Argument(
            help="Structures: a file ASE reads, a directory of such, a GraphStore, or a table "
            "(.csv) like that of the training data.",
            metavar="STRUCTURES",
            show_default=False,
            callback=existing_data,
        ),
    ],
    n: Annotated[int, typer.Option("-n", help="How many to select.", min=1, show_default=False)],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write (.extxyz).", callback=writable(_SUFFIX)),
    ] = Path(f"selected{_SUFFIX}"),
    data_set: DataSetName = None,
) -> None:
    """Select structures to label next: uncertain, and different from each other.

    The structure about which the members disagree most comes first. Each further one has the
    largest product of disagreement and distance from those selected before, by node features. Each
    is written with its `file`, its position in it as `frame`, and its `uncertainty`: disagreement
    relative to the mean of all structures. From a GraphStore it has `split` and `graph_id` instead.
    """
    from hydragnn_flow.data import GraphStore
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
            records, (file, frame) = store_records(opened), ("split", "graph_id")
        else:
            records, (file, frame) = readable_records(ensemble, opened, say), ("file", "frame")
        atoms = [record.atoms for record in records.values()]
        with naming(structures, records):
            selection = select_structures(ensemble, atoms, n, names=list(records))
        origins: list[dict[str, str | int]] = [
            {file: str(one.file), frame: one.frame} for one in records.values()
        ]
        labels = {
            key
            for target in ensemble.calibrations
            for key in keys_of_label(ensemble.manifest, target)
        }
        write_selection(out, selection, atoms, origins, labels)
    say(f"{short(out)}: {n:,} of {len(records):,} structures")
