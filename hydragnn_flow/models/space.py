"""Positions of atoms, for layers that go beyond the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.split import GraphSplit


class Space(NamedTuple):
    """Positions of atoms, and which graphs are not periodic.

    Attributes
    ----------
    positions
        Positions [n_atoms, 3] in Å. They are a copy, so a gradient by them covers only what reads
        them here, and not what reads the vectors of edges.
    finite
        Mask of graphs without a periodic direction, bool [n_graphs].
    any_finite
        True if there is such a graph in the batch.
    """

    positions: Tensor
    finite: Tensor
    any_finite: bool


def space_of(batch: Any, positions: Tensor) -> Space:
    """Return the positions, and which graphs of the batch are periodic."""
    finite = finite_graphs(batch)
    known: bool | None = getattr(batch, "any_finite", None)
    # On an accelerator the host would have to wait; code that collates a batch knows and may set
    # it.
    return Space(positions.clone(), finite, bool(finite.any()) if known is None else known)


def any_finite(split: GraphSplit) -> bool:
    """Return whether a graph of a split has no periodic direction, judging by a sample."""
    step = max(len(split) // 64, 1)
    return bool(finite_graphs(split.batch(range(0, len(split), step))).any())


def finite_graphs(batch: Any) -> Tensor:
    """Return a mask of graphs without a periodic direction, bool [n_graphs].

    It follows from ``pbc``; without this key, from edges that lead to another image.
    """
    pbc: Tensor | None = getattr(batch, "pbc", None)
    if pbc is not None:
        return ~(pbc.view(batch.num_graphs, -1) != 0).any(dim=1)
    leaves = (batch.edge_shifts != 0).any(dim=1)
    graph = batch.batch.index_select(0, batch.edge_index[1])
    counts = torch.zeros(batch.num_graphs, dtype=torch.int64, device=graph.device)
    return counts.index_add(0, graph, leaves.long()) == 0
