"""How fast our search is and how well it searches, beside Optuna's and DeepHyper's.

    python benchmarks/search.py --deephyper PYTHON-THAT-HAS-DEEPHYPER
    python benchmarks/search.py --only quality --engine tpe --setting 64:384

Speeds are of CPU time, one thread, the contenders taking turns. Quality takes hours, most of them
in Optuna's Gaussian process and in DeepHyper: its searches are kept in a file, and those found
there, of the same code, are not done again. DeepHyper 0.13 has requirements of its own and lives in
an environment of its own; without it the other comparisons remain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import optuna
import torch
import typer
from results import Line, missed, table_of
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from search_race import campaign, journals, latency, report
from search_race.engines import ENGINES, deephyper_version
from search_race.idle import cost, idle_fractions
from search_race.latency import Latency
from search_race.quality import QUICK_SETTING, SETTINGS, Result, Results, Setting
from search_race.report import Idle

ROWS = ("latency", "storage", "driver", "idle", "quality")


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
    seeds: int = 10


QUICK = Settings((200, 400), 256, (20, 40), 1, 320, 40, 64, 1)


@dataclass
class Found:
    """What has been measured."""

    lines: list[Line] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Rows to measure, of {', '.join(ROWS)}.")
    ] = None,
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help=f"Engines whose missing searches are done, of {', '.join(ENGINES)}."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help=f"IN-FLIGHT:EVALUATIONS of the searches, of {', '.join(SETTINGS)}."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Searches of each function and engine.", min=1)] = 10,
    results: Annotated[
        Path, typer.Option(help="Searches that have been done, one a line; new ones are added.")
    ] = Path("runs/benchmark-search.jsonl"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it runs.")
    ] = False,
    scratch: Annotated[Path, typer.Option(help="Directory on the disk to measure.")] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Measure the search and print tables; the exit status is 0 whatever they say."""
    _check("row", only, ROWS)
    _check("engine", engine, ENGINES)
    _check("setting", setting, SETTINGS)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings = QUICK if quick else Settings(seeds=seeds)
    known = {QUICK_SETTING.name: QUICK_SETTING} if quick else SETTINGS
    chosen = [known[name] for name in (setting if setting and not quick else known)]
    engines = engine or [name for name in ENGINES if name != "deephyper" or deephyper]
    found = measure(only or list(ROWS), settings, chosen, engines, deephyper, results, scratch)
    _print(found, chosen)
    if quick:
        print("too little was measured to judge by: leave out --quick")
    about = report.about()
    if deephyper is not None:
        about["deephyper"] = deephyper_version(deephyper)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if json is not None:
        report.write_json(
            json,
            lines=report.plain(found.lines),
            latencies=report.plain(found.latencies),
            idle=report.plain(found.idle),
            standings=report.plain(report.standings(found.results, chosen)),
            verdicts=report.plain(report.verdicts(found.results, chosen)),
            left_out=found.left_out,
        )


def measure(
    rows: list[str],
    settings: Settings,
    quality: list[Setting],
    engines: list[str],
    deephyper: Path | None,
    results: Path,
    scratch: Path,
) -> Found:
    """Measure rows; also say what could not be measured."""
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
                found.lines += report.latency_lines(found.latencies)
            elif row == "storage":
                found.lines += journals.lines(
                    Path(folder), settings.stored, 20 * settings.rounds, say
                )
            elif row == "driver":
                found.lines += campaign.lines(Path(folder), settings.trials, settings.gcds, say)
            elif row == "idle":
                found.idle = _idle(found, say)
            else:
                kept = Results(results, deephyper)
                kept.run(quality, engines, settings.seeds, say)
                found.results = kept.read()
            progress.advance(bar)
    if deephyper is None:
        found.left_out.append("DeepHyper, of whose interpreter --deephyper would give the path")
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


def _idle(found: Found, say: Callable[[str], None]) -> list[Idle]:
    """Simulate the engines whose latencies were measured; ours with the rest of the driver's work.

    That work is what the simulated campaign needed, all of it, where the row `driver` was measured
    too: once as it is with few networks, once with every trial's network new. Of the peers only
    asking and telling counts.
    """
    driver = [1 / line.value for line in found.lines if line.row == "driver"]
    rows = []
    for engine in dict.fromkeys(one.engine for one in found.latencies):
        say(f"a campaign by {engine}")
        points = {
            one.finished: one.milliseconds / 1e3 for one in found.latencies if one.engine == engine
        }
        shown = {engine: 0.0}
        if engine == "batched_tpe" and driver:
            shown = {engine: driver[0], f"{engine}, every network new": driver[-1]}
        for name, more in shown.items():
            whole = {finished: seconds + more for finished, seconds in points.items()}
            rows.append(Idle(name, tuple(idle_fractions(cost(whole)))))
    return rows


def _print(found: Found, quality: list[Setting]) -> None:
    # As wide as the tables: what is written to a file is Markdown.
    console = Console(width=190)
    verdicts = report.verdicts(found.results, quality)
    if found.lines:
        print(table_of(found.lines).markdown())
    if found.idle:
        console.print("\n8,192 GCDs, one driver, lognormal trials of median 600 s, sigma 1")
        console.print(report.idle_table(found.idle))
    if found.results:
        console.print("\nmean regret at the end ± standard error, in units of random search's")
        console.print(report.quality_table(report.standings(found.results, quality)))
        if verdicts:
            console.print("\nours less the peer's, on the seeds that both have")
            console.print(report.verdict_table(verdicts))
    for remark in found.left_out:
        console.print(f"not measured: {remark}")
    print(missed(found.lines))
    others = [f"idle, {row.engine}" for row in found.idle if row.met is False]
    others += [
        f"quality {verdict.setting}, {verdict.peer}" for verdict in verdicts if not verdict.met
    ]
    print(f"of idle time and quality: {'; '.join(others) or 'none'}")


def _check(what: str, given: list[str] | None, known: Iterable[str]) -> None:
    if unknown := set(given or []) - set(known):
        raise typer.BadParameter(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")


if __name__ == "__main__":
    typer.run(main)
