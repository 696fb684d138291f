"""A search and an ensemble on silicon beside HydraGNN's trainings that DeepHyper chooses.

    python benchmarks/peer_search.py --data DIRECTORY-OF-THE-DATA-SETS --hydragnn CHECKOUT \
        --deephyper PYTHON-WITH-DEEPHYPER

Both sides get the same graphs, splits, JSON, space and two cores, one after the other. HydraGNN's
side is 16 trials of 10 epochs, two at a time, each in a process of its own, as its own scripts
search. Ours is ``hydragnn-flow run``: as many trials with as many epochs at most, stopped at rungs,
and an ensemble. All of it is repeated with other seeds. The network is PaiNN, whose width, depth,
rate and batch are searched: HydraGNN's SchNet does not see periodic images, and its EGNN hardly
learns potentials.
"""

from __future__ import annotations

import json as json_file
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
import yaml
from graph_store.workspace import in_fresh_process
from model_accuracy.hydragnn_search import IN_FLIGHT, Trial, search
from model_accuracy.outcome import errors
from model_accuracy.sets import SETS, Contest, network
from peers.hydragnn_package import CannotRun, load
from results import Cell, Line, Run, Table, missed, table_of
from results.code import commit_of
from search_race.engines import deephyper_version

from hydragnn_flow import GraphStore
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.run_directory import RunDirectory

MEASURES = [
    "benchmarks/deephyper_peer",
    *(f"benchmarks/model_accuracy/{name}.py" for name in ("hydragnns", "hydragnn_search")),
    *(f"benchmarks/model_accuracy/{name}.py" for name in ("outcome", "sets")),
    "benchmarks/peer_search.py",
    "benchmarks/peers/hydragnn_package.py",
    "benchmarks/peers/hydragnn_training.py",
    "benchmarks/search_race/engines.py",
    "hydragnn_flow/campaign",
    "hydragnn_flow/data",
    "hydragnn_flow/ensemble",
    "hydragnn_flow/models",
    "hydragnn_flow/search",
    "hydragnn_flow/training",
]
_SET = "Si"
_SPACE: dict[str, dict[str, Any]] = {
    "Architecture.hidden_dim": {"int": [16, 128], "log": True},
    "Architecture.num_conv_layers": {"int": [2, 4]},
    "Training.Optimizer.learning_rate": {"float": [1e-4, 1e-2], "log": True},
    "Training.batch_size": {"choices": [4, 8, 16, 32]},
}
_TRIALS, _EPOCHS = 16, 10
_ENSEMBLE = {"size": 3, "epochs": 15}
_MEAN_OF = 5


@dataclass(frozen=True)
class Reached:
    """What one side reached."""

    what: str
    seconds: float
    """CPU time of the trainings that it takes [s]."""
    test: tuple[float, ...]
    """MAE of the energy [meV/atom] and of the forces [eV/Å]."""


Pair = tuple[float, float]
"""A figure of ours, and the one that it is compared with."""


@dataclass(frozen=True)
class Both:
    """Both sides with one seed."""

    ours: list[Reached]
    our_course: list[tuple[float, float]]
    """CPU time [s] and the least validation error up to then."""
    theirs: list[Reached]
    their_course: list[tuple[float, float]]
    lost: int
    """Trials of HydraGNN without a finite loss."""


def main(
    data: Annotated[Path, typer.Option(help="Directory of mlearn.", exists=True)],
    hydragnn: Annotated[Path, typer.Option(help="Checkout of HydraGNN.", exists=True)],
    deephyper: Annotated[Path, typer.Option(help="Python that has DeepHyper.", exists=True)],
    seeds: Annotated[int, typer.Option(help="How many, of splits, searches and weights.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Hardly any training.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Search on both sides and print tables; the exit status is 0 whatever they say."""
    run = Run("peer_search", MEASURES, ["optuna", "parsl", "torch", "torch-geometric"], quick=quick)
    versions = {
        "HydraGNN": commit_of(hydragnn) or "of no commit",
        "DeepHyper": deephyper_version(deephyper),
    }
    try:
        in_fresh_process(load, hydragnn)
    except CannotRun as error:
        raise typer.BadParameter(str(error)) from error
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:IN_FLIGHT])
    trials, epochs = (3, 1) if quick else (_TRIALS, _EPOCHS)
    contests = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            campaign(data, seed, trials, epochs, path)
            space = {name: Parameter.model_validate(domain) for name, domain in _SPACE.items()}
            contest, store = Contest(_SET, "PAINN", math.inf), path / "store.gs"
            theirs = search(contest, store, space, trials, epochs, seed, hydragnn, deephyper)
            mine, course = ours(path)
            lost = sum(not math.isfinite(trial.loss) for trial in theirs)
            contests.append(Both(mine, course, peers(theirs, store), course_of(theirs), lost))
    lines = judged(contests)
    lost = sum(both.lost for both in contests)
    result = run.end(
        [
            *(table(both, f"Silicon, seed {seed}") for seed, both in enumerate(contests)),
            table_of(lines, "targets"),
        ],
        remarks=[
            missed(lines),
            "the targets are of means over the seeds",
            f"trials of HydraGNN without a finite loss: {lost} of {seeds * trials}",
        ],
        peers=versions,
        settings={"seeds": seeds, "space": _SPACE, "trials": trials, "epochs": epochs},
        details={"seeds": [asdict(both) for both in contests]},
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def campaign(data: Path, seed: int, trials: int, epochs: int, path: Path) -> None:
    """Our search and ensemble."""
    section = network(Contest(_SET, "PAINN", math.inf))
    section["Training"]["num_epoch"] = epochs
    content = {
        "name": "peer_search",
        "seed": seed,
        "data": SETS[_SET].data,
        "network": "network.json",
        "search": {
            "trials": trials,
            "min_epochs": min(2, epochs),
            "reduction_factor": 3,
            "space": _SPACE,
        },
        "ensemble": _ENSEMBLE | ({"size": 2, "epochs": 2} if epochs < _EPOCHS else {}),
    }
    config = path.with_name("run.yaml")
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    text = json_file.dumps({"NeuralNetwork": section})
    path.with_name("network.json").write_text(text, encoding="utf-8")
    words = ["run", config, "--run-dir", path, "--data", data / SETS[_SET].folder]
    command = [sys.executable, "-m", "hydragnn_flow", *map(str, words)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def ours(path: Path) -> tuple[list[Reached], list[tuple[float, float]]]:
    """The best single network and the ensemble of a run, and the course of its training.

    The course is CPU time [s] and the least validation error of any weights up to then, the sum of
    the MAE of energies [eV/atom] and forces [eV/Å], after each segment.
    """
    summary = json_file.loads((path / "ensemble" / "ensemble.json").read_text(encoding="utf-8"))
    seconds, least = 0.0, math.inf
    course = []
    results = sorted(RunDirectory(path).results(), key=lambda result: result.ended)
    for result in results:
        seconds += result.cpu_seconds
        if {"energy_mae_per_atom", "forces_mae"} <= set(result.metrics):
            found = result.metrics["energy_mae_per_atom"] + result.metrics["forces_mae"]
            least = min(least, found)
        course.append((seconds, least))
    graphs = pd.read_parquet(path / "predictions" / "test.parquet")
    nodes = pd.read_parquet(path / "predictions" / "test_nodes.parquet")
    split = GraphStore.open(path / "store.gs")["testset"]

    def test(column: str) -> tuple[float, ...]:
        said = {
            "energy": graphs[[f"energy_{column}"]].to_numpy(),
            "forces": nodes[[f"forces_{axis}_{column}" for axis in "xyz"]].to_numpy(),
        }
        return errors(SETS[_SET], split, said)

    best = summary["best_member"]
    of_others = sum(r.cpu_seconds for r in results if r.kind == "member" and r.number != best)
    name = f"hydragnn_flow, ensemble of {len(summary['members'])}"
    return [
        Reached("hydragnn_flow, best trial", seconds - of_others, test(f"member_{best}")),
        Reached(name, seconds, test("mean")),
    ], course


def peers(trials: list[Trial], store: Path) -> list[Reached]:
    """HydraGNN's best trial by its validation loss, and the mean of its best five."""
    seconds = sum(trial.seconds for trial in trials)
    ranked = sorted((t for t in trials if t.validation), key=lambda trial: trial.loss)
    if not ranked:
        raise SystemExit("no trial of HydraGNN had a finite loss")
    split = GraphStore.open(store)["testset"]

    def test(chosen: list[Trial]) -> tuple[float, ...]:
        means = {
            target: np.mean([trial.test[target] for trial in chosen], axis=0)
            for target in chosen[0].test
        }
        return errors(SETS[_SET], split, means)

    several = ranked[:_MEAN_OF]
    return [
        Reached("HydraGNN + DeepHyper, best trial", seconds, test(ranked[:1])),
        Reached(f"HydraGNN + DeepHyper, mean of {len(several)}", seconds, test(several)),
    ]


def course_of(trials: list[Trial]) -> list[tuple[float, float]]:
    """CPU time [s] and the least validation error up to then, as of :func:`ours`."""
    seconds, least = 0.0, math.inf
    course = []
    for trial in trials:
        seconds += trial.seconds
        if trial.validation is not None:
            energy, forces = trial.validation
            least = min(least, energy / 1000 + forces)
        course.append((seconds, least))
    return course


def judged(contests: list[Both]) -> list[Line]:
    """Means of our figures over the seeds beside theirs, with the targets."""

    def line(
        what: str, unit: str, peer: str, pairs: Iterable[Pair], at_most: float | None = 1.0
    ) -> Line:
        mine, others = np.transpose(list(pairs))
        value, other, ratios = float(mine.mean()), float(others.mean()), mine / others
        spread = float(ratios.min()), float(ratios.max())
        ratio = value / other
        return Line(what, what, value, unit, peer, other, ratio, at_most=at_most, spread=spread)

    everything, theirs = "HydraGNN + DeepHyper, all trials", "HydraGNN + DeepHyper, until then"
    seconds = ((both.ours[-1].seconds, both.theirs[0].seconds) for both in contests)
    least = ((both.our_course[-1][1], both.their_course[-1][1]) for both in contests)
    ends = [both.their_course[-1][1] for both in contests]
    reached = [_until(both.our_course, end) for both, end in zip(contests, ends, strict=True)]
    until = [_until(both.their_course, end) for both, end in zip(contests, ends, strict=True)]
    total = [both.theirs[0].seconds for both in contests]
    at_end = "CPU time until the validation error is that of their end"
    lines = [
        line("CPU time of all trainings", "s", everything, seconds),
        line(at_end, "s", everything, zip(reached, total, strict=True), 1 / 3),
        line(at_end, "s", theirs, zip(reached, until, strict=True), None),
        line("validation error at the end", "eV", everything, least),
    ]
    for place, measure in enumerate(SETS[_SET].measures):
        for side, number in (("theirs", 0), ("theirs", 1), ("ours", 0)):
            others = [getattr(both, side)[number] for both in contests]
            pairs = (
                (both.ours[-1].test[place], other.test[place])
                for both, other in zip(contests, others, strict=True)
            )
            what = f"ensemble, {measure.target} MAE"
            lines.append(line(what, measure.unit, others[0].what, pairs))
    return lines


def _until(course: list[tuple[float, float]], error: float) -> float:
    """CPU time until an error is reached [s]; infinite if it is not."""
    return next((seconds for seconds, least in course if least <= error), math.inf)


def table(both: Both, title: str) -> Table:
    """What both sides reached with a seed."""
    rows: list[list[Cell]] = [
        [one.what, round(one.seconds), *map(float, one.test)] for one in (*both.theirs, *both.ours)
    ]
    columns = ["", "CPU-s", *(f"test {measure}" for measure in SETS[_SET].measures)]
    return Table(columns, rows, "reached", title)


if __name__ == "__main__":
    typer.run(main)
