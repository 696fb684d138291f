"""Protocol of the readers of a split, and lines of arrays that are joined to batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.store.manifest import Key


class Reader(Protocol):
    """Reader of the graphs of one split."""

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return each key's values of the given graphs, concatenated, in new arrays."""

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the values of :meth:`take` for each selection, possibly reading ahead."""

    def column(self, key: str) -> NDArray[Any]:
        """Return the values of a key for all graphs."""

    def close(self) -> None:
        """Release files and memory."""


Lines = list[memoryview]
"""Array as contiguous lines along the dimension in which graphs are concatenated."""


def lines_of(array: NDArray[Any], dim: int) -> Lines:
    """Return the lines of an array: itself, or each of its rows if graphs are side by side."""
    if dim == 0:
        return [array.data]
    lines = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return [line.data for line in lines]


def join_lines(pieces: list[list[memoryview]], dtype: np.dtype[Any], key: Key) -> NDArray[Any]:
    """Concatenate pieces to a new array of the key's own type.

    Parameters
    ----------
    pieces
        Pieces of each line of the result.
    dtype
        Type of the pieces.
    key
        Description of the key whose values are joined.
    """
    # One copy per piece; NumPy's concatenate looks up a transfer function for each and takes a
    # third longer.
    joined = bytearray().join([piece for line in pieces for piece in line])
    values: NDArray[Any] = np.frombuffer(joined, dtype=dtype)
    rows = values.size // max(math.prod(key.shape), 1)
    return values.reshape(key.array_shape(rows)).astype(key.dtype, copy=False)
