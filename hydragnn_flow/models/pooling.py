"""From the atoms of a graph to the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from hydragnn_flow.models.geometry import GraphBatch, sum_by


def pool(nodes: Tensor, batch: GraphBatch, how: str) -> Tensor:
    """Pool node features by graph: [n_atoms, d] to [n_graphs, d].

    Parameters
    ----------
    nodes
        Features of all atoms of the batch.
    batch
        Says which graph an atom belongs to.
    how
        ``mean``, ``max``, or ``add``, also called ``sum``.
    """
    if how == "max":
        index = batch.batch[:, None].expand_as(nodes)
        empty = nodes.new_zeros((batch.num_graphs, nodes.shape[1]))
        return empty.scatter_reduce(0, index, nodes, "amax", include_self=False)
    total = sum_by(nodes, batch.batch, batch.num_graphs)
    if how == "mean":
        return total / sum_by(torch.ones_like(nodes[:, :1]), batch.batch, batch.num_graphs)
    return total
