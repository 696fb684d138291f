"""Where the atoms are, for layers that look beyond the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hydragnn_flow.data.reading.split import GraphSplit

_SAMPLE = 64


class Space(NamedTuple):
    """Positions of atoms, and which graphs are all there is of their structure.

    Attributes
    ----------
    positions
        [n_atoms, 3] in Å. They are tensors of their own: a gradient over them is that of what reads
        them here, without what reads the vectors of the edges.
    finite
        Whether a graph has no periodic direction, bool [n_graphs].
    any_finite
        Whether one has none.
    """

    positions: Tensor
    finite: Tensor
    any_finite: bool


def space_of(batch: Any, positions: Tensor) -> Space:
    """Find the periodic graphs of a batch whose atoms are at ``positions``."""
    finite = finite_graphs(batch)
    known: bool | None = getattr(batch, "any_finite", None)
    # On a batch that is on an accelerator the host would have to wait; code that collates a batch
    # knows it, and may set it.
    return Space(positions.clone(), finite, bool(finite.any()) if known is None else known)


def any_finite(split: GraphSplit) -> bool:
    """Whether a graph of a split has no periodic direction, by a sample of them."""
    step = max(len(split) // _SAMPLE, 1)
    return bool(finite_graphs(split.batch(range(0, len(split), step))).any())


def finite_graphs(batch: Any) -> Tensor:
    """Whether each graph of a batch has no periodic direction, bool [n_graphs].

    Its ``pbc`` says so; without that, whether an edge leads to another image.
    """
    pbc: Tensor | None = getattr(batch, "pbc", None)
    if pbc is not None:
        return ~(pbc.view(batch.num_graphs, -1) != 0).any(dim=1)
    leaves = (batch.edge_shifts != 0).any(dim=1)
    graph = batch.batch.index_select(0, batch.edge_index[1])
    counts = torch.zeros(batch.num_graphs, dtype=torch.int64, device=graph.device)
    return counts.index_add(0, graph, leaves.long()) == 0
