"""Reader of one shard, verified before ADIOS2 sees the bytes."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import bounds_of, concatenation_dim
from hydragnn_flow.data.store.bp5 import Bp5File, Bp5Variable
from hydragnn_flow.data.store.integrity import checksum, damaged
from hydragnn_flow.data.store.layout import (
    BLOCKS,
    INDEX,
    REST,
    BlockTable,
    lies_in_rows,
    read_counts,
)
from hydragnn_flow.data.store.manifest import Part, Shard

ReadInto = Callable[[NDArray[Any], int], None]
"""Function that fills an array with rows of a key, from a given row of the split on."""

_open: WeakKeyDictionary[ShardFile, Bp5File] = WeakKeyDictionary()
"""Open files by shard, in order of last use; a store may have more shards than can be open."""
_open_lock = threading.Lock()


class ShardFile:
    """Reader of the graphs in one shard (BP5 file of a store), which is opened when needed.

    Parameters
    ----------
    path
        Directory of the BP5 file; its sizes and metadata have been verified.
    shard
        Description of the shard in the manifest.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self.path = path
        self._graphs = {split: size.graphs for split, size in shard.splits.items()}
        self._branch_runs = shard.branch_runs
        self._has_blocks = BLOCKS in shard.files
        self._names, self._constants = shard.names, shard.constants
        self._parts, self._in_place = shard.parts, shard.is_in_place
        self._y_bounds: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._verified: set[int] = set()
        self._in_rows: dict[str, bool] = {}

    def counts(self, split: str, key: str) -> NDArray[np.int64]:
        """Return the number of rows of the tensor ``key`` in each graph of a split, [n_graphs].

        Only graphs of the split that are in this shard count.
        """
        if self._graphs[split] == 0:
            return np.zeros(0, dtype=np.int64)
        if self._has_blocks:
            for number in self._blocks.numbers(INDEX if key in ("x", "edge_index") else REST):
                self._verify(int(number))
        if self._lies_in_rows(split, key):
            return np.full(self._graphs[split], self._variable(split, key).shape[1], np.int64)
        return read_counts(self._file, split, self._names.get(key, key))

    def branch_runs(self, split: str) -> list[tuple[int, int]] | None:
        """Return the branches of a split's graphs in this shard, one pair for each run of graphs.

        A pair is the branch index (a branch is the output heads for one data set) and the number of
        consecutive graphs. The result is None if the branches are unknown.
        """
        return self._branch_runs.get(split) if self._graphs[split] else []

    def bounds(self, split: str) -> NDArray[np.int64] | None:
        """Return the boundaries of a split's blocks as indices of graphs, int64 [n_blocks + 1].

        A block is about 4 MB of consecutive graphs. The last element is the number of graphs.
        Graphs are counted from the first of the split in this shard. The result is None for a shard
        without a block table.
        """
        return self._blocks.bounds(split) if self._has_blocks else None

    def dtype(self, split: str, key: str) -> np.dtype[Any]:
        """Return the data type in which this shard stores the tensor ``key`` of a split."""
        if key in self._constants:
            return np.min_scalar_type(self._constants[key])
        return self._variable(split, key).dtype

    def verify(self, split: str, block: int) -> None:
        """Verify the checksum of one block (about 4 MB of graphs) of a split in this shard.

        ``block`` is the index of the block among those of the split.

        Raises
        ------
        StoreError
            If the bytes have changed.
        """
        self._verify(int(self._blocks.numbers(split)[block]))

    def reader(self, split: str, key: str) -> ReadInto:
        """Return a function that reads rows of the tensor ``key`` of a split into an array.

        Its arguments are the array and the first row to read, counted from the first row of the
        split in this shard.
        """
        if key in self._constants:
            return lambda out, start: out.fill(self._constants[key])
        variable = self._variable(split, key)
        if key in self._parts:
            return _from_y(variable, self._parts[key], *self._bounds_in_y(split))
        if key == "pbc" and self._names.get(key) == "cell":
            return _with_vector(variable)
        if self._lies_in_rows(split, key):
            return _from_rows(variable)
        if concatenation_dim(key, len(variable.shape)) == 0:
            return _of_any_shape(variable) if self._in_place else variable.read_into
        return _line_by_line(variable)

    def close(self) -> None:
        """Close the shard's file; later calls open it again."""
        with _open_lock:
            _open.pop(self, None)

    @cached_property
    def _blocks(self) -> BlockTable:
        return BlockTable.load(self.path / BLOCKS)

    @property
    def _file(self) -> Bp5File:
        with _open_lock:
            file = _open.pop(self, None) or Bp5File(self.path)
            _open[self] = file
            while len(_open) > _most_open():
                _open.pop(next(iter(_open)))
        return file

    def _variable(self, split: str, key: str) -> Bp5Variable:
        name = "y" if key in self._parts else self._names.get(key, key)
        return self._file.variable(f"{split}/{name}")

    def _bounds_in_y(self, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset of each graph in ``y``, and the index of its first atom.

        Both arrays are [n_graphs + 1]; their last element is the end.
        """
        if split not in self._y_bounds:
            self._y_bounds[split] = (
                bounds_of(read_counts(self._file, split, "y")),
                bounds_of(self.counts(split, "x")),
            )
        return self._y_bounds[split]

    def _lies_in_rows(self, split: str, key: str) -> bool:
        name = f"{split}/{key}"
        if name not in self._in_rows:
            self._in_rows[name] = lies_in_rows(self._file, split, self._names.get(key, key))
        return self._in_rows[name]

    def _verify(self, number: int) -> None:
        if number not in self._verified:
            begin, end = self._blocks.extent(number)
            payload = self.path / "data.0"
            if checksum(payload, begin, end) != self._blocks.crc32[number]:
                what = "has changed since it was written (its checksum differs)"
                raise damaged(payload, what, in_place=self._in_place)
            self._verified.add(number)


def _most_open() -> int:
    """Return the maximum number of open files: half of the system's limit for a process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft // 2, 16) if soft != resource.RLIM_INFINITY else 4096


def _of_any_shape(variable: Bp5Variable) -> ReadInto:
    """Return a reader of rows that may have another shape in the file, such as [] for [1]."""

    def read_into(out: NDArray[Any], start: int) -> None:
        variable.read_into(out.reshape(len(out), *variable.shape[1:]), start)

    return read_into


def _with_vector(cell: Bp5Variable) -> ReadInto:
    """Return a reader of ``pbc`` computed from cells: 1 where a lattice vector is not zero."""

    def read_into(out: NDArray[Any], start: int) -> None:
        vectors = np.empty((len(out), 3), dtype=cell.dtype)
        cell.read_into(vectors, start)
        out[:] = vectors.any(axis=1)

    return read_into


def _from_y(
    y: Bp5Variable, part: Part, bounds: NDArray[np.int64], atoms: NDArray[np.int64]
) -> ReadInto:
    """Return a reader of a target that is packed between others in the ``y`` of each graph.

    ``bounds`` has the offset of each graph in ``y``, ``atoms`` the index of its first atom, both
    [n_graphs + 1] with the end.
    """

    def read_into(out: NDArray[Any], start: int) -> None:
        first, last = start, start + len(out)
        if part.node:
            first, last = np.searchsorted(atoms, [first, last]).tolist()
        packed = np.empty((bounds[last] - bounds[first], *y.shape[1:]), dtype=y.dtype)
        y.read_into(packed, int(bounds[first]))
        sizes = np.diff(atoms[first : last + 1])
        lengths = part.width * (sizes if part.node else np.ones_like(sizes))
        begins = bounds[first:last] - bounds[first] + part.after + part.after_each * sizes
        ends = np.cumsum(lengths)
        places = np.repeat(begins - (ends - lengths), lengths) + np.arange(ends[-1])
        out[...] = packed.reshape(-1)[places].reshape(out.shape)

    return read_into


def _line_by_line(variable: Bp5Variable) -> ReadInto:
    """Return a reader of graphs stored side by side, with one read for each row of the array."""

    def read_into(out: NDArray[Any], start: int) -> None:
        for row, line in enumerate(out):
            variable.read_into(line, start, row)

    return read_into


def _from_rows(variable: Bp5Variable) -> ReadInto:
    """Return a reader of an ``edge_index`` stored as [2 n_graphs, n_edges], as HydraGNN does.

    Its graphs have equally many edges and are below one another.
    """
    n_edges = variable.shape[1]

    def read_into(out: NDArray[Any], start: int) -> None:
        if out.size == 0:
            return
        stacked = np.empty((2 * (out.shape[1] // n_edges), n_edges), dtype=out.dtype)
        variable.read_into(stacked, 2 * (start // n_edges))
        out[:] = stacked.reshape(-1, 2, n_edges).transpose(1, 0, 2).reshape(2, -1)

    return read_into
