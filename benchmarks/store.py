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
from graph_store.report import Line, machine, table, write_json
from graph_store.workspace import Settings, Workspace
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
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Measure the GraphStore and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    settings = QUICK if quick else Settings(graphs, rounds, seconds)
    lines, left_out = measure(only or list(ROWS), settings, hydragnn, scratch)

    # As wide as the table: what is written to a file is Markdown.
    console = Console(width=160)
    console.print(table(lines))
    for remark in left_out:
        console.print(f"not measured: {remark}")
    if hydragnn is None:
        console.print("not measured: ratios to HydraGNN, whose checkout --hydragnn would name")
    missed = [f"{line.what}, {line.peer}" for line in lines if line.met is False]
    console.print(f"targets missed: {'; '.join(missed) or 'none'}")
    if quick:
        console.print("too little was measured to judge by: leave out --quick")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))
    if json is not None:
        write_json(json, asdict(settings), lines, left_out)


def measure(
    rows: list[str], settings: Settings, hydragnn: Path | None, scratch: Path
) -> tuple[list[Line], list[str]]:
    """Measure rows; also say what could not be measured."""
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
    return lines, work.left_out


if __name__ == "__main__":
    typer.run(main)
