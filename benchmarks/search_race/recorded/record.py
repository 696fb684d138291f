"""Trains the configurations of a task and records their results.

    python -m search_race.recorded.record alloys --work DIR          (in the folder benchmarks)
    python -m search_race.recorded.record alloys --work DIR --part 1/2

It takes an hour or two of a core, may be killed at any moment and continues when started again. Of
several parts each does its share, at the same time in processes of their own. The trainings after
the random ones depend on those, so a part that is ahead waits for the others.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import optuna
import typer

from hydragnn_flow.config import Parameter
from hydragnn_flow.search.space import suggest
from search_race.recorded.tasks import TASKS, Task
from search_race.recorded.trainings import trainer

Record = dict[str, Any]
"""`number`, `params`, `losses` and `seconds` of a training."""
_BEST = 0.1
"""Share of the random trainings near which others are sought."""
_STEP = 0.12
"""Standard deviation of a move, as a share of the range."""
_MOVED = 0.5
"""Share of the parameters that are moved."""
SEEDS = 5
"""Trainings of a configuration whose scatter is measured."""


def main(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    work: Annotated[Path, typer.Option(help="Directory for the records and what is prepared.")],
    data: Annotated[Path | None, typer.Option(help="Directory that holds perov_5.")] = None,
    part: Annotated[str, typer.Option(help="Which share of the trainings to do.")] = "1/1",
    limit: Annotated[int | None, typer.Option(help="Train no more than so many.")] = None,
) -> None:
    """Train what is missing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen, (k, n) = TASKS[task], map(int, part.split("/"))
    work.mkdir(parents=True, exist_ok=True)
    train = trainer(task, work, data)
    done = {record["number"] for record in read(work, task)}
    for number in range(chosen.drawn + chosen.near + chosen.again):
        if number % n != k - 1 or number in done:
            continue
        if limit is not None and limit <= 0:
            return
        params, seed = configuration(chosen, number, work)
        losses, seconds = train(params, seed)
        record = {"number": number, "params": params, "losses": losses, "seconds": seconds}
        # In one write, so that a killed process leaves at most one torn line.
        with (work / f"{task}.{k}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        limit = None if limit is None else limit - 1


def read(work: Path, task: str) -> list[Record]:
    """The trainings of all parts, by number."""
    found = {}
    for path in sorted(work.glob(f"{task}.*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # torn, or being written
                continue
            found[record["number"]] = record
    return [found[number] for number in sorted(found)]


def configuration(task: Task, number: int, work: Path) -> tuple[dict[str, Any], int]:
    """The parameters of a training and its seed; waits for the trainings it depends on."""
    if number < task.drawn:
        return _random(task.space, number), number
    ranked = sorted(_awaited(work, task, task.drawn), key=_final)
    if number < task.drawn + task.near:
        best = ranked[: math.ceil(_BEST * len(ranked))]
        rng = np.random.default_rng([7, number])
        return near(task.space, best[number % len(best)]["params"], rng, number), number
    ranked = sorted(_awaited(work, task, task.drawn + task.near), key=_final)
    place = (number - task.drawn - task.near) // SEEDS
    # Every fourth of the best, so that they are not all alike.
    return ranked[4 * place]["params"], number


def _awaited(work: Path, task: Task, count: int) -> list[Record]:
    while True:
        known = [record for record in read(work, task.name) if record["number"] < count]
        if len(known) == count:
            return known
        time.sleep(10)


def _final(record: Record) -> float:
    """The smallest loss that was seen; infinite where there was none."""
    return min((loss for loss in record["losses"] if loss is not None), default=math.inf)


def _random(space: Mapping[str, Parameter], seed: int) -> dict[str, Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return suggest(study.ask(), space)


def near(
    space: Mapping[str, Parameter],
    params: Mapping[str, Any],
    rng: np.random.Generator,
    seed: int,
    step: float = _STEP,
) -> dict[str, Any]:
    """Some parameters moved, choices seldom; what a move brings into being is random."""
    fresh = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    moved: dict[str, Any] = {}
    for name, domain in space.items():
        if any(moved.get(other) not in values for other, values in domain.when.items()):
            continue
        alone = domain.model_copy(update={"when": {}})
        if name not in params or (domain.choices is not None and rng.random() < 0.15):
            moved |= suggest(fresh, {name: alone})
        elif domain.bounds is None or rng.random() > _MOVED:
            moved[name] = params[name]
        else:
            low, high = domain.bounds
            value = float(params[name])
            if domain.log:
                value *= math.exp(step * math.log(high / low) * rng.normal())
            else:
                value += step * (high - low) * rng.normal()
            value = min(max(value, low), high)
            moved[name] = round(value) if domain.int is not None else value
    return moved


if __name__ == "__main__":
    typer.run(main)
