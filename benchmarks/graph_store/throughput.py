"""Rows of speed: graphs per CPU-second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from peers import Peer, check_equal
from peers.graph_by_graph import Hdf5, ListOfData, Lmdb
from peers.hydragnn import NAMES, HydraGNN, Way
from peers.memmap import Memmap
from results import Line
from torch_geometric.data import Batch

from graph_store.race import Contender, Epoch, Rates, by_index, race, reader
from graph_store.workspace import SPLIT, Workspace
from hydragnn_flow import GraphStore
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.training.batching import Budget
from hydragnn_flow.training.epochs import plan_epoch

_PRELOADED = NAMES["preload"]


class _Ours:
    """A split of a store, as a peer of the others."""

    def __init__(self, name: str, store: Path, mode: Literal["memory", "random", "stream"]) -> None:
        self.name = name
        self.split = GraphStore.open(store, mode=mode)[SPLIT]

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return self.split.batch(indices)


class _Stream(_Ours):
    """A split that reads ahead, even for a single batch."""

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        (batch,) = self.split.batches([indices])
        return batch


def memory(work: Workspace) -> list[Line]:
    """Batches of 128 random graphs from memory, with both data types."""
    ours = _Ours("memory, batches of 128", work.wide, "memory")
    narrow = _Ours("memory, compact dtypes", work.compact, "memory")
    limit = Memmap(work.folder / "memmap", work.graphs)
    peers = [*_hydragnn(work, "preload", "cache"), limit, ListOfData(work.graphs)]
    rates = _race(work, "memory", (_by_index(work, peer, 128) for peer in (ours, narrow, *peers)))
    targets = {_PRELOADED: 8.0, limit.name: 0.8}
    return [
        *_lines("memory", ours.name, peers, rates, targets),
        *_lines("memory", narrow.name, peers, rates, {}),
    ]


def random(work: Workspace) -> list[Line]:
    """Batches of 32 random graphs from disk."""
    ours = _Ours("random from disk, batches of 32", work.wide, "random")
    peers = [*_from_disk(work), *_hydragnn(work, "preload"), ListOfData(work.graphs)]
    rates = _race(work, "random", (_by_index(work, peer, 32) for peer in (ours, *peers)))
    return _lines("random", ours.name, peers, rates, {_PRELOADED: 3.0})


def stream(work: Workspace) -> list[Line]:
    """Batches of 128 graphs, in the order in which a stream shuffles them."""
    ours = _Stream("stream, batches of 128", work.wide, "stream")
    check_equal(ours, work.graphs[:8])

    def epoch(rng: np.random.Generator) -> Epoch:
        yield from ours.split.batches(stream_order(ours.split, 128, int(rng.integers(1 << 30))))

    peers = [*_hydragnn(work, "disk", "preload", "cache"), ListOfData(work.graphs)]
    turns = [reader(ours.name, epoch), *(_by_index(work, peer, 128) for peer in peers)]
    return _lines("stream", ours.name, peers, _race(work, "stream", turns), {_PRELOADED: 6.0})


def stream_order(split: GraphSplit, size: int, seed: int) -> list[NDArray[np.int64]]:
    """The batches of one epoch of a stream, for one process."""
    steps = plan_epoch(split, Budget(graphs=size), seed, 0, 1, split.block_bounds)
    return [step.of_rank(0) for step in steps]


def _from_disk(work: Workspace) -> list[Peer]:
    """All readers of graphs from disk that are installed."""
    peers = _hydragnn(work, "disk")
    for kind, file in ((Lmdb, "graphs.mdb"), (Hdf5, "graphs.h5")):
        work.say(f"writing {file}")
        try:
            peers.append(kind(work.folder / file, work.graphs))
        except ImportError as error:
            work.left_out.append(f"{kind.name}: {error.name} is not installed")
    return peers


def _hydragnn(work: Workspace, *ways: Way) -> list[Peer]:
    """HydraGNN's reader in some ways, where there is a checkout."""
    if work.hydragnn is None:
        return []
    (shard,) = work.wide.glob("*.bp")
    return [HydraGNN(work.hydragnn, shard, SPLIT, way) for way in ways]


def _by_index(work: Workspace, peer: Peer, size: int) -> Contender:
    check_equal(peer, work.graphs[:8])
    return by_index(peer.name, peer.batch, len(work.graphs), size)


def _race(work: Workspace, row: str, contenders: Iterable[Contender]) -> Rates:
    settings = work.settings
    rates = race(list(contenders), settings.rounds, settings.seconds, work.say)
    work.rates[row] = rates.rounds
    return rates


def _lines(
    row: str, ours: str, peers: Sequence[Peer], rates: Rates, targets: Mapping[str, float]
) -> list[Line]:
    return [
        Line(
            row,
            ours,
            rates.of(ours),
            "graphs/CPU-s",
            peer.name,
            rates.of(peer.name),
            rates.ratio(ours, peer.name),
            at_least=targets.get(peer.name),
            spread=rates.spread(ours, peer.name),
        )
        for peer in peers
    ]
