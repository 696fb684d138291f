"""How accurate our networks and HydraGNN's are after the same CPU time, trained in this run.

    python benchmarks/accuracy.py --data DIRECTORY-OF-THE-DATA-SETS --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/accuracy.py --data DIRECTORY --hydragnn PATH --only acac:PAINN --seconds 20

Both sides get the same files, splits, graphs, JSON and CPU time, on one thread; ours is trained by
the package's segments, HydraGNN by its own ``train_validate_test``. The weights best on the
validation split are tested. Both sides of a seed train at the same time: a CPU-second of a busy
machine is worth less, to both.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from graph_store.workspace import in_fresh_process
from model_accuracy import hydragnns, ours
from model_accuracy.outcome import Outcome
from model_accuracy.report import Row, remarks, tables
from model_accuracy.sets import CONTESTS, CUTOFF, SETS, Contest
from model_accuracy.trainings import Trainings
from peers.hydragnn_package import CannotRun
from results import Run
from results.code import commit_of, fingerprints
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hydragnn_flow import InputError
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data import prepare_store

MEASURES = [
    *(f"benchmarks/model_accuracy/{name}.py" for name in ("hydragnns", "ours", "outcome", "sets")),
    "benchmarks/peers/hydragnn_package.py",
    "benchmarks/peers/hydragnn_training.py",
    "hydragnn_flow/data/graphs.py",
    "hydragnn_flow/data/neighbours.py",
    "hydragnn_flow/models/*.py",
    "hydragnn_flow/models/kernels",
    # The layers of the contests.
    *(f"hydragnn_flow/models/mpnn/{name}.py" for name in ("base", "displacement")),
    *(
        f"hydragnn_flow/models/mpnn/{name}.py"
        for name in ("egnn", "layers", "mace*", "painn", "pna")
    ),
    *(f"hydragnn_flow/training/{name}.py" for name in ("averaging", "losses", "optimizers")),
    *(f"hydragnn_flow/training/{name}.py" for name in ("schedules", "terms", "trainer")),
]
_SEED_OF_SPLITS = 0


def main(
    data: Annotated[Path, typer.Option(help="Directory of acac, mlearn and perov_5.", exists=True)],
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"SET or SET:TYPE, of {', '.join(c.name for c in CONTESTS)}."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each network.", min=1)] = 3,
    seconds: Annotated[
        float | None, typer.Option(help="CPU time of each training, to see that it runs.", min=0.1)
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", help="Seeds whose two sides train at once.", min=1)
    ] = 1,
    trainings: Annotated[
        Path, typer.Option(help="Trainings that have been done, one a line; new ones are added.")
    ] = Path("runs/benchmark-accuracy.jsonl"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Train, test and print tables; the exit status is 0 whatever they say."""
    chosen = _chosen(only or [])
    run = Run(
        "accuracy",
        MEASURES,
        ["e3nn", "numpy", "torch", "torch-geometric"],
        quick=seconds is not None or seeds < 2,
    )
    rows, left_out = measure(chosen, data, hydragnn, seeds, seconds, at_once, trainings)
    if hydragnn is None:
        left_out.append("HydraGNN, whose checkout --hydragnn would name")
    result = run.end(
        tables(rows),
        remarks=remarks(rows, left_out),
        peers={} if hydragnn is None else {"HydraGNN": commit_of(hydragnn) or "of no commit"},
        settings={"seeds": seeds, "seconds": seconds, "at_once": at_once},
        details=[asdict(row) for row in rows],
    )
    print(result.markdown())
    if json is not None:
        result.write(json)


def measure(
    chosen: list[Contest],
    data: Path,
    hydragnn: Path | None,
    seeds: int,
    seconds: float | None,
    at_once: int,
    kept: Path,
) -> tuple[list[Row], list[str]]:
    """Train and test both sides; also say what could not be measured."""
    rows: list[Row] = []
    left_out: list[str] = []
    code = [fingerprints(MEASURES), commit_of(hydragnn) if hydragnn else ""]
    trainings = Trainings(kept, code)
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    sides = ["ours"] if hydragnn is None else ["ours", "HydraGNN"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
        ThreadPoolExecutor(at_once * len(sides)) as processes,
    ):
        bar = progress.add_task("", total=len(chosen) * seeds * len(sides))

        def train(contest: Contest, store: Path, seed: int, side: str) -> Outcome:
            time = seconds or contest.seconds
            progress.update(bar, description=f"{contest.name}, seed {seed}: {time:.0f} CPU-s")
            training = {**asdict(contest), "seconds": time, "seed": seed, "side": side}
            checkout = hydragnn if side == "HydraGNN" else None
            run = partial(_train, contest, store, time, seed, checkout)
            outcome = trainings.get(training, run)
            progress.advance(bar)
            return outcome

        found: dict[Contest, dict[str, list[Future[Outcome]]]] = {}
        for contest in chosen:
            store = Path(folder) / f"{contest.set}.gs"
            try:
                if not store.exists():
                    prepare(contest.set, data, store)
            except InputError as error:
                left_out.append(f"{contest.name}: {error}")
                continue
            found[contest] = {side: [] for side in sides}
            for seed in range(seeds):
                for side, ends in found[contest].items():
                    ends.append(processes.submit(train, contest, store, seed, side))
        for contest, of_sides in found.items():
            try:
                outcomes = {side: [end.result() for end in of_sides[side]] for side in sides}
                rows.append(Row(contest, outcomes["ours"], outcomes.get("HydraGNN", [])))
            except (CannotRun, InputError) as error:
                left_out.append(f"{contest.name}: {error}")
    return rows, left_out


def _train(
    contest: Contest, store: Path, seconds: float, seed: int, checkout: Path | None
) -> Outcome:
    """A training of ours, or HydraGNN's from its checkout, in a process of its own."""
    if checkout is None:
        return in_fresh_process(ours.train_and_test, contest, store, seconds, seed)
    return in_fresh_process(hydragnns.train_and_test, contest, store, seconds, seed, checkout)


def prepare(name: str, data: Path, path: Path) -> None:
    """Build the store of a set.

    Raises
    ------
    InputError
        Where its files are missing.
    """
    chosen = SETS[name]
    config = DataConfig.model_validate({**chosen.data, "path": data / chosen.folder})
    prepare_store(config, CUTOFF, chosen.neighbours, _SEED_OF_SPLITS, path)


def _chosen(only: list[str]) -> list[Contest]:
    """Contests by name or by set, in the order of the table."""
    known = {contest.name for contest in CONTESTS} | set(SETS)
    if unknown := set(only) - known:
        raise typer.BadParameter(f"no {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [c for c in CONTESTS if not only or c.name in only or c.set in only]


if __name__ == "__main__":
    typer.run(main)
