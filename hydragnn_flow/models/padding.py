"""The atoms of a batch as one matrix per graph, padded to the largest."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Padding(NamedTuple):
    """Place of each atom in one matrix per graph.

    Attributes
    ----------
    places
        Row of each atom when the graphs follow one another, int64 [n_atoms].
    present
        Which rows hold an atom, bool [n_graphs, largest].
    """

    places: Tensor
    present: Tensor

    def pad(self, rows: Tensor) -> Tensor:
        """From [n_atoms, d] to [n_graphs, largest, d], zero if there is no atom."""
        padded = rows.new_zeros((self.present.numel(), rows.shape[1]))
        return padded.index_copy(0, self.places, rows).view(*self.present.shape, rows.shape[1])

    def unpad(self, padded: Tensor) -> Tensor:
        """From [n_graphs, largest, d] to [n_atoms, d]."""
        return padded.flatten(0, 1).index_select(0, self.places)


def padding(graph: Tensor, n_graphs: int, largest: int) -> Padding:
    """Find the places.

    Parameters
    ----------
    graph
        Graph of each atom, ascending, int64 [n_atoms].
    n_graphs
        Number of graphs.
    largest
        Number of atoms of the largest.
    """
    numbers = torch.arange(n_graphs + 1, device=graph.device)
    starts = torch.searchsorted(graph, numbers)
    atoms = torch.arange(graph.shape[0], device=graph.device)
    places = atoms - starts.index_select(0, graph) + largest * graph
    rows = torch.arange(largest, device=graph.device)
    return Padding(places, rows[None, :] < starts.diff()[:, None])


def largest_graph(batch: Any) -> int:
    """Number of atoms of the batch's largest graph.

    Code that collates a batch knows it and may set ``batch.largest_graph``. Otherwise it is
    counted, and the host waits for an accelerator.
    """
    known: int | None = getattr(batch, "largest_graph", None)
    if known is not None:
        return known
    return int(torch.bincount(batch.batch, minlength=1).max())
