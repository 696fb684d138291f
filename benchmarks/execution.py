"""What it costs to bring segments to their first step: on warm workers, on many, on new blocks.

    python benchmarks/execution.py
    python benchmarks/execution.py --only start --site SITE.yaml

Workers are real Parsl workers. The first two rows have them on this machine; the last asks a site
for blocks, on which nothing is trained.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from execution_race import start, throughput, warm
from results import Line, Run, missed, table_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hydragnn_flow.execution import load_site

ROWS = ("warm", "throughput", "start")


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    turns: int = 10
    """Of warm segments and new processes."""
    workers: int = 64
    trials: int = 2_000
    """Of each campaign."""
    rounds: int = 3
    """Campaigns of each kind."""
    starts: int = 5
    """Blocks."""


MEASURES = [
    "benchmarks/execution.py",
    "benchmarks/execution_race",
    "hydragnn_flow/campaign",
    "hydragnn_flow/execution",
    "hydragnn_flow/training/runner.py",
]
QUICK = Settings(1, 2, 12, 1, 1)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    site: Annotated[
        str, typer.Option(help="Site whose blocks are started: a name, a .py or .yaml file.")
    ] = "local",
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it runs.")
    ] = False,
    scratch: Annotated[Path, typer.Option(help="Directory for run directories.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print a table; the exit status is 0 whatever it says."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    settings = QUICK if quick else Settings()
    run = Run("execution", MEASURES, ["parsl", "torch", "torch-geometric"], quick=quick)
    lines = measure(only or list(ROWS), settings, site, scratch)
    result = run.end(
        [table_of(lines)],
        remarks=[missed(lines)],
        settings=asdict(settings),
        details=[asdict(line) for line in lines],
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(rows: list[str], settings: Settings, site: str, scratch: Path) -> list[Line]:
    """The lines of the table."""
    # Workers import what they run.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    scratch.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    columns = BarColumn(), TextColumn("{task.fields[row]}: {task.description}"), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory(dir=scratch) as temporary,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(rows), row="")

        def say(text: str) -> None:
            progress.update(bar, description=text)

        for row in [name for name in ROWS if name in rows]:
            progress.update(bar, row=row)
            folder = Path(temporary).resolve() / row
            if row == "warm":
                lines += warm.lines(folder, settings.turns, say)
            elif row == "throughput":
                lines += throughput.lines(
                    folder, settings.workers, settings.trials, settings.rounds, say
                )
            else:
                lines += start.lines(folder, load_site(site), settings.starts, say)
            progress.advance(bar)
    return lines


if __name__ == "__main__":
    typer.run(main)
