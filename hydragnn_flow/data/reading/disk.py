"""Graphs from disk, at any place, each read straight into the batch it becomes part of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.index import SplitIndex

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

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        index = self._index
        runs = _runs(graphs)
        values = {}
        for key, described in index.keys.items():
            rows = index.rows(key)
            if rows.pointer is None and described.dim == 0 and self._small(key):
                values[key] = self._keep(key)[graphs].reshape(-1, *described.shape)
                continue
            bounds = np.zeros(len(graphs) + 1, dtype=np.int64)
            np.cumsum(rows.counts(graphs), out=bounds[1:])
            out = _empty(described.dtype, described.shape, described.dim, int(bounds[-1]))
            # In the order of the file, whatever the order of the batch.
            for begin, end in sorted(runs, key=lambda run: int(graphs[run[0]])):
                part = out.swapaxes(0, described.dim)[bounds[begin] : bounds[end]]
                first = int(graphs[begin])
                self.read_into(key, first, first + end - begin, part.swapaxes(0, described.dim))
            values[key] = out
        return values

    def stream(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        return (self.take(graphs) for graphs in parts)

    def column(self, key: str) -> NDArray[Any]:
        described, n_graphs = self._index.keys[key], len(self._index)
        n_rows = self._index.rows(key).start(n_graphs)
        out = _empty(described.dtype, described.shape, described.dim, n_rows)
        self.read_into(key, 0, n_graphs, out)
        return out

    def close(self) -> None:
        for shard in self._index.shards:
            shard.close()
        self._kept.clear()

    def read_into(self, key: str, first: int, last: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with the rows of graphs ``first`` to ``last - 1``, from as many shards."""
        index, dim = self._index, self._index.keys[key].dim
        rows = index.rows(key)
        start = rows.start(first)
        number = int(np.searchsorted(index.first, first, side="right")) - 1
        while first < last:
            shard, base = index.shards[number], int(index.first[number])
            until = min(last, int(index.first[number + 1]))
            begin, end = rows.start(first), rows.start(until)
            if end > begin:
                shard.verify(index.split, first - base, until - base)
                part = out.swapaxes(0, dim)[begin - start : end - start].swapaxes(0, dim)
                stored = shard.dtype(index.split, key)
                if stored == out.dtype:
                    shard.read_into(index.split, key, dim, begin - rows.start(base), part)
                else:
                    narrow = np.empty(part.shape, dtype=stored)
                    shard.read_into(index.split, key, dim, begin - rows.start(base), narrow)
                    part[...] = narrow
            first = until
            number += 1

    def _small(self, key: str) -> bool:
        each = self._index.rows(key).each
        return len(self._index) * each * self._index.row_bytes(key) <= _KEEP_BYTES

    def _keep(self, key: str) -> NDArray[Any]:
        """A key of whole graphs, [n_graphs, rows, ...]."""
        if key not in self._kept:
            column = self.column(key)
            self._kept[key] = column.reshape(len(self._index), -1, *column.shape[1:])
        return self._kept[key]


def _empty(dtype: str, shape: tuple[int, ...], dim: int, rows: int) -> NDArray[Any]:
    return np.empty((*shape[:dim], rows, *shape[dim:]), dtype=dtype)


def _runs(graphs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Begin and end, within ``graphs``, of every stretch of consecutive graphs."""
    breaks = np.flatnonzero(np.diff(graphs) != 1) + 1
    edges = [0, *breaks.tolist(), len(graphs)]
    return list(itertools.pairwise(edges))
