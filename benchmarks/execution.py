"""Cost of bringing segments to their first step: on warm workers, on many, on new blocks.

    python benchmarks/execution.py --deephyper PYTHON-THAT-HAS-DEEPHYPER --private-slurm
    python benchmarks/execution.py --only start --site SITE.yaml

Workers are real Parsl workers. The first two rows have them on this machine; the third asks a site
for blocks, on which nothing is trained, and with ``--private-slurm``, as root, a Slurm of this
machine's own. Wall times beside peers are left out where other work keeps the machine busy: CPU
times remain. Whole machines are in ``scale.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from execution_race import private_slurm as private_slurm_blocks
from execution_race import start, throughput, warm
from execution_race.start import Stages
from results import Line, Run, missed, table_of
from results.machine import load
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from search_race.engines import deephyper_version

from hydragnn_flow.execution import load_site

ROWS = ("warm", "throughput", "start")
# Load for each core, of others, up to which wall times mean something.
_QUIET = 0.5
_HERE = str(Path(__file__).resolve().parent)


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
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    site: Annotated[
        str, typer.Option(help="Site whose blocks are started: a name, a .py or .yaml file.")
    ] = "local",
    private_slurm: Annotated[
        bool, typer.Option("--private-slurm", help="Start blocks on a Slurm of its own as well.")
    ] = False,
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
    found = measure(only or list(ROWS), settings, deephyper, site, private_slurm, scratch)
    tables = [table_of(found.lines)] if found.lines else []
    tables += [start.table(found.starts)] if found.starts else []
    result = run.end(
        tables,
        remarks=[missed(found.lines), *(f"not measured: {what}" for what in found.left_out)],
        peers={} if deephyper is None else {"DeepHyper": deephyper_version(deephyper)},
        settings=asdict(settings),
        details={
            "lines": [asdict(line) for line in found.lines],
            "starts": {name: list(map(asdict, stages)) for name, stages in found.starts.items()},
        },
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


@dataclass
class Found:
    """What has been measured."""

    lines: list[Line] = field(default_factory=list)
    starts: dict[str, list[Stages]] = field(default_factory=dict)
    """By site."""
    left_out: list[str] = field(default_factory=list)


def measure(
    rows: list[str],
    settings: Settings,
    deephyper: Path | None,
    site: str,
    slurm: bool,
    scratch: Path,
) -> Found:
    """Measure rows; also say what could not be measured."""
    # Workers import what they run.
    os.environ["PYTHONPATH"] = os.pathsep.join([_HERE, *_pythonpath()])
    scratch.mkdir(parents=True, exist_ok=True)
    found = Found()
    quiet = load() <= _QUIET * len(os.sched_getaffinity(0))
    if not quiet and "warm" in rows:
        found.left_out.append(
            f"wall times beside peers: other work kept the machine busy (a load of {load():g})"
        )
    if deephyper is None and "warm" in rows:
        found.left_out.append("DeepHyper, of whose interpreter --deephyper would give the path")
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
                found.lines += warm.lines(folder, settings.turns, deephyper, quiet, say)
            elif row == "throughput":
                found.lines += throughput.lines(
                    folder, settings.workers, settings.trials, settings.rounds, say
                )
            else:
                chosen = load_site(site)
                found.starts[chosen.name] = start.measure(folder, chosen, settings.starts, say)
                if slurm:
                    _on_private_slurm(folder.with_name("slurm"), settings.starts, found, say)
            progress.advance(bar)
    return found


def _on_private_slurm(folder: Path, starts: int, found: Found, say: Callable[[str], None]) -> None:
    say(f"{starts} blocks, a private Slurm")
    try:
        found.starts["a private Slurm"] = private_slurm_blocks.measure(folder, starts)
    except private_slurm_blocks.CannotRun as error:
        found.left_out.append(str(error))


def _pythonpath() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [given] if given else []


if __name__ == "__main__":
    typer.run(main)
