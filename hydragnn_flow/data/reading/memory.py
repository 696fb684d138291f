"""Graphs from whole arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.reading.index import Rows, SplitIndex
from hydragnn_flow.data.reading.rows import join_lines, lines_of


class MemoryReader:
    """Reads a split whose arrays are in memory, which may be shared with other processes.

    Parameters
    ----------
    index
        Where each graph's rows are.
    arrays
        The values of each key of all graphs, C-contiguous.
    release
        Called when the arrays are no longer needed.
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

    def stream(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        return (self.take(graphs) for graphs in parts)

    def column(self, key: str) -> NDArray[Any]:
        return self._arrays[key].astype(self._index.keys[key].dtype, copy=False)

    def close(self) -> None:
        self._arrays.clear()
        self._lines.clear()
        self._release()


def _slices(rows: Rows, graphs: NDArray[np.int64]) -> list[slice]:
    starts = rows.starts(graphs)
    return list(map(slice, starts.tolist(), (starts + rows.counts(graphs)).tolist()))
