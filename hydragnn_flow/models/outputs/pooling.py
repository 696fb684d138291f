"""Pooling of node features to features of the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from hydragnn_flow.models.geometry import sum_by


def pool(nodes: Tensor, graph: Tensor, n_graphs: int, how: str) -> Tensor:
    """Pool node features by graph: [n_atoms, d] to [n_graphs, d].

    Parameters
    ----------
    nodes
        Features of all atoms in the batch.
    graph
        Graph that each atom belongs to, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    how
        Kind of pooling: ``mean``, ``max``, or ``add``, also called ``sum``.
    """
    if how == "max":
        empty = nodes.new_zeros((n_graphs, nodes.shape[1]))
        index = graph[:, None].expand_as(nodes)
        return empty.scatter_reduce(0, index, nodes, "amax", include_self=False)
    total = sum_by(nodes, graph, n_graphs)
    if how == "mean":
        return total / sum_by(torch.ones_like(nodes[:, :1]), graph, n_graphs)
    return total
