"""What steps on a GPU and on several GCDs need: little padding, quick batches, equal work.

    python benchmarks/steps.py

Batches of 32 graphs are filled up to sizes chosen from one epoch, and their padding is counted in
the next four. Graphs are dealt to ranks, 32 to each, and edges compared in steps in which no graph
is above the mean of the ranks; streams have blocks of 100 graphs. Batches are put together and
filled as by the loader's thread, without pinning. For every network of ``models.py``, in fp64, loss
and gradient of a filled batch of 4 graphs are compared with those of the batch as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from itertools import chain, cycle, product
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer
from gpu_race.steps import seconds_of
from model_race.alloys import write_alloys
from model_race.networks import BATCH, MODES, TARGETS, cases
from model_race.sides import CPU, Ours
from results import Cell, Line, Number, Run, Table, line_table, say

from hydragnn_flow.training import recorded
from hydragnn_flow.training.filled import TRAINING, choose_sizes, rows_of
from hydragnn_flow.training.measures.losses import Counts
from hydragnn_flow.training.memory import keep_freed_memory
from hydragnn_flow.training.plan.batching import Budget, Ints, deal
from hydragnn_flow.training.plan.epochs import BLOCKS, Epoch
from hydragnn_flow.training.plan.sampling import InBlocks, Shuffled

ATOMS: dict[str, Any] = {
    "molecules": lambda rng, n: rng.normal(18, 3, n).clip(4, 29),  # as QM9's
    "crystals": lambda rng, n: rng.lognormal(3.0, 0.9, n).clip(1, 444),
    "surfaces": lambda rng, n: rng.integers(40, 240, n),
    "uniform": lambda rng, n: rng.integers(8, 65, n),
    "log-normal": lambda rng, n: rng.lognormal(3.0, 1.1, n).clip(2, 500),
}
"""Kind of graphs → numbers of atoms of so many; three are filled up, the others dealt."""


class Index:
    """Sizes of graphs, as a split has them: 15 to 60 edges of each atom, in molecules to all."""

    where: Any = str

    def __init__(self, kind: str, n: int) -> None:
        rng = np.random.default_rng(0)
        self.atoms: Ints = ATOMS[kind](rng, n).astype(np.int64)
        each = self.atoms - 1 if kind == "molecules" else rng.uniform(15, 60, n)
        self.edges: Ints = (self.atoms * each).astype(np.int64)
        self.atoms_of: Any = self.atoms.__getitem__
        self.edges_of: Any = self.edges.__getitem__

    def __len__(self) -> int:
        return len(self.atoms)


def padding(kind: str) -> Line:
    """Edges of filled batches over their own, in later epochs than sizes were chosen from."""
    index, edges = Index(kind, 250 * BATCH), []
    n, largest = len(index), int(index.atoms.max())
    epochs = (Epoch(index, Shuffled(n, 0), Budget(BATCH), n * k, 1, n_graphs=n) for k in range(5))
    first, *later = (rows_of(index, [s.order for w in e.windows() for s in w]) for e in epochs)
    sizes = choose_sizes(first, largest, 5 * len(first))
    for graphs, atoms, own in np.concatenate(later).tolist():
        fits = [size.edges for size in sizes if size.holds(graphs, atoms, own, largest)]
        edges.append((own, fits[0]) if fits else (0, 0))
    owns, padded = np.array(edges).T
    what = f"padded/own edges: {kind}, {100 * np.mean(owns > 0):.3g} % of batches"
    return Line(what, float(padded.sum() / owns.sum()), at_most=1.15)


def balance(kind: str, world: int, *, stream: bool) -> list[float]:
    """Largest over mean number of edges of the ranks, step by step."""
    index, found = Index(kind, BLOCKS * world * 100), list[float]()
    blocks = np.arange(0, len(index) + 1, 100) if stream else None
    order = Shuffled(len(index), 0) if blocks is None else InBlocks(blocks, 0)
    epoch = Epoch(index, order, Budget(BATCH, batches=world), 0, world, n_steps=40, blocks=blocks)
    for step in chain.from_iterable(epoch.windows()):
        edges = index.edges[step.order]
        loads = np.bincount(np.repeat(np.arange(world), np.diff(step.bounds)), edges, world)
        if edges.max() <= loads.mean():
            found.append(float(loads.max() / loads.mean()))
    return found


def dealt(worlds: list[int], details: dict[str, Any]) -> Table:
    """Balance for each kind of graphs and number of ranks: mean, least and largest of the steps."""
    rows: list[list[Cell]] = []
    for kind, stream in product([*ATOMS][3:], ("", ", streamed")):
        rows.append([kind + stream])
        for world in worlds:
            say(name := f"{kind}{stream}, {world} ranks")
            found = details[name] = balance(kind, world, stream=stream != "")
            number = Number(mean(found), "", min(found), max(found))
            rows[-1].append(f"{number} MISSED" if number.value > 1.05 else number)
    title = "Largest over mean edges of the ranks, target ≤ 1.05"
    return Table(["ranks", *(f"{world:,}" for world in worlds)], rows, "balance", title)


def filled(folder: Path, details: dict[str, Any]) -> list[Line]:
    """Time to make a filled batch, and how far losses and gradients differ from the batch's own."""
    found: dict[str, float] = details.setdefault("differences", {})
    with patch.dict(recorded.RECORDERS, cpu=recorded.Caller):
        for case in cases([*TARGETS], MODES):
            store = write_alloys(folder, 8 * BATCH, case)
            trainer: Any = Ours(store, case, 4, precision="fp64").trainer
            steps, batch = trainer.recorded, trainer.kept[0]
            steps._set(0.0, 0.0, Counts(4, 4 * 32))
            found[case.name] = steps._recorded(batch, recorded._Place(batch, CPU, 4 * 32))
        trainer = Ours(store, case, BATCH).trainer
    plan, read = cycle(trainer.plan(0)[:8]), trainer.train.batch
    fill = partial(trainer.recorded.filled, TRAINING)
    what = "32 graphs of 640 edges put together and filled"
    slot = timed(what, lambda: fill(read(next(plan).of_rank(0))), 0.6)
    return [slot, Line("difference of filled loss, gradient", max(found.values()), at_most=1e-6)]


def timed(what: str, work: Callable[[], object], at_most: float) -> Line:
    """CPU time of some work [ms], the median of seven turns after a first one."""
    times = [1e3 * seconds_of(work, CPU, 0.2) for _ in range(8)][1:]
    return Line(what, median(times), "ms", at_most=at_most, spread=(min(times), max(times)))


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure, and print tables; the exit status is 0 whatever they say."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as trainer processes do
    run, details = Run("steps", ["numpy", "torch"], quick=quick), dict[str, Any]()
    worlds = [2, 8] if quick else [2, 8, 64, 2048]
    work = partial(deal, Index("log-normal", 200 * worlds[-1]).edges, worlds[-1])
    lines = [*map(padding, [*ATOMS][:3]), timed(f"{worlds[-1]:,} × 200 graphs dealt", work, 50.0)]
    with tempfile.TemporaryDirectory() as folder:
        lines += filled(Path(folder), details)
    run.end([line_table(lines), dealt(worlds, details)], json, details=details)


if __name__ == "__main__":
    typer.run(main)
