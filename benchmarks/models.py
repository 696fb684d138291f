"""How fast our networks train, beside HydraGNN's.

    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT --only PAINN --mode potential

Both sides get the same JSON and the same batches, in memory, and take turns in one process with
one thread: the ratio is of graphs per CPU-second. A training step is loss, gradient and update:
HydraGNN's by its own ``train``, ours as the Trainer takes it, with clipping of the gradient and
averaging of the weights. HydraGNN is spared the DDP in which its examples put a model for one
process too, and the neighbour search of its SchNet. Memory is the resident memory that building a
network and two training steps add at their highest, each side in a process of its own.

HydraGNN needs torch-scatter, e3nn, scikit-learn and tensorboard. Without a checkout of HydraGNN
our own figures remain.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from model_race.course import Course, Settings
from model_race.networks import MODES, TARGETS, Mode, cases
from model_race.report import Row, table, write_json
from results.machine import machine
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

QUICK = Settings(rounds=1, seconds=0.01, batches=2)


def main(
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Message-passing types to measure, of {', '.join(TARGETS)}."),
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="A graph and a node head, or a potential's forces; or both.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="CPU time of a turn.", min=0.01)] = 1.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A step or two of each, to see that it runs.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Race the networks and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(TARGETS):
        raise typer.BadParameter(f"no type {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    torch.set_num_threads(1)
    settings = QUICK if quick else Settings(rounds, seconds)
    rows, left_out = measure(
        only or list(TARGETS), [mode] if mode else list(MODES), settings, hydragnn
    )

    # As wide as the table: what is written to a file is Markdown.
    console = Console(width=180)
    for name in MODES:
        if of_mode := [row for row in rows if row.case.mode == name]:
            console.print(f"\n{name}: graphs per CPU-second, MB of memory, ours before HydraGNN's")
            console.print(table(of_mode))
    for remark in left_out:
        console.print(f"not measured: {remark}")
    if hydragnn is None:
        console.print("not measured: ratios to HydraGNN, whose checkout --hydragnn would name")
    missed = [
        f"{row.case.mpnn_type}, {row.case.mode} ({', '.join(row.missed)})"
        for row in rows
        if row.missed
    ]
    console.print(f"targets missed: {'; '.join(missed) or 'none'}")
    if quick:
        console.print("too little was measured to judge by: leave out --quick")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))
    if json is not None:
        write_json(json, asdict(settings), rows, left_out)


def measure(
    types: list[str], modes: list[Mode], settings: Settings, hydragnn: Path | None
) -> tuple[list[Row], list[str]]:
    """Measure every case; also say what could not be measured."""
    columns = (
        BarColumn(),
        TextColumn("{task.fields[case]}: {task.description}"),
        TimeElapsedColumn(),
    )
    course = cases(types, modes)
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(course), case="")
        track = Course(
            Path(folder), settings, hydragnn, lambda text: progress.update(bar, description=text)
        )
        for case in course:
            progress.update(bar, case=f"{case.mpnn_type}, {case.mode}")
            rows.append(track.run(case))
            progress.advance(bar)
    return rows, track.left_out


if __name__ == "__main__":
    typer.run(main)
