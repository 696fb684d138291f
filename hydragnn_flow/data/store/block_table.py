"""The blocks a shard's payload was written in: what each holds, where it ends, its checksum.

ADIOS2 knows blocks by variable only. This table says which graphs were written together, about 4 MB
at a time, and lets that much be verified before it is read, rather than the whole shard.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import bounds_of
from hydragnn_flow.errors import StoreError

BLOCKS = "blocks.npz"
"""File within the shard's directory."""
INDEX = ""
"""Stands for a split's name at the block with the numbers of atoms and edges of all graphs."""
REST = "/"
"""Stands for it at the block of the other counts and the offsets; no split has a slash."""


@dataclass
class BlockTable:
    """The table, in the order of the payload."""

    split: list[str] = field(default_factory=list)
    """The split each block belongs to, or `INDEX`, or `REST`."""
    graphs: list[int] = field(default_factory=list)
    """Number of graphs in each."""
    ends: list[int] = field(default_factory=list)
    """Bytes of payload up to the end of each."""
    crc32: list[int] = field(default_factory=list)
    """Checksum of the bytes of each."""

    def __len__(self) -> int:
        return len(self.split)

    @property
    def end(self) -> int:
        """Bytes of payload so far."""
        return self.ends[-1] if self.ends else 0

    def add(self, split: str, graphs: int, end: int, crc32: int) -> None:
        """Add the block written last."""
        self.split.append(split)
        self.graphs.append(graphs)
        self.ends.append(end)
        self.crc32.append(crc32)

    def numbers(self, split: str) -> NDArray[np.int64]:
        """The positions in this table of a split's blocks."""
        return np.flatnonzero(np.array(self.split) == split)

    def bounds(self, split: str) -> NDArray[np.int64]:
        """First graph of each block of a split, and the end of the last, int64 [n_blocks + 1]."""
        return bounds_of(np.array(self.graphs, dtype=np.int64)[self.numbers(split)])

    def extent(self, number: int) -> tuple[int, int]:
        """First byte of a block in the payload, and the one behind its last."""
        return (self.ends[number - 1] if number else 0), self.ends[number]

    def save(self, path: Path) -> None:
        """Write the table."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            split=np.array(self.split),
            graphs=np.array(self.graphs, dtype=np.int64),
            ends=np.array(self.ends, dtype=np.int64),
            crc32=np.array(self.crc32, dtype=np.int64),
        )
        path.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> BlockTable:
        """Read the table of a shard whose files have been verified.

        Raises
        ------
        StoreError
            If it is not one.
        """
        try:
            with np.load(path) as table:
                return cls(*(table[name].tolist() for name in ("split", "graphs", "ends", "crc32")))
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"{path} is not the block table of a shard ({error}); prepare the store again"
            ) from None
