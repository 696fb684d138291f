"""Training steps of our networks beside HydraGNN's.

    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT
    python benchmarks/models.py --hydragnn PATH-OF-A-CHECKOUT --only PAINN --mode potential

Both sides get the same JSON and the same batches, in memory, and take turns in one process with
one thread: the ratio is of graphs per CPU-second. A training step is loss, gradient and update:
HydraGNN's by its own ``train``, called once for all steps of a turn, ours as the Trainer takes it,
with clipping of the gradient, averaging of the weights and looks at the loss. HydraGNN is spared
the DDP in which its examples put a model for one process too, and the neighbour search of its
SchNet. Memory is what building a network and two steps add, each side in a process of its own.

The mode `attention` is a potential of clusters with HydraGNN's EquivariantTransformer, of one head.
Without a checkout of HydraGNN our own figures remain; `benchmarks/README.md` says how to get one.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from model_race.alloys import write_alloys
from model_race.networks import BATCH, MODES, TARGETS, Case, Mode, cases, network
from model_race.sides import Ours, Side
from peers.hydragnn_model import HydraGNNModel
from peers.hydragnn_package import CannotRun
from results import Cell, Run, Table, peer_commit, say_on
from turns import CannotMeasure, Turns, in_fresh_process, memory_added, take_turns

from hydragnn_flow import GraphStore, InputError

OURS, THEIRS = "ours", "HydraGNN"
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h


@dataclass(frozen=True)
class Row:
    """Both sides of a case, those that could be measured."""

    case: Case
    training: Turns
    """CPU-seconds for a graph."""
    inference: Turns
    parameters: dict[str, int]
    memory: dict[str, float]
    """Resident memory added [MB]."""

    @property
    def missed(self) -> str:
        """The targets that are missed."""
        if THEIRS not in self.training.seconds:
            return ""
        slow = self.training.ratio(OURS, THEIRS).value < TARGETS[self.case.mpnn_type]
        large = self.memory.get(OURS, 0.0) > self.memory.get(THEIRS, float("inf"))
        return ", ".join(["speed"] * slow + ["memory"] * large)


def measure(
    case: Case, store: Path, rounds: int, seconds: float, hydragnn: Path | None, left_out: list[str]
) -> Row:
    """Measure whichever sides there are."""
    sides: dict[str, Side] = {}
    memory: dict[str, float] = {}
    for name in [OURS, THEIRS] if hydragnn else [OURS]:
        try:
            sides[name] = build(name, store, case, case.batch_size, hydragnn)
            memory[name] = in_fresh_process(peak_memory, name, store, case, hydragnn)
        except (CannotMeasure, CannotRun, InputError) as error:
            left_out.append(f"{case.name}, {name}: {error}")

    def turns(work: dict[str, Callable[[float], int]]) -> Turns:
        contenders = {name: partial(_turn, one, seconds) for name, one in work.items()}
        return take_turns(contenders, rounds, say_on())

    return Row(
        case,
        turns({name: side.train for name, side in sides.items()}),
        turns({name: side.predict for name, side in sides.items()}),
        {name: side.parameters for name, side in sides.items()},
        memory,
    )


def build(name: str, store: Path, case: Case, batch_size: int, hydragnn: Path | None) -> Side:
    """Make one side ready."""
    if name == OURS or hydragnn is None:
        return Ours(store, case, batch_size)
    split = GraphStore.open(store)["trainset"]
    graphs = [split[index] for index in range(len(split))]
    return HydraGNNModel(hydragnn, graphs, network(case, batch_size))


def peak_memory(name: str, store: Path, case: Case, hydragnn: Path | None) -> float:
    """Peak memory that building one side and two training steps add to a process [MB].

    A step of one graph goes before, so that imports and the libraries' buffers do not count.
    """
    build(name, store, case, 1, hydragnn).train(0)

    def work() -> Side:
        side = build(name, store, case, case.batch_size, hydragnn)
        side.train(0)
        side.train(0)
        return side

    return memory_added(work)


def tables(rows: list[Row]) -> list[Table]:
    """Ratios of all types, and a table of figures for each mode."""
    types = list(dict.fromkeys(row.case.mpnn_type for row in rows))
    modes = [mode for mode in MODES if any(row.case.mode == mode for row in rows)]
    summary: list[list[Cell]] = []
    for mode in modes:
        of_mode = {row.case.mpnn_type: row for row in rows if row.case.mode == mode}
        both = {n for n, row in of_mode.items() if THEIRS in row.training.seconds}
        ratios = {n: of_mode[n].training.ratio(OURS, THEIRS).value for n in both}
        summary.append([mode, *(ratios.get(name) for name in types)])
    summary.append(["target: at least", *(TARGETS[name] for name in types)])
    columns = ["type"]
    for what in ("training [graphs/CPU-s]", "inference [graphs/CPU-s]", "memory [MB]", "weights"):
        columns += [what, THEIRS]
    return [
        Table(["", *types], summary, "training", "Our training steps over HydraGNN's"),
        *(
            Table(columns, [_figures(row) for row in rows if row.case.mode == mode], mode, mode)
            for mode in modes
        ),
    ]


def _figures(row: Row) -> list[Cell]:
    cells: list[Cell] = [row.case.mpnn_type]
    for turns in (row.training, row.inference):
        cells += [turns.rate(name) if name in turns.seconds else None for name in (OURS, THEIRS)]
    cells += [row.memory.get(OURS), row.memory.get(THEIRS)]
    return [*cells, row.parameters.get(OURS), row.parameters.get(THEIRS)]


def remarks(rows: list[Row]) -> list[str]:
    """Sentences about missed targets and slower predictions."""
    wrong = [f"{row.case.name} ({row.missed})" for row in rows if row.missed]
    slower = [
        row.case.name
        for row in rows
        if THEIRS in row.inference.seconds and row.inference.ratio(OURS, THEIRS).value < 1
    ]
    found = {"targets missed": wrong, "predictions slower than HydraGNN's": slower}
    return [f"{what}: {'; '.join(names)}" for what, names in found.items() if names]


def main(
    hydragnn: Annotated[
        Path | None, typer.Option(help="Checkout of HydraGNN to compare with.", exists=True)
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Types, of {', '.join(TARGETS)}.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Heads, forces, attention; or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A step or two of each.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Race the networks and print tables; the exit status is 0 whatever they say."""
    torch.set_num_threads(1)
    _keep_freed_memory()
    rounds, seconds, batches = (1, 0.01, 2) if quick else (5, 1.0, 4)
    run = Run("models", ["numpy", "torch", "torch-geometric"], quick=quick)
    left_out = [] if hydragnn else ["HydraGNN, whose checkout --hydragnn would name"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(only or list(TARGETS), [mode] if mode else list(MODES)):
            say_on()(case.name)
            store = write_alloys(Path(folder), batches * BATCH, case)
            rows.append(measure(case, store, rounds, seconds, hydragnn, left_out))
    run.end(
        tables(rows),
        json,
        remarks=[*remarks(rows), *(f"not measured: {what}" for what in left_out)],
        peers=peer_commit(hydragnn),
        settings={"rounds": rounds, "seconds": seconds, "batches": batches},
        details=[_details(row) for row in rows],
    )


def _details(row: Row) -> dict[str, Any]:
    return {
        "case": row.case.name,
        "training, seconds for a graph": row.training.seconds,
        "inference, seconds for a graph": row.inference.seconds,
    }


def _turn(work: Callable[[float], int], seconds: float) -> float:
    start = time.process_time()
    graphs = work(seconds)
    return (time.process_time() - start) / graphs


def _keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next allocation.

    By default glibc returns large blocks to the system and gets them back as empty pages, in every
    step anew or not at all, as chance has laid out the heap. That took up to a third of a step of
    either side, most often of HydraGNN's, and made its speed differ from run to run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # of glibc
        mallopt(_TRIM_THRESHOLD, -1)
        mallopt(_MMAP_MAX, 0)


if __name__ == "__main__":
    typer.run(main)
