"""Graphs from disk, at any place, each read straight into the batch it becomes part of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard import ReadInto
from hydragnn_flow.data.store.manifest import Key

# What whole graphs have (energy, cell) is a few bytes each; one read per graph would cost far more.
_KEEP_BYTES = 64 << 20


class DiskReader:
    """Reads a split from its shards.

    Parameters
    ----------
    index
        Where each graph's rows are.
    """

    def __init__(self, index: SplitIndex) -> None:
        self._index = index
        self._kept: dict[str, NDArray[Any]] = {}
        self._verified = np.zeros(len(index.block_bounds) - 1, dtype=np.bool_)
        self._all_verified = False

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        index = self._index
        self._verify(graphs)
        runs = self._runs(graphs)
        values = {}
        for key, described in index.keys.items():
            rows = index.rows(key)
            if rows.pointer is None and described.dim == 0 and self._small(key):
                values[key] = self._keep(key)[graphs].reshape(-1, *described.shape)
                continue
            places = np.zeros(len(graphs) + 1, dtype=np.int64)
            np.cumsum(rows.counts(graphs), out=places[1:])
            values[key] = out = _empty(described, int(places[-1]))
            self._fill(key, runs, out, places)
        return values

    def stream(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        return (self.take(graphs) for graphs in parts)

    def column(self, key: str) -> NDArray[Any]:
        n_graphs = len(self._index)
        out = _empty(self._index.keys[key], self._index.rows(key).start(n_graphs))
        bounds = self._index.block_bounds
        for first, last in itertools.pairwise(bounds.tolist()):
            begin, end = self._index.rows(key).start(first), self._index.rows(key).start(last)
            dim = self._index.keys[key].dim
            self.read_into(key, first, last, out.swapaxes(0, dim)[begin:end].swapaxes(0, dim))
        return out

    def read_into(self, key: str, first: int, last: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with the rows of graphs ``first`` to ``last - 1``."""
        graphs = np.arange(first, last)
        self._verify(graphs)
        rows = self._index.rows(key)
        places = rows.starts(np.arange(first, last + 1)) - rows.start(first)
        self._fill(key, self._runs(graphs), out, places)

    def close(self) -> None:
        for shard in self._index.shards:
            shard.close()
        self._kept.clear()

    def _fill(self, key: str, runs: _Runs, out: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Read a key's rows of every run to their places in ``out``."""
        index, described = self._index, self._index.keys[key]
        rows = index.rows(key)
        starts = rows.starts(runs.graphs) - rows.starts(index.first[runs.shards])
        begins, ends = places[runs.begins].tolist(), places[runs.ends].tolist()
        readers: dict[int, tuple[ReadInto, np.dtype[Any]]] = {}
        lines = out if described.dim == 0 else out.swapaxes(0, described.dim)
        for number, start, begin, end in zip(
            runs.shards.tolist(), starts.tolist(), begins, ends, strict=True
        ):
            if begin == end:
                continue
            if number not in readers:
                shard = index.shards[number]
                readers[number] = (
                    shard.reader(index.split, key),
                    shard.dtype(index.split, key),
                )
            read_into, dtype = readers[number]
            part = lines[begin:end]
            if described.dim:
                part = part.swapaxes(0, described.dim)
            if dtype == out.dtype:
                read_into(part, start)
            else:
                narrow = np.empty(part.shape, dtype=dtype)
                read_into(narrow, start)
                part[...] = narrow

    def _runs(self, graphs: NDArray[np.int64]) -> _Runs:
        """Stretches of consecutive graphs of one shard, in the order of the files."""
        shards = np.searchsorted(self._index.first, graphs, side="right") - 1
        breaks = np.flatnonzero((np.diff(graphs) != 1) | (np.diff(shards) != 0)) + 1
        begins = np.concatenate([[0], breaks])
        ends = np.concatenate([breaks, [len(graphs)]])
        order = np.argsort(graphs[begins], kind="stable")
        begins, ends = begins[order], ends[order]
        return _Runs(shards[begins], graphs[begins], begins, ends)

    def _verify(self, graphs: NDArray[np.int64]) -> None:
        """Verify the blocks of some graphs, each before it is first read."""
        if self._all_verified:
            return
        blocks = np.unique(np.searchsorted(self._index.block_bounds, graphs, side="right") - 1)
        for block in blocks[~self._verified[blocks]].tolist():
            self._index.verify(block)
            self._verified[block] = True
        self._all_verified = bool(self._verified.all())

    def _small(self, key: str) -> bool:
        each = self._index.rows(key).each
        return len(self._index) * each * self._index.row_bytes(key) <= _KEEP_BYTES

    def _keep(self, key: str) -> NDArray[Any]:
        """A key of whole graphs, [n_graphs, rows, ...]."""
        if key not in self._kept:
            column = self.column(key)
            self._kept[key] = column.reshape(len(self._index), -1, *column.shape[1:])
        return self._kept[key]


@dataclass(frozen=True)
class _Runs:
    """Stretches of consecutive graphs."""

    shards: NDArray[np.int64]
    """Number of the shard of each."""
    graphs: NDArray[np.int64]
    """First graph of each."""
    begins: NDArray[np.int64]
    """Where each begins among the graphs that are wanted."""
    ends: NDArray[np.int64]
    """Where each ends among them."""


def _empty(key: Key, rows: int) -> NDArray[Any]:
    return np.empty((*key.shape[: key.dim], rows, *key.shape[key.dim :]), dtype=key.dtype)
