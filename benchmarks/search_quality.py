"""Quality of our search beside Optuna's and DeepHyper's, on a simulated clock.

    python benchmarks/search_quality.py --deephyper PYTHON-THAT-HAS-DEEPHYPER
    python benchmarks/search_quality.py --engine auto --setting 4:60 --seeds 3

The functions are tables of recorded trainings and Hartmann's (`search_race/functions.py`). So many
trials run side by side, and each lasts as long as its training did, or a time drawn by its
number, so every engine sees results arrive in the same rhythm. In settings that end in `:rungs`,
engines also judge trials at their rungs, and every search has the epochs of so many whole
trainings. *Regret* is the true loss of the best complete trial, as observed, over the best there
is; random search's is 1, in whole trainings. In settings that end in `:front`, loss and time are
minimised, and regret is the hypervolume, in logarithms, that 10,000 random trainings have more.
One engine is ahead of another beyond two standard errors over functions. Nothing is timed, so
other work may run beside.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import numpy as np
import optuna
import torch
import typer
from results import Cell, Run, Table, say, standard_error, verdict
from scipy.stats import spearmanr
from search_race.engines import (
    ENGINES,
    FRONT_ENGINES,
    RUNG_ENGINES,
    WHOLE,
    Clock,
    deephyper_version,
    make_engine,
)
from search_race.functions import FUNCTIONS, Function, dominated, load

from hydragnn_flow.config.domain import satisfying
from hydragnn_flow.config.search import SearchConfig

Regrets = dict[tuple[str, str, str], list[tuple[float, float]]]
"""Setting, engine, function → regrets half-way and at the end, seed by seed."""
_TARGETS = {"": 0.9, "rungs": 0.85, "front": 1.0}
"""Targets by the kind of setting."""
TITLES = {
    "": "Mean regret at the end, random search 1",
    "rungs": "Mean regret with rungs at equal epochs, random search of whole trainings 1",
    "front": "Mean regret of hypervolume (loss, time), random search 1",
}
"""Kind of setting → title of the table."""


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
    kind: str = ""
    """``rungs``: trials are judged at their rungs; ``front``: their time is an objective too."""

    @property
    def name(self) -> str:
        return f"{self.in_flight}:{self.evaluations}" + f":{self.kind}" * bool(self.kind)

    @property
    def engines(self) -> dict[str, str]:
        """Engine → what it is."""
        return {"": ENGINES, "rungs": RUNG_ENGINES, "front": FRONT_ENGINES}[self.kind]


SETTINGS = {
    one.name: one
    for one in (
        Setting(4, 60, 60.0, 10, 1),
        Setting(32, 96, 600.0, 10, 1),
        Setting(256, 512, 600.0, 2, 0),
        Setting(4, 60, 60.0, 10, 10, "rungs"),
        Setting(32, 96, 600.0, 10, 10, "rungs"),
        Setting(256, 512, 600.0, 2, 0, "rungs"),
        Setting(4, 60, 60.0, 5, 1, "front"),
        Setting(32, 96, 600.0, 5, 0, "front"),
    )
}
QUICK = {one.name: one for one in (Setting(4, 16, 60.0, 1, 0, kind) for kind in TITLES)}
_ALL, _SLOW = ENGINES | RUNG_ENGINES | FRONT_ENGINES, ("gp", "deephyper")


def search(
    function: Function, name: str, setting: Setting, seed: int, deephyper: Path | None
) -> tuple[float, float]:
    """Regrets of a search half-way and at its end, on slots that always have a trial."""
    clock, drawn = Clock(), np.random.default_rng([seed, 1]).lognormal(size=setting.evaluations)
    first = len(function.epochs) - 1
    if setting.kind == "rungs" and name not in WHOLE:
        ours = SearchConfig(trials=1, space=function.space).rung_epochs(function.epochs[-1])
        first = function.epochs.index(ours[0])
    epochs = function.epochs[first:]
    steps = np.diff(epochs, prepend=0)
    budget, spent, begun = setting.evaluations * epochs[-1], 0, 0
    running: list[tuple[float, int, int, int]] = []
    params: list[dict[str, object]] = []
    best = regret = half = math.inf
    front, points = setting.kind == "front", list[tuple[float, float]]()
    given = epochs, setting.evaluations, seed, deephyper, clock, 1 + front
    engine = make_engine(name, function, *given)
    with closing(engine):

        def start(number: int, key: int, rung: int) -> None:
            nonlocal begun
            given = params[number]
            length = drawn[number] if function.length is None else function.length(given)
            seconds = setting.seconds * length * steps[rung] / epochs[-1]
            heapq.heappush(running, (clock.now + seconds, number, key, rung))
            begun += steps[rung]

        def ask(count: int) -> None:
            for key, asked in engine.ask(count):
                params.append(asked)
                start(len(params) - 1, key, 0)

        ask(min(setting.in_flight, setting.evaluations))
        while running and spent < budget:
            end, number, key, rung = heapq.heappop(running)
            clock.now = max(clock.now, end)  # the driver may have been busy for longer
            spent += steps[rung]
            told = [float(function.observed(params[number], seed, number)[first + rung])]
            if front:
                points.append(function.both(params[number]))
                told.append(points[-1][1])
                corner, area = function.front
                regret = area - dominated(points, corner)
            elif rung == len(epochs) - 1 and told[0] < best:
                best = told[0]
                regret = max(function.losses(params[number])[-1] - function.best, 0.0)
            half = regret if spent <= budget / 2 else half
            if engine.report(key, epochs[rung], *told):
                start(number, key, rung + 1)
            elif begun < budget:
                ask(1)
    return half, regret


def told_by_rungs(functions: Sequence[Function], part: int) -> str:
    """Sentence: how far losses after a part of the epochs rank those at the end."""
    all_of, best_of = [], []
    for function in functions:
        drawn = [function.losses(params) for params in satisfying(function.space, (), {})]
        rung = function.epochs.index(function.epochs[-1] // part)
        now, end = np.array(drawn)[:, [rung, -1]].T
        best = end < np.quantile(end, 0.1)
        all_of.append(spearmanr(now, end).statistic)
        best_of.append(spearmanr(now[best], end[best]).statistic)
    ranges = (f"{min(of):.2f} to {max(of):.2f}" for of in (all_of, best_of))
    words = f"rank correlation of losses after 1/{part} of the epochs and at the end"
    return words + ": {}; of the best tenth {}".format(*ranges)


def relative(
    found: Regrets, setting: str, engine: str, other: str, when: int = -1
) -> dict[str, float]:
    """Function → mean regret over random search's, on the seeds that another engine has too."""
    means = {}
    for (of, name, function), regrets in found.items():
        theirs = found.get((setting, other, function), [])
        seeds = min(len(regrets), len(theirs))
        if (of, name) == (setting, engine) and seeds:
            scale = mean(one[when] for one in found[setting, "random", function])
            means[function] = mean(one[when] for one in regrets[:seeds]) / scale
    return means


def table(found: Regrets, settings: Sequence[Setting], title: str, *, half: bool) -> Table:
    """Mean regret of every engine in every setting, over all functions."""
    moments = {"": -1, ", half-way": 0} if half else {"": -1}
    rows: list[list[Cell]] = []
    for engine, what in settings[0].engines.items():
        cells: list[Cell] = []
        for setting in settings:
            for when in moments.values():
                values = [*relative(found, setting.name, engine, engine, when).values()]
                cells.append(mean(values) if values else None)
        if engine != "random" and any(cell is not None for cell in cells):
            rows.append([f"`{engine}`: {what}", *cells])
    columns = [setting.name + words for setting in settings for words in moments]
    return Table(["engine", *columns], rows, "rungs" if half else "end", title)


def verdicts(found: Regrets, settings: Sequence[Setting], target: float) -> list[str]:
    """Sentence: `auto` beside the best peer of each setting."""
    said = []
    for setting in settings:
        ratios = {}
        for peer in setting.engines.keys() - {"auto", "batched_tpe", "random"}:
            ours, theirs = _pair(found, setting.name, peer)
            if len(ours) > 1 and max(theirs) > 0:
                apart = [one - other for one, other in zip(ours, theirs, strict=True)]
                error = standard_error(apart)
                ratios[peer] = mean(ours) / mean(theirs), verdict(mean(apart), error)
        if ratios:
            best = max(ratios, key=lambda peer: ratios[peer][0])
            ratio, which = ratios[best]
            missed = ", MISSED" if ratio > target else ""
            said.append(f"{setting.name} {ratio:.2f} (`{best}`, {which}{missed})")
    beside = f"`auto` over the best peer, target ≤ {target:g}"
    return [f"{beside}: {', '.join(said)}"] if said else []


def _pair(found: Regrets, setting: str, peer: str) -> tuple[list[float], list[float]]:
    """Relative regrets of `auto` and a peer, on the functions and seeds that both have."""
    ours = relative(found, setting, "auto", peer)
    theirs = relative(found, setting, peer, "auto")
    both = [name for name in ours if name in theirs]
    return [ours[name] for name in both], [theirs[name] for name in both]


def main(
    deephyper: Annotated[
        Path | None, typer.Option(help="Python interpreter that has DeepHyper.", exists=True)
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help=f"Engines beside random, of {', '.join(_ALL)}.")
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
    for one in chosen:
        for function in map(load, FUNCTIONS[bool(one.kind)][development]):
            for name in one.engines:
                if name == "deephyper" and deephyper is None:
                    continue
                if name != "random" and name not in (engine or one.engines):
                    continue
                say(f"{one.name}, {function.name}, {name}")
                for seed in range(seeds or (one.slow_seeds if name in _SLOW else one.seeds)):
                    regrets = search(function, name, one, seed, deephyper)
                    found[one.name, name, function.name].append(regrets)
    tables, remarks = [], []
    for kind, title in TITLES.items():
        some = [one for one in chosen if one.kind == kind]
        if some:
            tables.append(table(found, some, title, half=kind != ""))
            remarks += verdicts(found, some, _TARGETS[kind])
        if some and kind == "rungs":
            functions = [*map(load, FUNCTIONS[True][development])]
            remarks += [told_by_rungs(functions, part) for part in (9, 3)]
    run.end(
        tables,
        json,
        remarks=remarks,
        peers=deephyper_version(deephyper),
        details={" ".join(key): regrets for key, regrets in found.items()},
    )


if __name__ == "__main__":
    typer.run(main)
