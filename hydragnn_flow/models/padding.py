"""Padding of a batch's atoms to one matrix per graph, of the largest graph's size."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Padding(NamedTuple):
    """Positions of the atoms in one matrix per graph.

    Attributes
    ----------
    places
        Row of each atom in the concatenated matrices, int64 [n_atoms].
    present
        Mask of the rows that hold an atom, bool [n_graphs, largest].
    """

    places: Tensor
    present: Tensor

    def pad(self, rows: Tensor) -> Tensor:
        """Arrange [n_atoms, d] as [n_graphs, largest, d], with zeros where there is no atom."""
        padded = rows.new_zeros((self.present.numel(), rows.shape[1]))
        return padded.index_copy(0, self.places, rows).view(*self.present.shape, rows.shape[1])

    def unpad(self, padded: Tensor) -> Tensor:
        """Read [n_atoms, d] from [n_graphs, largest, d]."""
        return padded.flatten(0, 1).index_select(0, self.places)


def padding(graph: Tensor, n_graphs: int, largest: int) -> Padding:
    """Return the padding of a batch.

    Parameters
    ----------
    graph
        Graph of each atom, ascending, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    largest
        Number of atoms in the largest graph.
    """
    numbers = torch.arange(n_graphs + 1, device=graph.device)
    starts = torch.searchsorted(graph, numbers)
    atoms = torch.arange(graph.shape[0], device=graph.device)
    places = atoms - starts.index_select(0, graph) + largest * graph
    rows = torch.arange(largest, device=graph.device)
    return Padding(places, rows[None, :] < starts.diff()[:, None])


def largest_graph(batch: Any) -> int:
    """Return the number of atoms in the batch's largest graph.

    Code that collates a batch can set ``batch.largest_graph``. Otherwise atoms are counted, and the
    host waits for an accelerator.
    """
    known: int | None = getattr(batch, "largest_graph", None)
    if known is not None:
        return known
    return int(torch.bincount(batch.batch, minlength=1).max())
