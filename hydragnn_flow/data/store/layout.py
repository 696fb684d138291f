"""Layout of a split inside a BP5 file as HydraGNN has it, and the table of a shard's blocks.

A block of a shard is some 4 MB of graphs that were written together. The table has the checksum of
each block, so that only the blocks to be read have to be verified, not the whole shard. ADIOS2
itself knows only the blocks of single variables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import bounds_of, concatenation_dim
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.errors import StoreError


def read_counts(file: Bp5File, split: str, key: str) -> NDArray[np.int64]:
    """Read the number of rows of the tensor ``key`` in each graph of a split, int64 [n_graphs].

    The values of the tensor are not read.

    Raises
    ------
    StoreError
        If graphs are not consecutive, or their numbers of rows do not add up.
    """
    name = f"{split}/{key}"
    counts: NDArray[np.int64] = file.read(f"{name}/variable_count").astype(np.int64)
    offsets = file.read(f"{name}/variable_offset")
    if (counts < 0).any() or not np.array_equal(offsets, np.cumsum(counts) - counts):
        raise StoreError(
            f"{file.path}: the graphs of {name} do not follow one another; "
            "write the file again from one process"
        )
    rows = file.variable(name).shape[stored_dim(file, split, key)]
    if counts.sum() != rows:
        raise StoreError(
            f"{file.path}: {name} has {rows} rows where its variable_count says {counts.sum()}; "
            "write the file again"
        )
    return counts


def stored_dim(file: Bp5File, split: str, key: str) -> int:
    """Return the dimension along which a file joins the tensors ``key`` of a split's graphs."""
    return int(file.attribute(f"{split}/{key}/variable_dim")[0])


def lies_in_rows(file: Bp5File, split: str, key: str) -> bool:
    """Return True if ``key`` is an ``edge_index`` that is stored as [2 n_graphs, n_edges].

    Its graphs then lie below one another instead of side by side. HydraGNN concatenates along the
    dimension that varies, and along the first if none does: in a split whose graphs all have e
    edges the array is [2 n_graphs, e], not [2, sum of edges].

    Raises
    ------
    StoreError
        If another key is concatenated along a dimension that batches do not join.
    """
    name = f"{split}/{key}"
    dim = stored_dim(file, split, key)
    if dim == concatenation_dim(key, len(file.variable(name).shape)):
        return False
    if key == "edge_index" and dim == 0:
        return True
    raise StoreError(
        f"{file.path}: {name} varies along dimension {dim}, which cannot be joined to batches; "
        "store it with the varying dimension first"
    )


BLOCKS = "blocks.npz"
"""Name of the file with the block table in a shard's directory."""
INDEX = ""
"""Split name of the block that holds the numbers of atoms and edges of all graphs."""
REST = "/"
"""Split name of the block that holds other counts and offsets; no real split has a slash."""


@dataclass
class BlockTable:
    """Table of the blocks (each about 4 MB of graphs) in a shard, with their checksums.

    A shard is a BP5 file of a store. Blocks are in the order of their bytes in the file ``data.0``.
    """

    split: list[str] = field(default_factory=list)
    """Split that each block belongs to, or `INDEX`, or `REST`."""
    graphs: list[int] = field(default_factory=list)
    """Number of graphs in each block."""
    ends: list[int] = field(default_factory=list)
    """Position after the last byte of each block in ``data.0``."""
    crc32: list[int] = field(default_factory=list)
    """CRC-32 of the bytes of each block."""

    def __len__(self) -> int:
        return len(self.split)

    @property
    def end(self) -> int:
        """Position in ``data.0`` after the last block's last byte [bytes]; 0 without blocks."""
        return self.ends[-1] if self.ends else 0

    def add(self, split: str, graphs: int, end: int, crc32: int) -> None:
        """Add the block written last: its split, number of graphs, end in ``data.0``, CRC-32."""
        self.split.append(split)
        self.graphs.append(graphs)
        self.ends.append(end)
        self.crc32.append(crc32)

    def numbers(self, split: str) -> NDArray[np.int64]:
        """Return the indices in this table of the blocks of a split, int64 [n_blocks]."""
        return np.flatnonzero(np.array(self.split) == split)

    def bounds(self, split: str) -> NDArray[np.int64]:
        """Return the boundaries of a split's blocks as indices of graphs, int64 [n_blocks + 1].

        Element ``i`` is the first graph of block ``i``; the last element is the number of graphs.
        Graphs are counted from the first of the split in this shard.
        """
        return bounds_of(np.array(self.graphs, dtype=np.int64)[self.numbers(split)])

    def extent(self, number: int) -> tuple[int, int]:
        """Return the range [begin, end) of a block's bytes in ``data.0``.

        ``number`` is the index of the block in this table.
        """
        return (self.ends[number - 1] if number else 0), self.ends[number]

    def save(self, path: Path) -> None:
        """Write the table of blocks to the NumPy file ``path``."""
        np.savez(
            path,
            split=np.array(self.split),
            graphs=np.array(self.graphs, dtype=np.int64),
            ends=np.array(self.ends, dtype=np.int64),
            crc32=np.array(self.crc32, dtype=np.int64),
        )

    @classmethod
    def load(cls, path: Path) -> BlockTable:
        """Read the table of blocks from a shard's file, which has been verified.

        Raises
        ------
        StoreError
            If the file is not a block table.
        """
        try:
            with np.load(path) as table:
                return cls(*(table[name].tolist() for name in ("split", "graphs", "ends", "crc32")))
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"{path} is not the block table of a shard ({error}); prepare the store again"
            ) from None
