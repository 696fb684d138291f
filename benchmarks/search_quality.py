"""Quality of our search beside Optuna's and DeepHyper's, on a simulated clock.

    python benchmarks/search_quality.py --deephyper PYTHON-THAT-HAS-DEEPHYPER
    python benchmarks/search_quality.py --engine auto --setting 4:60 --seeds 3

The functions are tables of recorded trainings and Hartmann's (`search_race/functions.py`). So many
trials run side by side, and each lasts as long as its training did, or a time drawn by its
number, so every engine sees results arrive in the same rhythm. *Regret* is the true loss of the
best observed configuration over the best there is; random search's is 1. One engine is ahead of
another beyond two standard errors over functions. Nothing is timed, so other work may run beside.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated

import numpy as np
import optuna
import torch
import typer
from results import Cell, Run, Table, say
from search_race.engines import ENGINES, Clock, deephyper_version, make_engine
from search_race.functions import DEVELOPMENT, HELD_OUT, Function, load

Regrets = dict[tuple[str, str, str], list[float]]
"""Setting, engine, function → regrets at the end, seed by seed."""
_TARGET, _AHEAD = 0.9, 2.0


@dataclass(frozen=True)
class Setting:
    """Amount that is evaluated."""

    in_flight: int
    evaluations: int
    seconds: float
    """Median time of a trial [s]."""
    seeds: int
    """Searches of each function by each engine."""
    slow_seeds: int
    """Searches by engines that take a minute of a core or more."""

    @property
    def name(self) -> str:
        return f"{self.in_flight}:{self.evaluations}"


SETTINGS = {
    one.name: one
    for one in (
        Setting(4, 60, 60.0, 10, 1),
        Setting(32, 96, 600.0, 10, 1),
        Setting(256, 512, 600.0, 2, 0),
    )
}
QUICK = {"4:16": Setting(4, 16, 60.0, 1, 0)}
_SLOW = ("gp", "deephyper")


def search(
    function: Function, name: str, setting: Setting, seed: int, deephyper: Path | None
) -> float:
    """Regret of a search at its end, on slots that always have a trial."""
    clock, drawn = Clock(), np.random.default_rng([seed, 1]).lognormal(size=setting.evaluations)
    running: list[tuple[float, int, int]] = []
    params: list[dict[str, object]] = []
    best = regret = math.inf
    with closing(make_engine(name, function, seed, deephyper, clock)) as engine:

        def begin(count: int) -> None:
            for key, asked in engine.ask(count):
                number = len(params)
                params.append(asked)
                length = drawn[number] if function.length is None else function.length(asked)
                end = clock.now + setting.seconds * length
                heapq.heappush(running, (end, number, key))

        begin(min(setting.in_flight, setting.evaluations))
        while running:
            end, number, key = heapq.heappop(running)
            clock.now = max(clock.now, end)  # the driver may have been busy for longer
            value = function.observed(params[number], seed, number)
            if value < best:
                best = value
                regret = max(function.value(params[number]) - function.best, 0.0)
            engine.tell(key, value)
            if len(params) < setting.evaluations:
                begin(1)
    return regret


def relative(found: Regrets, setting: str, engine: str, other: str) -> dict[str, float]:
    """Function → mean regret over random search's, on the seeds that another engine has too."""
    means = {}
    for (of, name, function), regrets in found.items():
        theirs = found.get((setting, other, function), [])
        seeds = min(len(regrets), len(theirs))
        if (of, name) == (setting, engine) and seeds:
            means[function] = mean(regrets[:seeds]) / mean(found[setting, "random", function])
    return means


def table(found: Regrets, settings: Sequence[str]) -> Table:
    """Mean regret of every engine in every setting, over all functions."""
    rows: list[list[Cell]] = []
    for engine, what in ENGINES.items():
        cells: list[Cell] = []
        for setting in settings:
            values = [*relative(found, setting, engine, engine).values()]
            cells.append(mean(values) if values else None)
        if engine != "random" and any(cell is not None for cell in cells):
            rows.append([f"`{engine}`: {what}", *cells])
    title = "Mean regret at the end, random search 1"
    return Table(["engine", *settings], rows, "end", title)


def verdicts(found: Regrets, settings: Sequence[str]) -> list[str]:
    """Sentence: `auto` beside the best peer of each setting."""
    said = []
    for setting in settings:
        ratios = {}
        for peer in ("gp", "deephyper", "tpe", "tpe_groups"):
            ours, theirs = _pair(found, setting, peer)
            if len(ours) > 1 and max(theirs) > 0:
                ratios[peer] = mean(ours) / mean(theirs), _verdict(ours, theirs)
        if ratios:
            best = max(ratios, key=lambda peer: ratios[peer][0])
            ratio, verdict = ratios[best]
            missed = ", MISSED" if ratio > _TARGET else ""
            said.append(f"{ratio:.2f} (`{best}`, {verdict}{missed})")
    beside = f"`auto` over the best peer, target ≤ {_TARGET:g}"
    return [f"{beside}: {', '.join(said)}"] if said else []


def _pair(found: Regrets, setting: str, peer: str) -> tuple[list[float], list[float]]:
    """Relative regrets of `auto` and a peer, on the functions and seeds that both have."""
    ours = relative(found, setting, "auto", peer)
    theirs = relative(found, setting, peer, "auto")
    both = [name for name in ours if name in theirs]
    return [ours[name] for name in both], [theirs[name] for name in both]


def _verdict(ours: list[float], theirs: list[float]) -> str:
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    if abs(mean(differences)) <= _AHEAD * _error(differences):
        return "equal"
    return "ahead" if mean(differences) < 0 else "behind"


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean over functions."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def main(
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help=f"Engines beside random, of {', '.join(ENGINES)}.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help=f"IN-FLIGHT:EVALUATIONS, of {', '.join(SETTINGS)}.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Searches of each function.", min=1)] = None,
    development: Annotated[
        bool, typer.Option("--development", help="The functions that samplers are tuned on.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Search and print tables; the exit status is 0 whatever they say."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = QUICK if quick else SETTINGS
    chosen = [known[name] for name in (known if quick else setting or known)]
    run = Run("search_quality", ["optuna", "numpy", "scipy", "torch"], quick=quick or development)
    found: Regrets = defaultdict(list)
    names = [name for name in ENGINES if name in {*(engine or ENGINES), "random"}]
    for function in map(load, DEVELOPMENT if development else HELD_OUT):
        for one in chosen:
            for name in names:
                of_setting = one.slow_seeds if name in _SLOW else one.seeds
                say(f"{one.name}, {function.name}, {name}")
                for seed in range(seeds or of_setting):
                    if name != "deephyper" or deephyper is not None:
                        regret = search(function, name, one, seed, deephyper)
                        found[one.name, name, function.name].append(regret)
    columns = [one.name for one in chosen]
    run.end(
        [table(found, columns)],
        json,
        remarks=verdicts(found, columns),
        peers=deephyper_version(deephyper),
        details={" ".join(key): regrets for key, regrets in found.items()},
    )


if __name__ == "__main__":
    typer.run(main)
