"""One shard open for reading, verified before ADIOS2 sees the bytes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.store.blocks import BLOCKS, INDEX, REST, Blocks
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.integrity import checksum, damaged
from hydragnn_flow.data.store.layout import lies_in_rows, read_counts
from hydragnn_flow.data.store.manifest import Shard


class ShardFile:
    """Reads rows of a shard; opened by ADIOS2 when first needed.

    Parameters
    ----------
    path
        The BP5 directory; its sizes and metadata have been verified.
    shard
        What the manifest says of it.
    """

    def __init__(self, path: Path, shard: Shard) -> None:
        self.path = path
        self._graphs = {split: size.graphs for split, size in shard.splits.items()}
        self._has_checksums = BLOCKS in shard.files
        self._verified: set[int] = set()
        self._in_rows: dict[str, bool] = {}

    def counts(self, split: str, key: str) -> NDArray[np.int64]:
        """Rows of a key in each graph of a split, [n_graphs]."""
        if self._graphs[split] == 0:
            return np.zeros(0, dtype=np.int64)
        self._verify_blocks(self.blocks.numbers(INDEX if key in ("x", "edge_index") else REST))
        if self._lies_in_rows(split, key):
            return np.full(self._graphs[split], self._file.shape(f"{split}/{key}")[1], np.int64)
        return read_counts(self._file, split, key)

    def bounds(self, split: str) -> NDArray[np.int64]:
        """First graph of each block of a split, and the end of the last, [n_blocks + 1]."""
        return self.blocks.bounds(split)

    def dtype(self, split: str, key: str) -> np.dtype[Any]:
        """Type in which a key is stored."""
        return self._file.dtype(f"{split}/{key}")

    def verify(self, split: str, first: int, last: int) -> None:
        """Compare the checksums of the blocks with graphs ``first`` to ``last - 1``, once each.

        Raises
        ------
        StoreError
            Where the bytes are not those that were written.
        """
        if self._has_checksums and last > first:
            starts = self.bounds(split)
            begin = int(np.searchsorted(starts, first, side="right")) - 1
            end = int(np.searchsorted(starts, last, side="left"))
            self._verify_blocks(self.blocks.numbers(split)[begin:end])

    def read_into(self, split: str, key: str, dim: int, start: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with rows of a key from ``start`` on along ``dim``, as they are stored."""
        name = f"{split}/{key}"
        if not self._lies_in_rows(split, key):
            self._file.read_into(name, dim, start, out)
            return
        n_edges = self._file.shape(name)[1]
        if out.size == 0:
            return
        stacked = np.empty((2 * (out.shape[1] // n_edges), n_edges), dtype=out.dtype)
        self._file.read_into(name, 0, 2 * (start // n_edges), stacked)
        out[:] = stacked.reshape(-1, 2, n_edges).transpose(1, 0, 2).reshape(2, -1)

    def close(self) -> None:
        """Let go of the file."""
        if "_file" in self.__dict__:
            self._file.close()
            del self._file

    @cached_property
    def blocks(self) -> Blocks:
        """What was written together; without a table, each split is one block."""
        if self._has_checksums:
            return Blocks.load(self.path / BLOCKS)
        blocks = Blocks()
        for split, graphs in self._graphs.items():
            blocks.add(split, graphs, 0, 0)
        return blocks

    @cached_property
    def _file(self) -> Bp5File:
        return Bp5File(self.path)

    def _lies_in_rows(self, split: str, key: str) -> bool:
        name = f"{split}/{key}"
        if name not in self._in_rows:
            self._in_rows[name] = lies_in_rows(self._file, split, key)
        return self._in_rows[name]

    def _verify_blocks(self, numbers: NDArray[np.int64]) -> None:
        for number in numbers.tolist():
            if self._has_checksums and number not in self._verified:
                begin, end = self.blocks.extent(number)
                payload = self.path / "data.0"
                if checksum(payload, begin, end) != self.blocks.crc32[number]:
                    raise damaged(
                        payload, "has changed since it was written (its checksum differs)"
                    )
                self._verified.add(number)
