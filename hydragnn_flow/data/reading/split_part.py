"""Subset of a split that reads like a split of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch

from hydragnn_flow.data.reading.split import GraphSplit


class SplitPart:
    """Subset of the graphs of a split.

    Parameters
    ----------
    split
        Split that the graphs are taken from.
    graphs
        Indices of its graphs in the split, in their order here, [n].
    """

    def __init__(self, split: GraphSplit, graphs: NDArray[np.int64]) -> None:
        self._split, self._graphs = split, graphs
        self.name = f"{len(graphs)} of {split.name}"

    def __len__(self) -> int:
        return len(self._graphs)

    @cached_property
    def n_atoms(self) -> NDArray[np.int64]:
        """Number of atoms of each graph, int64 [len]."""
        return self._split.atoms_of(self._graphs)

    @cached_property
    def n_edges(self) -> NDArray[np.int64]:
        """Number of edges of each graph, int64 [len]."""
        return self._split.edges_of(self._graphs)

    @cached_property
    def branch(self) -> NDArray[np.int64] | None:
        """Branch of each graph, int64 [len]; None if graphs do not name one."""
        whole = self._split.branch
        return None if whole is None else whole[self._graphs]

    def atoms_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of atoms of some graphs, int64 [n]."""
        return self.n_atoms[graphs]

    def edges_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of edges of some graphs, int64 [n]."""
        return self.n_edges[graphs]

    def batches(self, selections: Iterable[NDArray[np.int64]]) -> Generator[Batch, None, None]:
        """Yield one batch for each selection of graphs, in their order."""
        return self._split.batches(self._graphs[chosen] for chosen in selections)

    def target(self, name: str) -> NDArray[np.float64]:
        """Return one target of these graphs in the data's units, see :meth:`GraphSplit.target`."""
        return self._split.target(name, self._graphs)


Split = GraphSplit | SplitPart
