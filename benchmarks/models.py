"""How fast our networks train, beside HydraGNN's.

    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT --only PAINN --mode potential

Both sides get the same JSON and the same batches, in memory, and take turns in one process with
one thread: the ratio is of graphs per CPU-second. A training step is loss, gradient and update:
HydraGNN's by its own ``train``, called once for all steps of a turn, ours as the Trainer takes it,
with clipping of the gradient, averaging of the weights and looks at the loss. HydraGNN is spared
the DDP in which its examples put a model for one process too, and the neighbour search of its
SchNet. Memory is the resident memory that building a network and two training steps add at their
highest, each side in a process of its own.

The mode `attention` is a potential of clusters with HydraGNN's EquivariantTransformer, of one head.

Without a checkout of HydraGNN our own figures remain; `benchmarks/README.md` says how to get one.
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
from model_race.report import Row, remarks, tables
from results import Run
from results.code import commit_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

QUICK = Settings(rounds=1, seconds=0.01, batches=2)
MEASURES = [
    "benchmarks/models.py",
    "benchmarks/graph_store/race.py",
    "benchmarks/model_race",
    "benchmarks/peers/hydragnn_model.py",
    "benchmarks/peers/hydragnn_package.py",
    "hydragnn_flow/models",
    "hydragnn_flow/training/averaging.py",
    "hydragnn_flow/training/losses.py",
    "hydragnn_flow/training/optimizers.py",
    "hydragnn_flow/training/terms.py",
    "hydragnn_flow/training/trainer.py",
]


def main(
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Message-passing types to measure, of {', '.join(TARGETS)}."),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="Heads, a potential's forces, or those with attention; or all."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each side.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="CPU time of a turn.", min=0.01)] = 1.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A step or two of each, to see that it runs.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Race the networks and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(TARGETS):
        raise typer.BadParameter(f"no type {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    torch.set_num_threads(1)
    settings = QUICK if quick else Settings(rounds, seconds)
    run = Run("models", MEASURES, ["numpy", "torch", "torch-geometric"], quick=quick)
    rows, left_out = measure(
        only or list(TARGETS), [mode] if mode else list(MODES), settings, hydragnn
    )
    if hydragnn is None:
        left_out.append("ratios to HydraGNN, whose checkout --hydragnn would name")
    result = run.end(
        tables(rows),
        remarks=remarks(rows, left_out),
        peers={} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"},
        settings=asdict(settings),
        details=[asdict(row) for row in rows],
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


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
