"""Lines of an array, joined to batches; and the protocol of the three ways to read a split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.store.manifest import Key


class Reader(Protocol):
    """A way of reading the graphs of one split."""

    def take(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Each key's values of the given graphs, end to end, in fresh arrays."""

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        """Values as :meth:`take` gives them for each of several selections, possibly read ahead."""

    def column(self, key: str) -> NDArray[Any]:
        """The values of a key of all graphs."""

    def close(self) -> None:
        """Let go of files and memory."""


Lines = list[memoryview]
"""An array as contiguous lines along the dimension in which graphs follow one another."""


def lines_of(array: NDArray[Any], dim: int) -> Lines:
    """The lines of an array: itself, or each of its rows if graphs are side by side."""
    if dim == 0:
        return [array.data]
    lines = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return [line.data for line in lines]


def join_lines(pieces: list[list[memoryview]], dtype: np.dtype[Any], key: Key) -> NDArray[Any]:
    """Copy pieces end to end to a new array of the key's own type.

    Parameters
    ----------
    pieces
        For each line of the result, the pieces it is made of.
    dtype
        Type of the pieces.
    key
        What the result is.
    """
    # One copy per piece; NumPy's concatenate looks up a transfer function for each and takes a
    # third longer.
    joined = bytearray().join([piece for line in pieces for piece in line])
    values: NDArray[Any] = np.frombuffer(joined, dtype=dtype)
    rows = values.size // max(math.prod(key.shape), 1)
    return values.reshape(key.array_shape(rows)).astype(key.dtype, copy=False)
