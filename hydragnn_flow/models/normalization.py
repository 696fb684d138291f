"""Normalisation of node features over an atom or a graph, never over the batch."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import GraphNorm

from hydragnn_flow.models.geometry import Geometry


class Normalization(nn.Module):
    """Normalisation: layer normalisation (Ba et al., arXiv:1607.06450), GraphNorm (Cai et al.,
    arXiv:2009.03294) or none.

    HydraGNN normalises over the batch, so what is learnt depends on how a batch is divided among
    ranks.

    Parameters
    ----------
    kind
        Value of `Architecture.normalization`: ``layer``, ``graph`` or ``none``.
    width
        Width of the node features.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(width) if kind == "layer" else None
        self.graph = GraphNorm(width) if kind == "graph" else None

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Normalise node features [n_atoms, width]."""
        if self.layer is not None:
            normalised: Tensor = self.layer(nodes)
            return normalised
        if self.graph is not None:
            by_graph: Tensor = self.graph(nodes, geometry.graph, geometry.n_graphs)
            return by_graph
        return nodes
