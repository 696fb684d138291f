"""How fast and how lean the GraphStore is, beside HydraGNN's reader, other stores and the limit.

    python benchmarks/store.py --hydragnn PATH-OF-A-CHECKOUT

Every ratio is of two speeds measured in turns in this run, with a warm page cache and one thread,
per CPU-second of the process. Without a checkout of HydraGNN the other comparisons remain.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from graph_store import footprint, throughput
from graph_store.footprint import CannotMeasure
from graph_store.workspace import Settings, Workspace
from peers.memmap import Memmap
from results import Line, Run, behind, missed, table_of
from results.code import commit_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

ROWS = {
    "memory": throughput.memory,
    "random": throughput.random,
    "stream": throughput.stream,
    "cold": footprint.cold,
    "write": footprint.write,
    "pss": footprint.pss,
    "open": footprint.opening,
}
MEASURES = [
    "benchmarks/store.py",
    "benchmarks/graph_store",
    "benchmarks/peers",
    "hydragnn_flow/data/store",
    "hydragnn_flow/data/reading",
]
QUICK = Settings(graphs=500, rounds=2, seconds=0.05, large=1600, tiny=20_000)


def main(
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    graphs: Annotated[
        int, typer.Option(help="Graphs read in batches.", min=128, max=100_000)
    ] = 10_000,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="CPU time of a turn.")] = 0.5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it runs.")
    ] = False,
    scratch: Annotated[
        Path, typer.Option(help="Directory on the disk to measure; takes 4 GB meanwhile.")
    ] = Path("runs/benchmark-store"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure the GraphStore and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    settings = QUICK if quick else Settings(graphs, rounds, seconds)
    run = Run("store", MEASURES, ["adios2", "numpy", "torch", "torch-geometric"], quick=quick)
    lines, work = measure(only or list(ROWS), settings, hydragnn, scratch)
    if hydragnn is None:
        work.left_out.append("ratios to HydraGNN, whose checkout --hydragnn would name")
    result = run.end(
        [table_of(lines)],
        remarks=[
            missed(lines),
            behind(lines, [Memmap.name]),
            *(f"not measured: {what}" for what in work.left_out),
        ],
        peers={} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"},
        settings=asdict(settings),
        details={"lines": [asdict(line) for line in lines], "graphs/CPU-s": work.rates},
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(
    rows: list[str], settings: Settings, hydragnn: Path | None, scratch: Path
) -> tuple[list[Line], Workspace]:
    """Measure rows; the workspace knows the figures of each turn and what could not be measured."""
    scratch.mkdir(parents=True, exist_ok=True)
    columns = BarColumn(), TextColumn("{task.fields[row]}: {task.description}"), TimeElapsedColumn()
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(rows), row="")

        def say(text: str) -> None:
            progress.update(bar, description=text)

        work = Workspace(Path(folder), scratch, settings, hydragnn, say)
        for row in rows:
            progress.update(bar, row=row)
            try:
                lines += ROWS[row](work)
            except CannotMeasure as error:
                work.left_out.append(f"{row}: {error}")
            progress.advance(bar)
    return lines, work


if __name__ == "__main__":
    typer.run(main)
