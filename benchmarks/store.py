"""Speed and memory of the GraphStore, beside HydraGNN's reader and the limit.

    python benchmarks/store.py --hydragnn PATH-OF-A-CHECKOUT

Every ratio is of two speeds measured in turns in this run, with a warm page cache and one thread,
per CPU-second of the process. *numpy.memmap* is the limit: mapped files without a store. HydraGNN's
``AdiosDataset`` has its arrays in memory (``preload``); it is not charged for MPI or a
``DataLoader``. Without a checkout of HydraGNN the other comparisons remain.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import psutil
import torch
import typer
from numpy.typing import NDArray
from peers import Peer, check_equal
from peers.hydragnn import HydraGNN
from peers.memmap import Memmap
from random_graphs import random_graphs, tiny_graphs
from results import Checkout, Line, Run, line_table, peer_commit, say
from torch_geometric.data import Batch, Data
from turns import in_fresh_process, take_turns

from hydragnn_flow import GraphStore, write_store
from hydragnn_flow.training.plan.batching import Budget
from hydragnn_flow.training.plan.epochs import Epoch as Plan
from hydragnn_flow.training.plan.sampling import InBlocks

SPLIT = "trainset"
_PROCESSES = 8
Epoch = Generator[Batch, None, None]


@dataclass(frozen=True)
class Settings:
    """Amount that is measured."""

    graphs: int = 10_000
    """Random graphs of the store that is read in batches."""
    rounds: int = 5
    """Turns of each contender."""
    seconds: float = 0.5
    """CPU time of a turn [s]."""
    large: int = 32_200
    """Random graphs that make 1 GB."""
    tiny: int = 1_000_000
    """Graphs of the store that is only opened."""


QUICK = Settings(graphs=500, rounds=2, seconds=0.05, large=1600, tiny=20_000)


class Ours:
    """A split of a store, as a peer of the others."""

    def __init__(self, name: str, store: Path, mode: Literal["memory", "random", "stream"]) -> None:
        self.name, self._streams = name, mode == "stream"
        self.split = GraphStore.open(store, mode=mode)[SPLIT]

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        if not self._streams:
            return self.split.batch(indices)
        (batch,) = self.split.batches([indices])  # reads ahead, even for a single one
        return batch


@dataclass
class Bench:
    """Stores to measure on, made when a row first asks for them."""

    folder: Path
    """Deleted after the run."""
    settings: Settings
    hydragnn: Path | None

    def __post_init__(self) -> None:
        self.rates: dict[str, dict[str, list[float]]] = {}

    @cached_property
    def graphs(self) -> list[Data]:
        """The random graphs themselves, each in memory of its own."""
        return [graph.clone() for graph in random_graphs(self.settings.graphs, seed=0)]

    @cached_property
    def small(self) -> Path:
        """The random graphs in HydraGNN's types."""
        return self.written("small.gs", self.graphs)

    def written(self, name: str, graphs: Iterable[Data]) -> Path:
        """A store of graphs."""
        say(f"writing {name}")
        write_store(self.folder / name, {SPLIT: graphs}, dtypes="hydragnn")
        return self.folder / name

    def memory(self) -> list[Line]:
        """Batches of 128 random graphs from memory."""
        ours = Ours("memory, batches of 128", self.small, "memory")
        limit: Peer = Memmap(self.folder / "memmap", self.graphs)
        return self._race(ours, {**self._theirs(8.0), limit: 0.8}, 128)

    def random(self) -> list[Line]:
        """Batches of 32 random graphs from disk."""
        ours = Ours("random from disk, batches of 32", self.small, "random")
        return self._race(ours, self._theirs(3.0), 32)

    def stream(self) -> list[Line]:
        """Batches of 128 graphs, in the order in which a stream shuffles them."""
        ours = Ours("stream, batches of 128", self.small, "stream")

        def epoch(rng: np.random.Generator) -> Epoch:
            seed, bounds = int(rng.integers(1 << 30)), ours.split.block_bounds
            order, size = InBlocks(bounds, seed), len(ours.split)
            plan = Plan(ours.split, order, Budget(graphs=128), 0, 1, size, None, bounds, seed)
            steps = (step.of_rank(0) for window in plan.windows() for step in window)
            yield from ours.split.batches(steps)

        return self._race(ours, self._theirs(6.0), 128, epoch)

    def pss(self) -> list[Line]:
        """Memory that processes of one node need for the same data together."""
        large = self.written("large.gs", random_graphs(self.settings.large, seed=2))
        data = sum(
            value.nbytes
            for graph in random_graphs(self.settings.large, seed=2)
            for value in graph.to_dict().values()
        )
        context, pipes = get_context("spawn"), []
        for _ in range(_PROCESSES):
            here, there = context.Pipe()
            process = context.Process(target=_read_everything, args=(there, self.small, large))
            process.start()
            pipes.append((here, process))
        totals = []
        for _ in ("before", "with all of it"):
            for here, _process in pipes:
                here.recv()
            totals.append(sum(psutil.Process(p.pid).memory_full_info().pss for _, p in pipes))
            for here, _process in pipes:
                here.send("go on")
        for _, process in pipes:
            process.join()
        value = (totals[1] - totals[0]) / data
        what = f"memory, {_PROCESSES} processes together"
        return [Line(what, value, "× the data", "a copy each", _PROCESSES, at_most=1.15)]

    def open(self) -> list[Line]:
        """Time until a large store is open and the size of every graph known."""
        store = self.written("tiny.gs", tiny_graphs(self.settings.tiny))
        seconds = sorted(in_fresh_process(_open, store) for _ in range(3))
        what, spread = f"opening {self.settings.tiny:,} graphs", (seconds[0], seconds[-1])
        return [Line(what, seconds[1], "s", at_most=1, spread=spread)]

    def _theirs(self, target: float) -> dict[Peer, float]:
        """HydraGNN's reader, where there is a checkout, and how often as fast we should be."""
        if self.hydragnn is None:
            return {}
        (shard,) = self.small.glob("*.bp")
        return {HydraGNN(self.hydragnn, shard, SPLIT): target}

    def _race(
        self,
        ours: Ours,
        peers: dict[Peer, float],
        size: int,
        epoch: Callable[[np.random.Generator], Epoch] | None = None,
    ) -> list[Line]:
        """Let all read batches of a size in turns; ours the given epochs if there are any."""
        rng, contenders = np.random.default_rng(0), {}
        for peer in (ours, *peers):
            check_equal(peer, self.graphs[:8])
            epochs = partial(_shuffled, peer, len(self.graphs), size)
            if epoch is not None and peer is ours:
                epochs = epoch  # type: ignore[assignment]  # of the same arguments
            contenders[peer.name] = partial(_turn, epochs, rng, self.settings.seconds)
        turns = take_turns(contenders, self.settings.rounds)
        self.rates[ours.name] = turns.seconds
        return [
            turns.line(ours.name, ours.name, peer.name, "graphs/CPU-s", at_least=target)
            for peer, target in peers.items()
        ]


ROWS = ("memory", "random", "stream", "pss", "open")


def main(
    hydragnn: Checkout = None,
    only: Annotated[list[str] | None, typer.Option(help=f"Rows of {', '.join(ROWS)}.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little, to see that it runs.")] = False,
    scratch: Annotated[
        Path, typer.Option(help="Directory on the disk to measure; takes 4 GB meanwhile.")
    ] = Path("runs"),
    json: Annotated[Path | None, typer.Option(help="Write the result to this file.")] = None,
) -> None:
    """Measure the GraphStore and print a table; the exit status is 0 whatever it says."""
    torch.set_num_threads(1)
    settings = QUICK if quick else Settings()
    run = Run("store", ["adios2", "numpy", "torch", "torch-geometric"], quick=quick)
    lines: list[Line] = []
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        bench = Bench(Path(folder), settings, hydragnn)
        for row in only or ROWS:
            lines += getattr(bench, row)()
    remarks = [] if hydragnn else ["not measured: HydraGNN, whose checkout --hydragnn would name"]
    run.end(
        [line_table(lines)],
        json,
        remarks=remarks,
        peers=peer_commit(hydragnn),
        settings=asdict(settings),
        details={"seconds for a graph": bench.rates},
    )


def _shuffled(peer: Peer, n_graphs: int, size: int, rng: np.random.Generator) -> Epoch:
    """Batches of random graphs."""
    order = rng.permutation(n_graphs)
    for first in range(0, n_graphs - size + 1, size):
        yield peer.batch(order[first : first + size])


def _turn(
    epoch: Callable[[np.random.Generator], Epoch], rng: np.random.Generator, seconds: float
) -> float:
    """CPU-seconds for a graph, of as many as can be read in a time."""
    graphs, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        # Closed within the time: a thread that reads ahead must not work in another's turn.
        with closing(epoch(rng)) as batches:
            for batch in batches:
                graphs += batch.num_graphs
                if time.process_time() - start >= seconds:
                    break
    return (time.process_time() - start) / graphs


def _read_everything(pipe: Connection, small: Path, store: Path) -> None:
    """Wait, read every graph of a store in memory mode, wait again with the store open."""
    torch.set_num_threads(1)
    kept = []
    for path in (small, store):
        kept = [GraphStore.open(path, mode="memory")]
        split = kept[0][SPLIT]
        for first in range(0, min(len(split), 64 if path == small else len(split)), 16):
            split.batch(np.arange(first, min(first + 16, len(split))))
        pipe.send("ready")
        pipe.recv()


def _open(store: Path) -> float:
    start = time.perf_counter()
    split = GraphStore.open(store, mode="stream")[SPLIT]
    assert len(split) == split.n_atoms.sum() // 2 == split.n_edges.sum() // 2
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
