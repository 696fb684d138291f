"""Index of a split: positions of each graph's rows, without values; protocol of readers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import bounds_of
from hydragnn_flow.data.reading.shard_file import ShardFile
from hydragnn_flow.data.store.manifest import Key


@dataclass(frozen=True)
class GraphRows:
    """Positions of each graph's rows in a tensor that is joined over all graphs of a split.

    Tensors with the same number of rows in each graph, such as all those of atoms, share one
    object.
    """

    pointer: NDArray[np.int64] | None
    """Index of the first row of each graph, then the number of rows, [n_graphs + 1]; None if all
    graphs have equally many rows."""
    each: int = 0
    """Number of rows of each graph, if all graphs have equally many."""

    def starts(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the first row of each of ``graphs`` in the joined tensor, [n].

        ``graphs`` has indices of graphs in the split, [n].
        """
        return graphs * self.each if self.pointer is None else self.pointer[graphs]

    def counts(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows of each of ``graphs`` (indices in the split), int64 [n]."""
        if self.pointer is None:
            return np.full(len(graphs), self.each, dtype=np.int64)
        counts: NDArray[np.int64] = self.pointer[graphs + 1] - self.pointer[graphs]
        return counts

    def start(self, graph: int) -> int:
        """Return the index of a graph's first row in the joined tensor.

        ``graph`` is the index of the graph in the split; for n_graphs, the result is the number of
        all rows.
        """
        return graph * self.each if self.pointer is None else int(self.pointer[graph])


class SplitIndex:
    """Index of a split: positions of each graph's rows in the shards (BP5 files) of a store.

    Parameters
    ----------
    split
        Name of the split.
    keys
        Description of each key to read, by name; ``x`` and ``edge_index`` are needed.
    shards
        Files of the shards, in order.
    graphs
        Number of the split's graphs in each shard.
    """

    def __init__(
        self,
        split: str,
        keys: Mapping[str, Key],
        shards: Sequence[ShardFile],
        graphs: Sequence[int],
    ) -> None:
        self.split = split
        self.keys = dict(keys)
        self.shards = list(shards)
        self.first = bounds_of(np.array(graphs, dtype=np.int64))
        """Index of the first graph of each shard, then the number of graphs, [n_shards + 1]."""
        self._pointers: dict[str, GraphRows] = {}

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def branch_runs(self) -> list[tuple[int, int]] | None:
        """Pairs of branch index and number of graphs, one for each run of graphs of one branch.

        A branch is the set of a network's output heads for one data set. The result is None if the
        description of a shard does not have its branches.
        """
        runs = [shard.branch_runs(self.split) for shard in self.shards]
        known = [of_shard for of_shard in runs if of_shard is not None]
        return None if len(known) < len(runs) else [run for of_shard in known for run in of_shard]

    @cached_property
    def atoms(self) -> GraphRows:
        """Positions of each graph's atoms in tensors with one row for each atom of the split."""
        return self._ragged("x")

    @cached_property
    def edges(self) -> GraphRows:
        """Positions of each graph's edges in tensors with one row for each edge of the split."""
        return self._ragged("edge_index")

    def rows(self, key: str) -> GraphRows:
        """Return the positions of each graph's rows in the tensor ``key`` of the whole split.

        The same object is returned for all tensors with one row per atom, and another one for all
        tensors with one row per edge.
        """
        described = self.keys[key]
        if described.node:
            return self.atoms
        if described.edge:
            return self.edges
        if key not in self._pointers:
            alike = described.rows
            self._pointers[key] = self._ragged(key) if alike is None else GraphRows(None, alike)
        return self._pointers[key]

    @cached_property
    def block_bounds(self) -> NDArray[np.int64]:
        """Boundaries of the split's blocks, as indices of graphs, int64 [n_blocks + 1].

        A block is about 4 MB of consecutive graphs. Element ``i`` is the first graph of block
        ``i``; the last element is the number of graphs.
        """
        return np.array([*(first for first, *_ in self._blocks), len(self)], dtype=np.int64)

    def verify(self, block: int) -> None:
        """Verify the checksum of one block (about 4 MB of graphs) of the split, if it has one.

        ``block`` is the index of the block in the split.

        Raises
        ------
        StoreError
            If the bytes have changed.
        """
        _, shard, number = self._blocks[block]
        if number is not None:
            self.shards[shard].verify(self.split, number)

    @cached_property
    def _blocks(self) -> list[tuple[int, int, int | None]]:
        """Index of the first graph, of the shard, and of the block in it, for each block.

        The last index counts the split's blocks in the shard; it is None if the shard has no block
        table.
        """
        blocks: list[tuple[int, int, int | None]] = []
        for number, shard in enumerate(self.shards):
            first, last = self.first[number : number + 2].tolist()
            if first == last:
                continue
            bounds = shard.bounds(self.split)
            if bounds is None:  # a HydraGNN file has no blocks that suit a stream
                starts = self._cut(first, last) + first
                blocks += [(start, number, None) for start in starts.tolist()]
            else:
                starts = bounds[:-1] + first
                blocks += [(start, number, k) for k, start in enumerate(starts.tolist())]
        return blocks

    def row_bytes(self, key: str) -> int:
        """Return the size in memory of one row of the tensor ``key`` [bytes]."""
        described = self.keys[key]
        return int(np.dtype(described.dtype).itemsize * np.prod(described.shape, dtype=np.int64))

    def graph_bytes(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the size in memory of each of ``graphs`` [bytes], int64 [n].

        The size includes all keys of the index. ``graphs`` has indices in the split, [n].
        """
        size = np.zeros(len(graphs), dtype=np.int64)
        for key in self.keys:
            size += self.rows(key).counts(graphs) * self.row_bytes(key)
        return size

    def _ragged(self, key: str) -> GraphRows:
        counts = [shard.counts(self.split, key) for shard in self.shards]
        return GraphRows(bounds_of(np.concatenate(counts)))

    def _cut(self, first: int, last: int) -> NDArray[np.int64]:
        """Cut graphs ``first`` to ``last - 1`` into blocks of about 4 MB.

        Return the first graph of each block, counted from ``first``, [n_blocks].
        """
        number = np.cumsum(self.graph_bytes(np.arange(first, last))) // (4 << 20)
        return np.concatenate([[0], np.flatnonzero(np.diff(number)) + 1]).astype(np.int64)


class Reader(Protocol):
    """Protocol of readers of one split: from memory, from disk, or as a stream."""

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the tensors of ``graphs`` (indices in the split) by key, joined in new arrays."""

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the joined tensors by key for each selection, an array of indices of graphs.

        The indices are those in the split. The reader may read ahead.
        """

    def column(self, key: str) -> NDArray[Any]:
        """Return the tensor ``key`` of all graphs of the split, joined in one array."""

    def close(self) -> None:
        """Release the files and the memory that the reader holds."""


Lines = list[memoryview]
"""Contiguous pieces of an array, within which graphs follow one another."""


def lines_of(array: NDArray[Any], dim: int) -> Lines:
    """Cut an array into lines: contiguous pieces in which the graphs follow one another.

    ``dim`` is the dimension along which graphs are concatenated. If it is 0, the whole array is the
    only line. Otherwise it is the last dimension, and each row along it is a line.
    """
    if dim == 0:
        return [array.data]
    lines = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return [line.data for line in lines]


def join_lines(pieces: list[list[memoryview]], dtype: np.dtype[Any], key: Key) -> NDArray[Any]:
    """Join pieces of arrays into one new array, in the data type and shape of a key.

    A line is a contiguous piece of an array, as :func:`lines_of` cuts it.

    Parameters
    ----------
    pieces
        Pieces of each line of the result, in order.
    dtype
        Data type of the pieces.
    key
        Description of the key whose values are joined.
    """
    # One copy per piece; NumPy's concatenate looks up a transfer function for each and takes a
    # third longer.
    joined = bytearray().join([piece for line in pieces for piece in line])
    values: NDArray[Any] = np.frombuffer(joined, dtype=dtype)
    rows = values.size // max(math.prod(key.shape), 1)
    return values.reshape(key.array_shape(rows)).astype(key.dtype, copy=False)
