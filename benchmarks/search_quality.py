"""How well our search searches, beside Optuna's and DeepHyper's, on a simulated clock.

    python benchmarks/search_quality.py --deephyper PYTHON-THAT-HAS-DEEPHYPER
    python benchmarks/search_quality.py --engine auto --setting 4:60 --seeds 0-2

Searches take hours, most of them in Optuna's Gaussian process and in DeepHyper. Each that is done
is a line of a file, and those found there, of the same code, are not done again: several processes
may share the file. Nothing is timed, so other work may run beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import optuna
import torch
import typer
from results import Run
from rich.console import Console
from search_race import report
from search_race.development import DEVELOPMENT
from search_race.engines import ENGINES, deephyper_version
from search_race.held_out import HELD_OUT
from search_race.quality import QUICK_SETTING, SETTINGS, Results

MEASURES = [
    "benchmarks/search_quality.py",
    "benchmarks/search_race",
    "benchmarks/deephyper_peer",
    "hydragnn_flow/search/samplers",
    "hydragnn_flow/search/rules",
]
_KEPT = Path(__file__).parent / "search_race" / "searches.jsonl"


def main(
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
    function: Annotated[list[str] | None, typer.Option(help="Functions searched.")] = None,
    development: Annotated[
        bool, typer.Option("--development", help="The functions that samplers are tuned on.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(help="The first and the last; each setting has its own number.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Searches that have been done; new ones are added.")
    ] = _KEPT,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, to see that it runs.")
    ] = False,
    only_report: Annotated[
        bool, typer.Option("--report", help="Do no searches; report on those that are done.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Search and print tables; the exit status is 0 whatever they say."""
    functions = DEVELOPMENT if development else HELD_OUT
    _check("engine", engine, ENGINES)
    _check("setting", setting, SETTINGS)
    _check("function", function, functions)
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = {QUICK_SETTING.name: QUICK_SETTING} if quick else SETTINGS
    chosen = [known[name] for name in (setting if setting and not quick else known)]
    packages = ["optuna", "numpy", "scipy", "torch"]
    run = Run("search_quality", MEASURES, packages, quick=quick)
    kept = Results(results, deephyper, functions)
    if not only_report:
        console = Console(stderr=True)
        with console.status("") as status:
            kept.run(
                chosen,
                engine or [name for name in ENGINES if deephyper or name[:9] != "deephyper"],
                function or list(functions),
                None if seeds is None else _range(seeds),
                status.update,
            )
    found = kept.read()
    told = report.Report(found, list(functions), chosen)
    result = run.end(
        [
            report.summary(told, chosen, "end"),
            report.summary(told, chosen, "half"),
            report.compared(told.differences()),
            *(report.by_function(told, one, list(functions)) for one in chosen),
        ],
        remarks=report.verdicts(told, chosen),
        peers={} if deephyper is None else {"deephyper": deephyper_version(deephyper)},
        details={
            "standings": [asdict(one) for one in told.standings()],
            "searches": len(found),
        },
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def _range(seeds: str) -> range:
    first, _, last = seeds.partition("-")
    return range(int(first), int(last or first) + 1)


def _check(what: str, given: list[str] | None, known: Iterable[str]) -> None:
    if unknown := set(given or []) - set(known):
        raise typer.BadParameter(f"no {what} {', '.join(unknown)}; there are {', '.join(known)}")


if __name__ == "__main__":
    typer.run(main)
