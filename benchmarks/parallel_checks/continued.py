"""Continued: does another width and strategy go on from a checkpoint as if nothing had been?

Four ranks train 10 steps by FULL_SHARD and save, each its own rows. One, two and eight ranks go on
from there by every strategy for 10 more. What is compared are the losses of these with those of one
process that took all 20. The limit is for networks in fp64, which tells a wrong value from a
rounded one; others are shown beside them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import Cell, Line, Table

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.distributed import World
from parallel_checks.networks import (
    GROUP,
    STRATEGIES,
    Kind,
    alloys,
    losses,
    network,
    sharding,
    trainer,
)
from parallel_checks.ranks import on_ranks

ROW = "continued"
MEASURES = [
    "benchmarks/parallel_checks/continued.py",
    "benchmarks/parallel_checks/networks.py",
    "hydragnn_flow/training",
]
WRITERS, WIDTHS = 4, (1, 2, 8)
_NETWORKS: tuple[tuple[str, Kind], ...] = (("PNA", "property"), ("PAINN", "potential"))
_STEPS, _EQUAL = 10, 1e-6


def measured(folder: Path, *, quick: bool = False) -> Iterator[Line | Table]:
    """A line for each width and precision, and the table."""
    networks, widths = (_NETWORKS[:1], (1,)) if quick else (_NETWORKS, WIDTHS)
    writers = 2 if quick else WRITERS
    precisions = ("fp64", "fp32")
    cases = {f"{of} {kind}, {p}": (of, kind, p) for of, kind in networks for p in precisions}
    with alloys(folder) as store:
        path = str(store.path)
    written = folder / "continued"
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir()
    first = {
        name: (str(written / name), _section(*case, "FULL_SHARD")) for name, case in cases.items()
    }
    on_ranks(writers, _train, path, first, _STEPS, True)
    (alone,) = on_ranks(
        1, _train, path, {n: (f"{f}-alone", s) for n, (f, s) in first.items()}, 2 * _STEPS, False
    )
    rows: list[list[Cell]] = []
    worst: dict[tuple[int, str], float] = {}
    for width in widths:
        goes_on = {}
        for how in STRATEGIES if width > 1 else STRATEGIES[:1]:
            if how == "HYBRID_SHARD" and width <= GROUP:
                continue  # which is FULL_SHARD
            for name, case in cases.items():
                copy = written / f"{name}-{width}-{how}"
                shutil.copytree(written / name, copy)
                goes_on[f"{name}|{how}"] = (str(copy), _section(*case, how))
        found = on_ranks(width, _train, path, goes_on, _STEPS, False)[0]
        for key, ours in found.items():
            name, _, how = key.partition("|")
            whole = alone[name][_STEPS:]
            off = max(abs(a - b) / abs(b) for a, b in zip(ours, whole, strict=True))
            rows.append([name, width, how if width > 1 else "one process", f"{off:.0e}"])
            group = width, name.rpartition(", ")[2]
            worst[group] = max(off, worst.get(group, 0.0))
    for (width, precision), off in worst.items():
        ranks = f"{width} ranks by every strategy" if width > 1 else "one process"
        what = f"{writers} ranks' FULL_SHARD goes on in {ranks}, {precision}: losses, difference"
        yield Line(ROW, what, off, "of them", at_most=_EQUAL if precision == "fp64" else None)
    columns = ["network", "ranks", "strategy", "largest difference of a loss"]
    yield Table(columns, rows, "continued", f"Checkpoint of {writers} ranks by FULL_SHARD")


def _section(mpnn_type: str, kind: Kind, precision: str, how: str) -> dict[str, Any]:
    return network(mpnn_type, kind, precision=precision, sharding=sharding(how))


def _train(
    world: World,
    store: str,
    networks: dict[str, tuple[str, dict[str, Any]]],
    steps: int,
    saves: bool,
) -> dict[str, list[float]]:
    """Losses by network, whose folders may have checkpoints to go on from.

    The epochs' order begins anew with the steps that go on, as with the tenth step of those that
    never stopped.
    """
    data, found = GraphStore.open(store), {}
    for name, (folder, section) in networks.items():
        if world.is_first:
            Path(folder).mkdir(exist_ok=True)
        world.wait()
        one = trainer(section, folder, data, world)
        found[name] = [
            loss for _ in range(0, steps, _STEPS) for loss in losses(one, min(steps, _STEPS))
        ]
        if saves:
            one.save()
    return found
