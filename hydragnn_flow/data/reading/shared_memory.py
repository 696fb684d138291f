"""Arrays of a split in shared memory, one copy for all processes of a node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import GraphRows, SplitIndex, join_lines, lines_of
from hydragnn_flow.data.reading.node_cache import node_entry, shared_memory
from hydragnn_flow.data.store.manifest import Key


class MemoryReader:
    """Reader of a split whose arrays are in memory, possibly shared between processes.

    Parameters
    ----------
    index
        Index of the split, which locates each graph's rows.
    arrays
        Values by key, concatenated over all graphs, C-contiguous.
    release
        Function to call when the arrays are no longer needed.
    """

    def __init__(
        self,
        index: SplitIndex,
        arrays: Mapping[str, NDArray[Any]],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._index = index
        # Slicing a memmap runs Python code for each slice; a plain view of it does not.
        self._arrays = {key: np.asarray(array) for key, array in arrays.items()}
        self._lines = {
            key: lines_of(array, index.keys[key].dim) for key, array in self._arrays.items()
        }
        self._release = release

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        slices_of: dict[int, list[slice]] = {}
        values = {}
        for key, described in self._index.keys.items():
            rows, array = self._index.rows(key), self._arrays[key]
            if rows.pointer is None and described.dim == 0:
                per_graph = array.reshape(len(self._index), rows.each, *array.shape[1:])
                taken = per_graph[graphs].reshape(-1, *array.shape[1:])
                values[key] = taken.astype(described.dtype, copy=False)
                continue
            slices = slices_of.get(id(rows))
            if slices is None:
                slices = slices_of[id(rows)] = _slices(rows, graphs)
            pieces = [[line[piece] for piece in slices] for line in self._lines[key]]
            values[key] = join_lines(pieces, array.dtype, described)
        return values

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        return (self.take(graphs) for graphs in selections)

    def column(self, key: str) -> NDArray[Any]:
        return self._arrays[key].astype(self._index.keys[key].dtype, copy=False)

    def close(self) -> None:
        self._arrays.clear()
        self._lines.clear()
        self._release()


def in_shared_memory(index: SplitIndex, identity: str, scratch: Path | None) -> MemoryReader:
    """Return a reader of a split in memory that all processes of a node share.

    The first process of a node reads the split from disk, verifying every block. Other processes
    map the same pages. These stay as long as a process uses them, so that the next trial on the
    node finds the data there. The files of the store are closed again.

    Parameters
    ----------
    index
        Index of the split, which locates each graph's rows.
    identity
        Digest that identifies the store's data and keys.
    scratch
        Fast local directory to use if memory for files is short.

    Raises
    ------
    StoreError
        If the data are damaged or there is no room for them.
    """
    disk = DiskReader(index)
    directories = shared_memory()
    if scratch is not None:
        directories[-1] = scratch
    try:
        types = {key: _stored_type(index, key) for key in index.keys}
        totals = {key: index.rows(key).start(len(index)) for key in index.keys}
        size = sum(
            dtype.itemsize * int(np.prod(index.keys[key].array_shape(totals[key])))
            for key, dtype in types.items()
        )

        def fill(directory: Path) -> None:
            with ExitStack() as stack:
                files = {
                    key: stack.enter_context(
                        _ArrayFile(directory / f"{key}.npy", dtype, index.keys[key], totals[key])
                    )
                    for key, dtype in types.items()
                }
                for first, last in itertools.pairwise(index.block_bounds.tolist()):
                    for key, file in files.items():
                        begin, end = index.rows(key).start(first), index.rows(key).start(last)
                        block = np.empty(index.keys[key].array_shape(end - begin), types[key])
                        disk.read_into(key, first, last, block)
                        file.write(begin, block)

        entry = node_entry(f"{identity}-{index.split}", size, fill, directories)
    finally:
        disk.close()
    try:
        arrays = {key: _open(entry.path / f"{key}.npy") for key in index.keys}
        return MemoryReader(index, arrays, entry.release)
    except BaseException:
        entry.release()
        raise


def _stored_type(index: SplitIndex, key: str) -> np.dtype[Any]:
    """Return the narrowest data type that holds a key's values of all shards as stored."""
    types = {
        shard.dtype(index.split, key)
        for shard, first, last in zip(index.shards, index.first, index.first[1:], strict=False)
        if last > first and index.rows(key).start(int(last)) > index.rows(key).start(int(first))
    }
    return np.result_type(*types) if types else np.dtype(index.keys[key].dtype)


class _ArrayFile:
    """Writer of a key's ``.npy`` file, block by block, and context manager that closes the file.

    The file is not written through a memory map: on a full disk that would crash the process, and
    the pages would count as memory of the process.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], key: Key, rows: int) -> None:
        self._dim, self._rows = key.dim, rows
        self._row_bytes = dtype.itemsize * int(np.prod(key.shape[key.dim :]))
        self._file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": key.array_shape(rows),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()

    def __enter__(self) -> _ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, begin: int, rows: NDArray[Any]) -> None:
        """Write consecutive rows of the key, from row ``begin`` of the split on."""
        if rows.size == 0:
            return
        for number, line in enumerate(lines_of(rows, self._dim)):
            self._file.seek(self._begin + (number * self._rows + begin) * self._row_bytes)
            self._file.write(line)


def _open(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except ValueError:  # an empty array cannot be mapped
        array = np.load(path)
    return array


def _slices(rows: GraphRows, graphs: NDArray[np.int64]) -> list[slice]:
    starts = rows.starts(graphs)
    return list(map(slice, starts.tolist(), (starts + rows.counts(graphs)).tolist()))
