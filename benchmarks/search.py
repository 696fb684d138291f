"""How fast our search is, beside Optuna's and DeepHyper's.

    python benchmarks/search.py --deephyper PYTHON-THAT-HAS-DEEPHYPER

Speeds are of CPU time, one thread, the contenders taking turns. DeepHyper 0.13 has requirements of
its own and lives in an environment of its own; without it the other comparisons remain. How well
our search searches is `benchmarks/search_quality.py`'s to say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import optuna
import torch
import typer
from results import Line, Run, missed, table_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from search_race import campaign, idle, journals, latency
from search_race.engines import deephyper_version
from search_race.latency import Latency

ROWS = ("latency", "storage", "driver", "idle")
MEASURES = [
    "benchmarks/search.py",
    *(f"benchmarks/search_race/{name}.py" for name in ("campaign", "histories", "idle")),
    *(f"benchmarks/search_race/{name}.py" for name in ("journals", "latency")),
    "benchmarks/deephyper_peer",
    "hydragnn_flow/search",
    "hydragnn_flow/campaign",
]


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    finished: tuple[int, ...] = (1_000, 5_000, 20_000, 100_000)
    """Numbers of finished trials of which the latency is measured."""
    running: int = 8_000
    deephyper: tuple[int, ...] = (100, 5_000, 20_000)
    rounds: int = 5
    stored: int = 20_000
    """Trials of the search that is kept on disk and opened."""
    trials: int = 5_000
    """Of the simulated campaign."""
    gcds: int = 1024


QUICK = Settings((200, 400), 256, (20, 40), 1, 320, 16, 64)


@dataclass
class Found:
    """What has been measured."""

    lines: list[Line] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    idle: list[idle.Idle] = field(default_factory=list)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each contender.", min=1)] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it runs.")
    ] = False,
    scratch: Annotated[Path, typer.Option(help="Directory on the disk to measure.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure the search and print tables; the exit status is 0 whatever they say."""
    if unknown := set(only or []) - set(ROWS):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings = QUICK if quick else Settings(rounds=rounds)
    run = Run("search", MEASURES, ["optuna", "numpy", "scipy", "torch"], quick=quick)
    found = measure(only or list(ROWS), settings, deephyper, scratch)
    tables = [table_of(found.lines, "speed")] if found.lines else []
    if found.idle:
        tables.append(idle.table(found.idle))
    remarks = [missed([*found.lines, *(line for row in found.idle for line in row.lines())])]
    if deephyper is None:
        remarks.append("not measured: DeepHyper, whose interpreter --deephyper would name")
    result = run.end(
        tables,
        remarks=remarks,
        peers={} if deephyper is None else {"deephyper": deephyper_version(deephyper)},
        settings=asdict(settings),
        details={
            "lines": [asdict(line) for line in found.lines],
            "latencies": [asdict(one) for one in found.latencies],
            "idle": [asdict(row) for row in found.idle],
        },
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(rows: list[str], settings: Settings, deephyper: Path | None, scratch: Path) -> Found:
    """Measure rows."""
    found = Found()
    scratch.mkdir(parents=True, exist_ok=True)
    columns = BarColumn(), TextColumn("{task.fields[row]}: {task.description}"), TimeElapsedColumn()
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("", total=len(rows), row="")

        def say(text: str) -> None:
            progress.update(bar, description=text)

        for row in [name for name in ROWS if name in rows]:
            progress.update(bar, row=row)
            if row in ("latency", "idle") and not found.latencies:
                found.latencies = _latencies(settings, deephyper, say)
            if row == "latency":
                found.lines += latency.lines(found.latencies)
            elif row == "storage":
                found.lines += journals.lines(
                    Path(folder), settings.stored, 20 * settings.rounds, say
                )
            elif row == "driver":
                found.lines += campaign.lines(Path(folder), settings.trials, settings.gcds, say)
            else:
                driver = [1 / line.value for line in found.lines if line.row == "driver"]
                found.idle = idle.simulate(found.latencies, driver, say)
            progress.advance(bar)
    return found


def _latencies(
    settings: Settings, deephyper: Path | None, say: Callable[[str], None]
) -> list[Latency]:
    found = []
    for finished in settings.finished:
        found += latency.measure(finished, settings.running, settings.rounds, say)
    if deephyper is not None:
        found += [latency.measure_deephyper(n, deephyper, say) for n in settings.deephyper]
    return found


if __name__ == "__main__":
    typer.run(main)
