"""Memory: what does each rank hold of a network, by strategy?

Held is what is there between steps: parameters, gradients, the state of AdamW, and the average and
the best weights so far. The peak is that of all tensors within a step, those gathered and the
activations included. HydraGNN's `get_distributed_model` with FSDP2, where a checkout is given,
holds no average; it is compared in what both hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import model_race.networks
from model_race.alloys import write_alloys
from model_race.networks import Case
from results import Cell, Line, Number, Table

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from parallel_checks.counted import Storages, held, tensors_of
from parallel_checks.networks import GROUP, STRATEGIES, losses, sharding, trainer
from parallel_checks.ranks import on_ranks

ROW = "memory"
MEASURES = [
    "benchmarks/parallel_checks/counted.py",
    "benchmarks/parallel_checks/memory.py",
    "benchmarks/parallel_checks/networks.py",
    "hydragnn_flow/training",
]
RANKS = 4
PARTS = {"NO_SHARD": 1, "SHARD_GRAD_OP": RANKS, "FULL_SHARD": RANKS, "HYBRID_SHARD": GROUP}
_CASES = {"EGNN, property": Case("EGNN", "multihead"), "EGNN, potential": Case("EGNN", "potential")}
_WIDTH, _BATCH, _GRAPHS = 128, 4, 16
_WITHIN = 10.0
_HYDRAGNNS = ("FULL_SHARD", "SHARD_GRAD_OP")
Held = dict[str, float]
"""Bytes of a rank: `all`, `both` (what HydraGNN holds too), `peak`."""


def measured(
    folder: Path, *, quick: bool = False, hydragnn: Path | None = None
) -> Iterator[Line | Table]:
    """A line for each strategy and network, and the table."""
    store = folder / "memory.gs"
    if not store.exists():
        write_alloys(store, _GRAPHS, 1)
    ranks = 2 if quick else RANKS
    strategies = [how for how in STRATEGIES if ranks > GROUP or how != "HYBRID_SHARD"]
    cases = dict([*_CASES.items()][:1]) if quick else _CASES
    sections = {name: _section(case) for name, case in cases.items()}
    ours = _largest(on_ranks(ranks, _ours, str(store), sections, strategies))
    theirs = {}
    if hydragnn is not None:
        given = [str(hydragnn), str(store), sections]
        theirs = _largest(on_ranks(ranks, _theirs, *given))
    rows: list[list[Cell]] = []
    for name in cases:
        whole = ours[f"{name}, NO_SHARD"]["all"]
        for how in strategies:
            mine, peer = ours[f"{name}, {how}"], theirs.get(f"{name}, {how}")
            parts = 1 if how == "NO_SHARD" else GROUP if how == "HYBRID_SHARD" else ranks
            rows.append(
                [
                    name,
                    how,
                    Number(mine["all"] / 1e6, "MB"),
                    mine["all"] / whole,
                    1 / parts,
                    Number(mine["peak"] / 1e6, "MB"),
                    Number(mine["both"] / 1e6, "MB"),
                    *(Number(peer[key] / 1e6, "MB") if peer else None for key in ("both", "peak")),
                ]
            )
            if parts > 1:
                off = 100 * abs(mine["all"] * parts / whole - 1)
                what = f"{how}, {name}, {ranks} ranks: held, beside 1/{parts}"
                yield Line(ROW, what, off, "% off", at_most=_WITHIN)
    columns = ["network", "strategy", "held", "of NO_SHARD", "theory", "peak", "without averages"]
    columns += ["HydraGNN", "its peak"]
    yield Table(columns, rows, "memory", f"Memory of a rank of {ranks}, width {_WIDTH}")


def _section(case: Case) -> dict[str, Any]:
    with patch.object(model_race.networks, "HIDDEN", _WIDTH):
        return model_race.networks.network(case, _BATCH)


def _largest(of_ranks: list[dict[str, Held]]) -> dict[str, Held]:
    """What the rank that holds most does."""
    return {
        name: {key: max(rank[name][key] for rank in of_ranks) for key in of_ranks[0][name]}
        for name in of_ranks[0]
    }


def _ours(
    world: World, store: str, sections: dict[str, dict[str, Any]], strategies: list[str]
) -> dict[str, Held]:
    data, found = GraphStore.open(store), {}
    for name, section in sections.items():
        for how in strategies:
            training = {**section["Training"], "sharding": sharding(how)}
            one = trainer({**section, "Training": training}, f"{store}-none", data, world)
            [*losses(one, 1)]
            weights = one.parallel.weights
            both = [*weights, *tensors_of(one.optimizer)]
            both += [weight.grad for weight in weights if weight.grad is not None]
            everything = [*both, *one.average.weights.values(), *one.best.values()]
            with Storages(everything) as storages:
                [*losses(one, 1)]
            found[f"{name}, {how}"] = {
                "all": held(everything),
                "both": held(both),
                "peak": storages.peak,
            }
    return found


def _theirs(
    world: World, checkout: str, store: str, sections: dict[str, dict[str, Any]]
) -> dict[str, Held]:
    from importlib import import_module

    from peers.hydragnn_model import HydraGNNModel
    from peers.hydragnn_package import function, hand_over_edges, make_importable

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HYDRAGNN_USE_FSDP"], os.environ["HYDRAGNN_FSDP_VERSION"] = "1", "2"
    make_importable(Path(checkout))
    import_module("hydragnn")
    hand_over_edges()
    train = GraphStore.open(store)["trainset"]
    each = _BATCH // world.size  # as many as ours have
    graphs = [train[world.rank * each + number] for number in range(each)]
    found = {}
    for name, section in sections.items():
        for how in _HYDRAGNNS:
            os.environ["HYDRAGNN_FSDP_STRATEGY"] = how
            one: Any = HydraGNNModel(Path(checkout), graphs, section)
            wrap = function("utils.distributed.distributed", "get_distributed_model")
            model = one._model = wrap(one._model.module)
            choose = function("utils.optimizer.optimizer", "select_optimizer")
            optimiser = one._optimiser = choose(model, section["Training"]["Optimizer"])
            one.train(0.0)
            weights = [*model.parameters()]
            both = [*weights, *tensors_of(optimiser)]
            both += [weight.grad for weight in weights if weight.grad is not None]
            with Storages(both) as storages:
                one.train(0.0)
            found[f"{name}, {how}"] = {"both": held(both), "peak": storages.peak}
    return found
