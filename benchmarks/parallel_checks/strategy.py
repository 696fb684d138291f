"""Strategy search: does it find the fastest way to train, and say which choice matters?

Every combination of the choices is measured, on as many processes as the search has GCDs: some
rounds, in another order each. Since other work takes turns on the processors, CPU time is taken,
that of all processes together, of steps after the first five. The table is that of the cheapest
round of each combination.

Then searches are made whose trials are answered from the table: each with one round, drawn by
chance, so with the noise that a measurement has. They are judged by the table: what they chose
against the best there is, and which choice fANOVA ranks first against that which moves the table
most, by the variance of the logarithm between its values' means (its main effect).
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Cell, Line, Number, Table
from torch import multiprocessing
from torch.distributed import FileStore  # type: ignore[attr-defined]  # absent from torch's types
from torch.multiprocessing.spawn import start_processes

from hydragnn_flow.config import RunConfig, load_config, load_network
from hydragnn_flow.config.search import STRUCTURES, WARM_UP_STEPS
from hydragnn_flow.data import GraphStore
from hydragnn_flow.report.importance import parameter_importance
from hydragnn_flow.report.trials_frame import read_study, study_frame
from hydragnn_flow.search import Outcome, Search
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import joined
from hydragnn_flow.training.trainer import Trainer

ROW = "strategy"
MEASURES = [
    "benchmarks/parallel_checks/strategy.py",
    "hydragnn_flow/report/importance.py",
    "hydragnn_flow/search",
    "hydragnn_flow/training",
]
TRIALS, PROCESSES = 40, 4
SPACE: dict[str, tuple[Any, ...]] = {
    "Training.sharding.strategy": ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"),
    "Training.batch_size": (16, 64),
    "Training.accumulation_steps": (1, 2, 4),
    "Training.precision": ("fp32", "bf16", "fp64"),
    "Training.conv_checkpointing": (False, True),
}
_WITHIN = 1.05
_STEPS, _ROUNDS, _SEEDS = 6, 3, 20
_NETWORK = {
    "Architecture": {
        "mpnn_type": "PNA",
        "hidden_dim": 32,
        "num_conv_layers": 3,
        "radius": 5.0,
        "max_neighbours": 20,
        "edge_features": ["lengths"],
        "num_gaussians": 32,
        "graph_pooling": "mean",
        "output_heads": {
            "graph": {
                "num_sharedlayers": 1,
                "dim_sharedlayers": 32,
                "num_headlayers": 2,
                "dim_headlayers": [32, 32],
            }
        },
        "task_weights": [1.0],
    },
    "Variables_of_interest": {
        "input_node_features": [0],
        "output_names": ["energy"],
        "type": ["graph"],
    },
    "Training": {
        "num_epoch": 1,
        "batch_size": 16,
        "loss_function_type": "mse",
        "sharding": {"group": 2},
        "Optimizer": {"type": "AdamW", "learning_rate": 0.001},
    },
}

Combination = tuple[Any, ...]


@dataclass(frozen=True)
class Measured:
    """CPU seconds of training 1,000 structures by each combination, round by round."""

    rounds: dict[Combination, list[float]]
    of_best: dict[Combination, float] = field(init=False)

    def __post_init__(self) -> None:
        best = {combination: min(each) for combination, each in self.rounds.items()}
        object.__setattr__(self, "of_best", best)

    @property
    def noise(self) -> float:
        """Median over combinations of the dearest round against the cheapest."""
        return float(np.median([max(each) / min(each) for each in self.rounds.values()]))

    def main_effects(self) -> dict[str, float]:
        """Fraction of the variance of the logarithm that each choice explains by itself."""
        logs = {combination: np.log(value) for combination, value in self.of_best.items()}
        total = np.var(list(logs.values()))
        effects = {}
        for i, (name, values) in enumerate(SPACE.items()):
            means = [np.mean([y for c, y in logs.items() if c[i] == value]) for value in values]
            effects[name] = float(np.var(means) / total)
        return effects


@dataclass(frozen=True)
class Found:
    """What came of one search."""

    over_best: float
    """CPU time of the combination that it found best, by the table, over that of the best."""
    first: str
    """The choice that fANOVA ranks first."""


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """Measure the table, search in it, and compare.

    Parameters
    ----------
    folder
        For the store, the searches, and the table, which is not measured twice.
    quick
        A part of the table and two searches, to see that it runs.
    """
    config, kept = configured(folder, quick), folder / "strategies.json"
    if kept.exists():
        table = Measured({tuple(one): each for one, each in json.loads(kept.read_bytes())})
    else:
        table = measure_table(config, folder, quick)
        kept.write_text(json.dumps([[*item] for item in table.rounds.items()]), encoding="utf-8")
    yield from judged(table, config, folder, seeds=2 if quick else _SEEDS)


def judged(table: Measured, config: RunConfig, folder: Path, seeds: int) -> Iterator[Line | Table]:
    """Search in a table that was measured, and compare."""
    effects = table.main_effects()
    main = max(effects, key=effects.__getitem__)
    searches = {
        name: [search(table, config, folder, sampler, seed) for seed in range(seeds)]
        for name, sampler in (("auto", {"type": "auto", "wait": True}), ("random", "random"))
    }
    for name, found in searches.items():
        over = sorted(one.over_best for one in found)
        named = [one.first == main for one in found]
        is_ours = name == "auto"
        what = f"best of {config.search.trials} trials of {len(table.rounds)}, {name}"
        yield Line(
            *(ROW, f"{what}: CPU time over the best's", float(np.median(over)), ""),
            at_most=_WITHIN if is_ours else None,
            spread=(over[0], over[-1]),
        )
        yield Line(
            *(ROW, f"searches within 5 % of the best, {name}", float(np.mean(_near(over))), ""),
        )
        yield Line(
            *(ROW, f"fANOVA ranks {main} first, {name}", float(np.mean(named)), ""),
            at_least=1.0 if is_ours else None,
        )
    yield Line(ROW, "dearest round of a combination over its cheapest, median", table.noise, "")
    rows: list[list[Cell]] = [
        [name, f"{effect:.1%}", *_extremes(table, i)]
        for i, (name, effect) in enumerate(effects.items())
    ]
    columns = ("choice", "share of the variance", "best value", "worst value", "worst over best")
    yield Table(columns, rows, "strategy", f"What {len(table.rounds)} strategies cost")


def _near(over: Sequence[float]) -> list[bool]:
    return [value <= _WITHIN for value in over]


def _extremes(table: Measured, i: int) -> list[Cell]:
    """The values of a choice with the smallest and the largest geometric mean, and their ratio."""
    values = [*SPACE.values()][i]
    means = {
        value: float(np.mean([np.log(y) for c, y in table.of_best.items() if c[i] == value]))
        for value in values
    }
    best, worst = min(values, key=means.__getitem__), max(values, key=means.__getitem__)
    return [str(best), str(worst), Number(float(np.exp(means[worst] - means[best])))]


def configured(folder: Path, quick: bool = False) -> RunConfig:
    """The search as a user writes it."""
    import yaml

    values = {
        "name": "strategy",
        "data": {
            "source": {"format": "emt_alloys", "structures": 320},
            "split": {"val": 0.1, "test": 0.1},
        },
        "network": _NETWORK,
        "search": {
            "trials": 10 if quick else TRIALS,
            "objectives": ["seconds"],
            "budget": {"steps": WARM_UP_STEPS + _STEPS},
            "space": {name: {"choices": list(values)} for name, values in SPACE.items()},
        },
        "resources": {"gcds": PROCESSES},
    }
    file = folder / "strategy.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return load_config(file)


def measure_table(config: RunConfig, folder: Path, quick: bool = False) -> Measured:
    """Measure all combinations, some rounds of them, each in an order of its own."""
    from hydragnn_flow.campaign.stores import checked_store
    from hydragnn_flow.report.progress import CampaignView

    store = folder / "store.gs"
    with CampaignView() as view:
        checked_store(config, store, view).close()
    combinations = [*itertools.product(*SPACE.values())][:: 7 if quick else 1]
    orders = [
        np.random.default_rng(turn).permutation(len(combinations))
        for turn in range(1 if quick else _ROUNDS)
    ]
    tasks = [int(place) for order in orders for place in order]
    networks = [config.network_values(_parameters(one)) for one in combinations]
    answers: Any = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as shared:
        start_processes(  # type: ignore[no-untyped-call]  # torch has no types here
            _work,
            (f"{shared}/ranks", str(store), [networks[task] for task in tasks], answers),
            nprocs=PROCESSES,
            start_method="spawn",
        )
    each: list[list[float]] = [answers.get() for _ in range(PROCESSES)]
    rounds: dict[Combination, list[float]] = {one: [] for one in combinations}
    for task, *costs in zip(tasks, *each, strict=True):
        rounds[combinations[task]].append(sum(costs))
    return Measured(rounds)


def _parameters(combination: Combination) -> dict[str, Any]:
    return dict(zip(SPACE, combination, strict=True))


def _work(
    rank: int, shared: str, store: str, networks: Sequence[Mapping[str, Any]], answers: Any
) -> None:
    """Train some steps of each network, as one of the ranks; answers with its CPU seconds."""
    torch.set_num_threads(1)
    costs = []
    with joined(rank, PROCESSES, FileStore(shared, PROCESSES), "cpu") as world:
        data = GraphStore.open(store, "memory")
        for number, network in enumerate(networks):
            if rank == 0 and number % max(1, len(networks) // 10) == 0:
                print(f"strategies: {number}/{len(networks)}", file=sys.stderr, flush=True)
            spec = SegmentSpec(
                kind="trial",
                number=number,
                rung=0,
                directory=f"{shared}-{number}",
                store=store,
                network=load_network(dict(network), "strategy"),
                until_epoch=1,
                seed=0,
                budget=("steps", WARM_UP_STEPS + _STEPS),
            )
            trainer = Trainer(spec, data, torch.device("cpu"), world)
            trainer.model.train()
            steps, began = trainer.plan(0), 0.0
            batches = trainer.micro_batches(steps)
            for place, (step, pieces) in enumerate(zip(steps, batches, strict=True)):
                if place == WARM_UP_STEPS:
                    world.wait()
                    began = time.process_time()
                trainer.train_step(step, pieces)
            spent = time.process_time() - began
            graphs = sum(step.graphs for step in steps[WARM_UP_STEPS:])
            costs.append(spent / graphs * STRUCTURES)
            world.wait()
    answers.put(costs)


def search(table: Measured, config: RunConfig, folder: Path, sampler: Any, seed: int) -> Found:
    """Search in the table as the driver does, one trial at a time; what was found, and why."""
    drawn = np.random.default_rng(seed)
    chosen = config.search.model_copy(update={"sampler": sampler})
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        run = Path(scratch)
        values: dict[Combination, float] = {}
        with Search(run / "study.journal", chosen, 1, seed) as study:
            for _ in range(chosen.trials):
                trial = study.ask()
                combination = tuple(trial.parameters[name] for name in SPACE)
                rounds = table.rounds.get(combination) or [max(table.of_best.values())]
                value = rounds[int(drawn.integers(len(rounds)))]
                values[combination] = min(value, values.get(combination, value))
                study.report(trial.number, 0, Outcome((value,)))
        known = read_study(run)
        frame = study_frame(known, [], config.search.objectives)
        importance = parameter_importance(known, frame, fanova=True)
    best = min(values, key=values.__getitem__)
    cost = table.of_best.get(best, max(table.of_best.values()))
    first = importance["parameter"][int(importance["variance"].to_numpy().argmax())]
    return Found(cost / min(table.of_best.values()), str(first))
