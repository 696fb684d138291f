"""Random access to graphs on disk, each read directly into its batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import Column, bounds_of
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.shard_file import ReadInto


class DiskReader:
    """Reader of a split that takes each graph from its shard on disk when the graph is needed.

    Parameters
    ----------
    index
        Index of the split, which locates each graph's rows.
    """

    def __init__(self, index: SplitIndex) -> None:
        self._index = index
        # Keys of whole graphs, such as an energy or a cell.
        self._kept = {
            key: np.empty((len(index), index.rows(key).each, *described.shape), described.dtype)
            for key, described in index.keys.items()
            if index.rows(key).pointer is None
            and described.dim == 0
            and len(index) * index.rows(key).each * index.row_bytes(key) <= 64 << 20
        }
        self._visited = np.zeros(len(index.block_bounds) - 1, dtype=np.bool_)
        self._all_visited = False

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        index = self._index
        self._visit(graphs)
        runs = self._runs(graphs)
        values = {}
        for key, described in index.keys.items():
            rows = index.rows(key)
            if key in self._kept:
                values[key] = self._kept[key][graphs].reshape(-1, *described.shape)
                continue
            places = bounds_of(rows.counts(graphs))
            values[key] = out = np.empty(described.array_shape(int(places[-1])), described.dtype)
            self._fill(key, runs, out, places)
        return values

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        return (self.take(graphs) for graphs in selections)

    def columns(self, graphs: NDArray[np.int64]) -> dict[str, Column]:
        """Read the tensors of ``graphs`` (indices in the split), as one column for each key."""
        return {
            key: Column(values, self._index.keys[key].dim, self._index.rows(key).counts(graphs))
            for key, values in self.take(graphs).items()
        }

    def blocks(self) -> Iterator[dict[str, Column]]:
        """Yield the tensors of all graphs of the split as columns by key, about 4 MB at a time."""
        for first, last in itertools.pairwise(self._index.block_bounds.tolist()):
            yield self.columns(np.arange(first, last))

    def column(self, key: str) -> NDArray[Any]:
        described, rows = self._index.keys[key], self._index.rows(key)
        out = np.empty(described.array_shape(rows.start(len(self._index))), described.dtype)
        for first, last in itertools.pairwise(self._index.block_bounds.tolist()):
            rows_of_block = out.swapaxes(0, described.dim)[rows.start(first) : rows.start(last)]
            self.read_into(key, first, last, rows_of_block.swapaxes(0, described.dim))
        return out

    def read_into(self, key: str, first: int, last: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with the tensors ``key`` of the split's graphs ``first`` to ``last - 1``.

        The tensors are joined along the dimension of their rows.
        """
        graphs = np.arange(first, last)
        self._visit(graphs)
        self._read(key, graphs, out)

    def close(self) -> None:
        for shard in self._index.shards:
            shard.close()

    def _fill(self, key: str, runs: _Runs, out: NDArray[Any], places: NDArray[np.int64]) -> None:
        """Read a key's rows of every run to their positions in ``out``.

        ``places`` has the first row in ``out`` of each graph to read, then the number of rows.
        """
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
            run = lines[begin:end]
            if described.dim:
                run = run.swapaxes(0, described.dim)
            if dtype == out.dtype:
                read_into(run, start)
            else:
                narrow = np.empty(run.shape, dtype=dtype)
                read_into(narrow, start)
                run[...] = narrow

    def _runs(self, graphs: NDArray[np.int64]) -> _Runs:
        """Return runs of consecutive graphs of one shard, in the order in which they are stored."""
        shards = np.searchsorted(self._index.first, graphs, side="right") - 1
        breaks = np.flatnonzero((np.diff(graphs) != 1) | (np.diff(shards) != 0)) + 1
        begins = np.concatenate([[0], breaks])
        ends = np.concatenate([breaks, [len(graphs)]])
        order = np.argsort(graphs[begins], kind="stable")
        begins, ends = begins[order], ends[order]
        return _Runs(shards[begins], graphs[begins], begins, ends)

    def _visit(self, graphs: NDArray[np.int64]) -> None:
        """Verify the blocks of ``graphs`` that were not verified yet, and cache their small keys.

        Keys of whole graphs have a few bytes for each graph. One read per graph would cost far
        more, and reading more than a block at a time would read values that may never be used.
        """
        if self._all_visited:
            return
        bounds = self._index.block_bounds
        blocks = np.unique(np.searchsorted(bounds, graphs, side="right") - 1)
        for block in blocks[~self._visited[blocks]].tolist():
            self._index.verify(block)
            first, last = bounds[block : block + 2].tolist()
            for key, kept in self._kept.items():
                rows = kept[first:last].reshape(-1, *kept.shape[2:])
                self._read(key, np.arange(first, last), rows)
            self._visited[block] = True
        self._all_visited = bool(self._visited.all())

    def _read(self, key: str, graphs: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Fill ``out`` with a key's rows of consecutive graphs, whose blocks have been verified."""
        rows = self._index.rows(key)
        starts = rows.starts(np.append(graphs, graphs[-1] + 1))
        self._fill(key, self._runs(graphs), out, starts - starts[0])


@dataclass(frozen=True)
class _Runs:
    """Runs of consecutive graphs of one shard; each run is read at once."""

    shards: NDArray[np.int64]
    """Index of the shard of each run, [n_runs]."""
    graphs: NDArray[np.int64]
    """Index in the split of the first graph of each run, [n_runs]."""
    begins: NDArray[np.int64]
    """First position of each run among the graphs to read, [n_runs]."""
    ends: NDArray[np.int64]
    """Position after the last graph of each run among the graphs to read, [n_runs]."""
