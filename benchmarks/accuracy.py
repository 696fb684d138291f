"""How accurate our networks are after a given CPU time, beside HydraGNN's.

    python benchmarks/accuracy.py DIRECTORY-OF-THE-DATA-SETS
    python benchmarks/accuracy.py DIRECTORY-OF-THE-DATA-SETS --only Si --only acac:PAINN

Every type is trained by the Trainer with the settings that HydraGNN's figures were measured with,
for the CPU time those took, on one thread; the weights best on the validation split are tested.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from graph_store.workspace import in_fresh_process
from model_accuracy.report import Row, table, write_json
from model_accuracy.run import prepare, train_and_test
from model_accuracy.sets import SETS, TYPES
from results.machine import machine
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hydragnn_flow import InputError


def main(
    data: Annotated[
        Path, typer.Argument(help="Directory of acac, mlearn and perov_5.", exists=True)
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"SET or SET:TYPE; the sets are {', '.join(SETS)}."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="CPU time of each training instead of HydraGNN's.", min=0.1)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Train, test and print a table; the exit status is 0 whatever it says."""
    rows, left_out = measure(_chosen(only or list(SETS)), data, seconds)

    # As wide as the table: what is written to a file is Markdown.
    console = Console(width=140)
    console.print(table(rows))
    for remark in left_out:
        console.print(f"not measured: {remark}")
    missed = [f"{row.set} {row.mpnn_type}" for row in rows if row.met is False]
    console.print(f"less accurate than HydraGNN: {', '.join(missed) or 'none'}")
    if seconds is not None:
        console.print("not the CPU time of HydraGNN's figures: leave out --seconds to judge")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))
    if json is not None:
        write_json(json, rows, left_out)


def measure(
    chosen: list[tuple[str, str]], data: Path, seconds: float | None
) -> tuple[list[Row], list[str]]:
    """Train and test types on sets; also say what could not be measured."""
    rows: list[Row] = []
    left_out: list[str] = []
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(chosen))
        for name, mpnn_type in chosen:
            store = Path(folder) / f"{name}.gs"
            published = SETS[name].published.get(mpnn_type)
            time = seconds or (published.seconds if published else SETS[name].seconds)
            try:
                if not store.exists():
                    progress.update(bar, description=f"{name}: preparing")
                    prepare(name, data, store)
                progress.update(bar, description=f"{name}, {mpnn_type}: {time:.0f} CPU-s")
                outcome = in_fresh_process(train_and_test, name, mpnn_type, store, time)
                rows.append(Row(name, mpnn_type, outcome))
            except InputError as error:
                left_out.append(f"{name}, {mpnn_type}: {error}")
            progress.advance(bar)
    return rows, left_out


def _chosen(only: list[str]) -> list[tuple[str, str]]:
    """Pairs of set and type, in the order asked for."""
    pairs = []
    for text in only:
        name, _, mpnn_type = text.partition(":")
        if name not in SETS or mpnn_type not in ("", *TYPES):
            raise typer.BadParameter(
                f"no {text}; write SET or SET:TYPE, of {', '.join(SETS)} and {', '.join(TYPES)}"
            )
        pairs += [(name, kind) for kind in ([mpnn_type] if mpnn_type else TYPES)]
    return pairs


if __name__ == "__main__":
    typer.run(main)
