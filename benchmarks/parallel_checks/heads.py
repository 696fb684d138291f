"""Head parallelism: do ranks with heads of their own train as one, and what do they save?

Networks of a branch for each of several data sets, whose heads are most of their parameters, take
20 steps on 4 ranks: with `Training.task_parallel`, by DDP, and in one process. They compute in
fp64, because the order of sums differs. A rank's parameters and what it sends in a step are
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import Cell, Line, Number, Table

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.training.distributed import World
from parallel_checks.counted import Traffic
from parallel_checks.networks import Kind, losses, network, trainer
from parallel_checks.ranks import on_ranks

ROW = "heads"
MEASURES = [
    "benchmarks/parallel_checks/counted.py",
    "benchmarks/parallel_checks/heads.py",
    "benchmarks/parallel_checks/networks.py",
    "benchmarks/parallel_checks/ranks.py",
    "hydragnn_flow/models",
    "hydragnn_flow/training",
]
RANKS = 4
_BRANCHES = (8, 3)
_KINDS: tuple[Kind, ...] = ("property", "potential")
_STEPS, _COUNTED, _HEAD = 20, 2, 64
_EQUAL, _SHARE = 1e-6, 0.4


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """Lines for each number of branches and kind of network; and the table."""
    steps = 3 if quick else _STEPS
    rows: list[list[Cell]] = []
    for branches in _BRANCHES[:1] if quick else _BRANCHES:
        with _data_sets(folder, branches) as store:
            path = str(store.path)
        sections = {kind: _network(kind, branches) for kind in _KINDS}
        (alone,) = on_ranks(1, _trained, path, sections, steps, False)
        whole = on_ranks(RANKS, _trained, path, sections, steps, False)
        ours = on_ranks(RANKS, _trained, path, sections, steps, True)
        for kind in _KINDS:
            of = f"{branches} branches on {RANKS} ranks, {kind}"
            off = max(
                abs(one / other - 1)
                for rank in ours
                for one, other in zip(rank[kind][0], alone[kind][0], strict=True)
            )
            yield Line(ROW, f"{of}: losses, largest difference", off, "of them", at_most=_EQUAL)
            share = max(rank[kind][1] for rank in ours) / alone[kind][1]
            most = _SHARE if branches >= 2 * RANKS else None
            yield Line(ROW, f"{of}: parameters of a rank", share, "of all", at_most=most)
            for how, ranks in (("by DDP", whole), ("task_parallel", ours)):
                held, sent = (max(rank[kind][n] for rank in ranks) for n in (1, 2))
                rows.append([of, how, held, held / alone[kind][1], Number(sent / 1e6, "MB")])
    columns = ["network", "", "parameters of a rank", "of all", "sent in a step"]
    yield Table(columns, rows, "heads", "Heads divided among ranks")


def _network(kind: Kind, branches: int) -> dict[str, Any]:
    section = network("SchNet", kind, batch_size=16, precision="fp64")
    heads = section["Architecture"]["output_heads"]
    for level, head in heads.items():
        wide = {**head, "num_headlayers": 2, "dim_headlayers": [_HEAD, _HEAD]}
        heads[level] = [{"type": f"branch-{n}", "architecture": wide} for n in range(branches)]
    return section


def _data_sets(folder: Path, branches: int) -> GraphStore:
    path = folder / f"alloys-{branches}.gs"
    if path.exists():
        return GraphStore.open(path)
    sources = [
        {"name": f"set{n}", "format": "emt_alloys", "structures": 12 + 4 * n, "atoms": [8, 16]}
        for n in range(branches)
    ]
    values = {"sources": sources, "split": {"val": 0.1, "test": 0.1}}
    return prepare_store(DataConfig.model_validate(values), 4.0, None, 0, path)


def _trained(
    world: World, store: str, sections: dict[str, dict[str, Any]], steps: int, divides: bool
) -> dict[str, tuple[list[float], int, float]]:
    """Losses, parameters of this rank, and bytes that it sends in a step, by network."""
    data, found = GraphStore.open(store), {}
    for name, section in sections.items():
        training = {**section["Training"], "task_parallel": divides}
        one = trainer({**section, "Training": training}, f"{store}-none", data, world)
        mine = [*losses(one, steps)]
        with Traffic() as traffic:
            for _ in losses(one, _COUNTED):
                pass
        held = sum(weight.numel() for weight in one.parallel.weights)
        # With the few bytes by which this program sums the losses.
        found[name] = mine, held, traffic.bytes / _COUNTED
    return found
