"""DDP: which of its settings win?

A potential on two ranks, by torch's DDP with each setting in turn: CPU time of a step of both ranks
together, memory of a rank's tensors between steps and at its peak, and bytes that it sends. All
settings take turns in one run. Whether a setting trains the same is compared too, in steps of one
graph as well, where one of the ranks has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from results import Cell, Line, Number, Table

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from parallel_checks.counted import Storages, Traffic
from parallel_checks.networks import alloys, losses, network, trainer
from parallel_checks.ranks import on_ranks

ROW = "ddp"
MEASURES = [
    "benchmarks/parallel_checks/counted.py",
    "benchmarks/parallel_checks/ddp.py",
    "benchmarks/parallel_checks/networks.py",
    "hydragnn_flow/training",
]
RANKS = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "bucket_cap_mb: 1": {"bucket_cap_mb": 1.0},
    "bucket_cap_mb: 100": {"bucket_cap_mb": 100.0},
    "gradient_as_bucket_view: false": {"gradient_as_bucket_view": False},
    "static_graph: true": {"static_graph": True},
    "comm_hook: bf16": {"comm_hook": "bf16"},
}
_EXACT = [name for name in SETTINGS if "bf16" not in name]
_TYPE, _WIDTH, _LAYERS, _BATCH = "PAINN", 256, 3, 4
_TURNS, _STEPS, _EQUAL = 7, 2, 1e-5


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """Lines of what trains the same and what it costs beside the settings as they are."""
    turns, width = (1, 16) if quick else (_TURNS, _WIDTH)
    with alloys(folder) as store:
        path = str(store.path)
    ranks = on_ranks(RANKS, _settings, path, width, turns)
    rows: list[list[Cell]] = []
    seconds = {
        name: [sum(each) for each in zip(*(rank[name]["seconds"] for rank in ranks), strict=True)]
        for name in SETTINGS
    }
    as_it_is, *_ = SETTINGS
    for name in SETTINGS:
        ratios = sorted(a / b for a, b in zip(seconds[name], seconds[as_it_is], strict=True))
        one = ranks[0][name]
        rows.append(
            [
                name,
                Number(1e3 * median(seconds[name]), "ms"),
                Number(median(ratios), "", ratios[0], ratios[-1]),
                *(
                    Number(max(rank[name][k] for rank in ranks) / 1e6, "MB")
                    for k in ("held", "peak")
                ),
                Number(one["sent"] / 1e6, "MB"),
                f"{one['off']:.0e}",
                f"{one['off_of_one']:.0e}",
            ]
        )
        if name != as_it_is and name in _EXACT:
            off = max(one["off"], one["off_of_one"])
            what = f"{name}: losses beside those of the defaults, largest difference"
            yield Line(ROW, what, off, "of them", at_most=_EQUAL)
    columns = ["Training.ddp", "CPU time of a step", "beside the first", "held", "peak", "sent"]
    columns += ["losses differ", "steps of one graph"]
    title = f"DDP's settings, {_TYPE} potential of width {width} on {RANKS} ranks"
    yield Table(columns, rows, "ddp", title)


def _settings(world: World, store: str, width: int, turns: int) -> dict[str, Any]:
    data = GraphStore.open(store)

    def made(name: str, batch_size: int = _BATCH, **of: int) -> Any:
        section = network(_TYPE, "potential", batch_size=batch_size, ddp=SETTINGS[name], **of)
        return trainer(section, f"{store}-none", data, world)

    small = {name: [*losses(made(name, 1), 10)] for name in SETTINGS}
    found: dict[str, Any] = {}
    for name in SETTINGS:
        with Storages() as storages:
            one = made(name, width=width, layers=_LAYERS)
            [*losses(one, _STEPS)]
        there = sum(storage.nbytes() for storage in storages._storages)
        del one
        found[name] = {"peak": storages.peak, "held": there, "seconds": []}
    trainers = {name: made(name, width=width, layers=_LAYERS) for name in SETTINGS}
    first = {name: [*losses(one, 5)] for name, one in trainers.items()}
    for name, one in trainers.items():
        with Traffic() as traffic:
            [*losses(one, _STEPS)]
        found[name]["sent"] = traffic.bytes / _STEPS
    for _ in range(turns):
        for name, one in trainers.items():
            world.wait()
            began = time.process_time()
            [*losses(one, _STEPS)]
            found[name]["seconds"].append((time.process_time() - began) / _STEPS)
    for name in SETTINGS:
        found[name]["off"] = _off(first[name], first["as it is"])
        found[name]["off_of_one"] = _off(small[name], small["as it is"])
    return found


def _off(ours: list[float], others: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(ours, others, strict=True))
