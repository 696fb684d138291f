"""Training steps of our networks beside HydraGNN's.

    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT --only PAINN --mode potential

Both sides get the same JSON and the same batches, in memory, and take turns in one process with
one thread: the ratio is of graphs per CPU-second. A training step is loss, gradient and update:
HydraGNN's by its own ``train``, called once for all steps of a turn, ours as the Trainer takes it,
with clipping of the gradient, averaging of the weights and looks at the loss. HydraGNN is spared
the DDP in which its examples put a model for one process too, and the neighbour search of its
SchNet. Without a checkout of HydraGNN our own figures remain in the file; `benchmarks/README.md`
says how to get one. With ``--compiled`` a third side takes our steps with their gradient compiled.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from model_race.alloys import write_alloys
from model_race.networks import BATCH, MODES, TARGETS, Case, Mode, cases, network
from model_race.sides import Ours, Side
from peers.hydragnn_model import HydraGNNModel
from peers.hydragnn_package import CannotRun
from results import Cell, Checkout, Run, Table, peer_commit, say
from turns import Turns, take_turns

from hydragnn_flow import GraphStore, InputError
from hydragnn_flow.training.memory import keep_freed_memory

OURS, COMPILED, THEIRS = "ours", "ours, compiled", "HydraGNN"


@dataclass(frozen=True)
class Row:
    """Both sides of a case, those that could be measured."""

    case: Case
    training: Turns
    """CPU-seconds for a graph."""

    def over(self, name: str = OURS, other: str = THEIRS) -> float | None:
        """Speed of one side over another's; None without both."""
        if not {name, other} <= self.training.seconds.keys():
            return None
        return self.training.ratio(name, other).value


def measure(
    case: Case,
    store: Path,
    rounds: int,
    seconds: float,
    hydragnn: Path | None,
    names: list[str],
    left_out: list[str],
) -> Row:
    """Measure the sides."""
    turns = {}
    for name in names:
        try:
            side = build(name, store, case, hydragnn)
            turns[name] = partial(_turn, side.train, seconds)
        except (CannotRun, InputError) as error:
            left_out.append(f"{case.name}, {name}: {error}")
    return Row(case, take_turns(turns, rounds))


def build(name: str, store: Path, case: Case, hydragnn: Path | None) -> Side:
    """Make one side ready."""
    if name != THEIRS or hydragnn is None:
        return Ours(store, case, BATCH, compile=name == COMPILED)
    split = GraphStore.open(store)["trainset"]
    graphs = [split[index] for index in range(len(split))]
    return HydraGNNModel(hydragnn, graphs, network(case))


def table(rows: list[Row]) -> Table:
    """Ratios of all types, a row for each mode."""
    types = list(dict.fromkeys(row.case.mpnn_type for row in rows))
    cells: list[list[Cell]] = []
    for mode in dict.fromkeys(row.case.mode for row in rows):
        ratios = {row.case.mpnn_type: row.over() for row in rows if row.case.mode == mode}
        cells.append([mode, *map(ratios.get, types)])
    cells.append(["target: at least", *(TARGETS[name] for name in types)])
    return Table(["", *types], cells, "training", "Our training steps over HydraGNN's")


def table_of_compiled(rows: list[Row]) -> Table:
    """Ratios of compiled over ordinary steps."""
    cells: list[list[Cell]] = [[row.case.name, row.over(COMPILED, OURS)] for row in rows]
    return Table(["", "ratio"], cells, "compiled", "Our compiled steps over ordinary ones")


def main(
    hydragnn: Checkout = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Types, of {', '.join(TARGETS)}.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Heads, forces, or both.")] = None,
    compiled: Annotated[bool, typer.Option("--compiled", help="Compiled steps too.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A step or two of each.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Race the networks and print tables; the exit status is 0 whatever they say."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rounds, seconds, batches = (1, 0.01, 2) if quick else (5, 1.0, 4)
    names = [OURS, *([COMPILED] if compiled else []), *([THEIRS] if hydragnn else [])]
    run = Run("models", ["numpy", "torch", "torch-geometric"], quick=quick)
    left_out = [] if hydragnn else ["HydraGNN, whose checkout --hydragnn would name"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(only or list(TARGETS), [mode] if mode else list(MODES)):
            say(case.name)
            store = write_alloys(Path(folder), batches * BATCH, case)
            rows.append(measure(case, store, rounds, seconds, hydragnn, names, left_out))
    missed = [r.case.name for r in rows if (r.over() or 99.0) < TARGETS[r.case.mpnn_type]]
    run.end(
        [table(rows), *([table_of_compiled(rows)] if compiled else [])],
        json,
        remarks=[
            *([f"targets missed: {'; '.join(missed)}"] if missed else []),
            *(f"not measured: {what}" for what in left_out),
        ],
        peers=peer_commit(hydragnn),
        settings={"rounds": rounds, "seconds": seconds, "batches": batches},
        details={row.case.name: row.training.seconds for row in rows},
    )


def _turn(work: Callable[[float], int], seconds: float) -> float:
    start = time.process_time()
    graphs = work(seconds)
    return (time.process_time() - start) / graphs


if __name__ == "__main__":
    typer.run(main)
