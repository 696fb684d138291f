"""One split of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.data.columns import Column, join
from hydragnn_flow.data.reading.batching import Assembler
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.data.store.layout import read_columns, read_counts, split_keys
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.errors import InputError

# HydraGNN's packed copy of the targets; needless where the manifest names them.
_PACKED = ("y", "y_loc")


Mode = Literal["memory", "random", "stream"]


class Columns(Protocol):
    """Where a split's arrays come from."""

    def counts(self, key: str) -> NDArray[np.int64]:
        """Extent of each graph's ``key``, [n_graphs], without reading its values where possible."""

    def columns(self) -> dict[str, Column]:
        """Every key, whole."""


class InMemory:
    """Arrays that have been read already."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)

    def counts(self, key: str) -> NDArray[np.int64]:
        return self._columns[key].counts

    def columns(self) -> dict[str, Column]:
        return self._columns


class InShards:
    """Arrays in the BP5 files of a store.

    Parameters
    ----------
    split
        Name of the split.
    shards
        Gives the verified paths of the files; called before anything is opened.
    """

    def __init__(self, split: str, shards: Callable[[], Sequence[Path]]) -> None:
        self._split = split
        self._shards = shards

    def counts(self, key: str) -> NDArray[np.int64]:
        parts = []
        for path in self._shards():
            with Bp5File(path) as file:
                parts.append(read_counts(file, self._split, key))
        return np.concatenate(parts)

    def columns(self) -> dict[str, Column]:
        parts = []
        for path in self._shards():
            with Bp5File(path) as file:
                keys = [key for key in split_keys(file, self._split) if key not in _PACKED]
                parts.append(read_columns(file, self._split, keys))
        return join(parts)


class GraphSplit:
    """The graphs of one split, in the order they were written.

    Arrays are read when first needed and stay in memory; graphs and batches are copies, so that
    nothing done to them changes the split.
    """

    def __init__(
        self, name: str, length: int, targets: Mapping[str, Target], source: Columns
    ) -> None:
        self.name = name
        self.mode: Mode = "memory"
        self._length = length
        self._targets = targets
        self._source = source

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Data:
        return self._assembler.graph(index)

    def __iter__(self) -> Iterator[Data]:
        return (self._assembler.graph(index) for index in range(self._length))

    @cached_property
    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of each graph, int64 [len]; read from the index alone."""
        return self._source.counts("x")

    @cached_property
    def n_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, int64 [len]; read from the index alone."""
        return self._source.counts("edge_index")

    @cached_property
    def graph_id(self) -> NDArray[np.int64]:
        """Position of each structure in its input, int64 [len]; its place here where unknown."""
        if "graph_id" not in self._columns:
            return np.arange(self._length, dtype=np.int64)
        return self._columns["graph_id"].values.astype(np.int64)

    def batch(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> Batch:
        """Join graphs, in the order given.

        Parameters
        ----------
        indices
            At least one position in this split, each as often as wanted.

        Returns
        -------
        Batch
            Equal, field for field, to ``Batch.from_data_list([split[i] for i in indices])``.
        """
        return self._assembler.batch(indices)

    def batches(self, parts: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """One batch for each of ``parts``, in their order."""
        return (self.batch(part) for part in parts)

    @property
    def block_bounds(self) -> NDArray[np.int64]:
        """Where the blocks in which the split is stored begin and end, int64 [n_blocks + 1]."""
        return np.array([0, self._length], dtype=np.int64)

    def target(self, name: str) -> NDArray[np.float64]:
        """One target over the whole split, in the data's units.

        Returns
        -------
        numpy.ndarray
            float64 [n_graphs, dim], or [sum of atoms, dim] for a target of atoms.

        Raises
        ------
        InputError
            Where the store has no such target.
        """
        if name not in self._targets:
            known = ", ".join(self._targets) or "none"
            raise InputError(f"target {name!r} is not in the store; it has {known}")
        return target_array(self._columns[name], self._targets[name])

    @cached_property
    def _columns(self) -> dict[str, Column]:
        return self._source.columns()

    @cached_property
    def _assembler(self) -> Assembler:
        return Assembler(self._columns)
