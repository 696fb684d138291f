"""Batches cut from whole arrays by index arithmetic, equal to what PyG's collate makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.data.columns import Column


class _Layout:
    """Where each graph's rows are, for all keys that share the same counts."""

    def __init__(self, column: Column) -> None:
        self.counts = column.counts
        self.starts = column.starts()

    def rows(self, graphs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows of the chosen graphs in the chosen order, and where each begins among them.

        Returns
        -------
        rows
            int64 [n_rows].
        bounds
            int64 [n_chosen + 1].
        """
        counts = self.counts[graphs]
        bounds = np.zeros(len(graphs) + 1, dtype=np.int64)
        np.cumsum(counts, out=bounds[1:])
        rows = np.repeat(self.starts[graphs] - bounds[:-1], counts)
        rows += np.arange(len(rows))
        return rows, bounds


class Assembler:
    """Hands out the graphs of a split, one by one or as batches.

    Keys with equal counts (those of atoms, those of edges, …) share the row numbers of a batch,
    so that a batch costs one gather per key, however many graphs it holds.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)
        self._layouts: list[_Layout] = []
        self._layout_of: dict[str, int] = {}
        for key, column in self._columns.items():
            for number, layout in enumerate(self._layouts):
                if np.array_equal(layout.counts, column.counts):
                    self._layout_of[key] = number
                    break
            else:
                self._layout_of[key] = len(self._layouts)
                self._layouts.append(_Layout(column))
        self._length = len(self._layouts[0].counts)

    def graph(self, index: int) -> Data:
        """Graph ``index``, with tensors of its own."""
        (number,) = self._checked([index])
        graph = Data()
        for key, column in self._columns.items():
            layout = self._layouts[self._layout_of[key]]
            start, count = layout.starts[number], layout.counts[number]
            rows = column.values.swapaxes(0, column.dim)[start : start + count]
            graph[key] = torch.from_numpy(rows.swapaxes(0, column.dim).copy())
        return graph

    def batch(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> Batch:
        """The chosen graphs, in the order given, as ``Batch.from_data_list`` would join them."""
        graphs = self._checked(indices)
        found = [layout.rows(graphs) for layout in self._layouts]
        atoms = found[self._layout_of["x"]][1]
        first_atom = torch.from_numpy(atoms[:-1])
        no_increment = torch.zeros(len(graphs), dtype=torch.int64)

        batch = Batch(_base_cls=Data)
        slices, increments = {}, {}
        for key, column in self._columns.items():
            rows, bounds = found[self._layout_of[key]]
            # NumPy gathers rows as short as these in half the time torch takes.
            values = np.take(column.values, rows, axis=column.dim)
            increments[key] = no_increment
            if "index" in key or key == "face":
                values += np.repeat(atoms[:-1], np.diff(bounds))
                increments[key] = first_atom
            batch[key] = torch.from_numpy(values)
            slices[key] = torch.from_numpy(bounds)
        batch.batch = torch.from_numpy(np.repeat(np.arange(len(graphs)), np.diff(atoms)))
        batch.ptr = torch.from_numpy(atoms.copy())
        # PyG's own bookkeeping, by which to_data_list() and batch[i] take a batch apart again.
        batch._num_graphs = len(graphs)
        batch._slice_dict = slices
        batch._inc_dict = increments
        return batch

    def _checked(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> NDArray[np.int64]:
        """Indices counted from the front, all within range."""
        numbers = np.asarray(indices).reshape(-1)
        if len(numbers) == 0:
            raise IndexError("a batch needs at least one graph")
        if numbers.dtype.kind not in "iu":  # a mask would pass as graphs 0 and 1
            raise TypeError(f"graph indices are integers, not {numbers.dtype}")
        numbers = numbers.astype(np.int64)
        if numbers.min() < -self._length or numbers.max() >= self._length:
            raise IndexError(f"graph index out of range for {self._length} graphs: {numbers}")
        return np.where(numbers < 0, numbers + self._length, numbers)
