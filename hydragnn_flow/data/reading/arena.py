"""A split's arrays in memory, one copy for all processes of a node."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.reading.memory import MemoryReader
from hydragnn_flow.data.reading.node_cache import node_entry, shared_memory


def share_split(index: SplitIndex, identity: str, scratch: Path | None) -> MemoryReader:
    """Map a split into memory, reading it from disk where no process of this node has yet.

    Every block is verified before it is read. Processes map the same pages, which stay as long as
    one of them uses them; so trials that follow each other on a node find the data there.

    Parameters
    ----------
    index
        Where each graph's rows are.
    identity
        What no other data have.
    scratch
        Fast local directory to use where memory for files is short.

    Raises
    ------
    StoreError
        Where the data are damaged or there is no room for them.
    """
    layout = {key: _stored(index, key) for key in index.keys}
    size = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in layout.values())
    directories = shared_memory()
    if scratch is not None:
        directories[-1] = scratch

    def fill(directory: Path) -> None:
        disk = DiskReader(index)
        arrays = {
            key: _create(directory / f"{key}.npy", dtype, shape)
            for key, (dtype, shape) in layout.items()
        }
        bounds = index.block_bounds.tolist()
        for first, last in itertools.pairwise(bounds):
            for key, array in arrays.items():
                rows, dim = index.rows(key), index.keys[key].dim
                part = array.swapaxes(0, dim)[rows.start(first) : rows.start(last)]
                disk.read_into(key, first, last, part.swapaxes(0, dim))

    entry = node_entry(f"{identity}-{index.split}", size, fill, directories)
    arrays = {key: _open(entry.path / f"{key}.npy") for key in index.keys}
    return MemoryReader(index, arrays, entry.release)


def _stored(index: SplitIndex, key: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of a key's values of all graphs, as narrow as the shards have them."""
    described = index.keys[key]
    types = {
        shard.dtype(index.split, key)
        for shard, first, last in zip(index.shards, index.first, index.first[1:], strict=False)
        if last > first and index.rows(key).start(int(last)) > index.rows(key).start(int(first))
    }
    dtype = np.result_type(*types) if types else np.dtype(described.dtype)
    n_rows = index.rows(key).start(len(index))
    return dtype, (*described.shape[: described.dim], n_rows, *described.shape[described.dim :])


def _create(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if 0 in shape:
        nothing = np.empty(shape, dtype=dtype)
        np.save(path, nothing)
        return nothing
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    # Without it a full disk would show as a bus error in the middle of writing.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _open(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except ValueError:  # nothing in it that could be mapped
        array = np.load(path)
    return array
