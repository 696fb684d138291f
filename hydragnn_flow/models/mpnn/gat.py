"""GAT: graph attention, version 2. Brody et al., arXiv:2105.14491."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import NeighbourSums, neighbour_sums
from hydragnn_flow.models.layers import EdgeFunctions
from hydragnn_flow.models.mpnn.layers import Convolutions

HEADS = 6
"""Number of heads, each as wide as the node features."""
NEGATIVE_SLOPE = 0.05
"""Slope of the leaky ReLU in the attention. Both values are HydraGNN's."""


class GATEdges(NamedTuple):
    """Edge features and neighbour sums of a batch, as functions that GAT's layers call.

    ``functions`` applies a network to the features of each edge; it is None if edges have none.
    ``neighbours`` adds values up over each atom's neighbours.
    """

    functions: EdgeFunctions | None
    neighbours: NeighbourSums


class GATConvolution(nn.Module):
    """Attention-weighted average of mapped features of the neighbours and the atom itself.

    The layer is similar to PyG's ``GATv2Conv`` with self loops. A linear map joins the heads, as in
    HydraGNN with global attention.

    If edges have lengths, the exponential of an edge's logit is multiplied by the envelope, in
    numerator and denominator. So a neighbour at the cutoff has no weight, and nothing jumps when
    the neighbour leaves. The logit itself is multiplied too, because the weight of a large logit
    would otherwise rise continuously but very steeply.

    Parameters
    ----------
    width
        Width of the node features and of each head.
    features
        Width of the edge features; 0 for a layer that reads only which atoms are connected.
    dropout
        Fraction of attention weights left out in training.
    fades
        If true, attention fades to zero at the cutoff.
    """

    def __init__(self, width: int, features: int, dropout: float, fades: bool) -> None:
        super().__init__()
        self.sender = nn.Linear(width, HEADS * width)
        self.receiver = nn.Linear(width, HEADS * width, bias=False)
        self.edge = nn.Linear(features, HEADS * width, bias=False) if features else None
        self.attention = nn.Parameter(torch.empty(HEADS, width))
        nn.init.normal_(self.attention, std=width**-0.5)
        self.join = nn.Linear(HEADS * width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fades = fades

    def forward(self, nodes: Tensor, edges: GATEdges, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        values, asking = self.sender(nodes), self.receiver(nodes)
        # Added in place, because these are by far the largest tensors.
        hidden = geometry.of_receiver(asking).add_(geometry.of_sender(values))
        if self.edge is not None and edges.functions is not None:
            hidden = hidden.add_(edges.functions.of(self.edge))
        logits, own_logits = self._logits(hidden), self._logits(values + asking)
        if self.fades:
            logits = logits * geometry.envelope
        peak = self._peak(logits.detach(), own_logits.detach(), geometry)
        weights = torch.exp(logits - geometry.of_receiver(peak))
        own = torch.exp(own_logits - peak)
        if self.fades:
            weights = weights * geometry.envelope
        inverse = (geometry.sum_at_receiver(weights) + own).reciprocal()
        weights = self.dropout(weights * geometry.of_receiver(inverse))
        own = self.dropout(own * inverse)
        by_head = values.view(-1, *self.attention.shape)
        averaged = own[:, :, None] * by_head + edges.neighbours.weighted_sum(by_head, weights)
        new: Tensor = self.join(averaged.flatten(1))
        return new

    def _logits(self, hidden: Tensor) -> Tensor:
        """Compute logits of attention [n, heads]; overwrites ``hidden`` [n, heads * width]."""
        bent = functional.leaky_relu(hidden, NEGATIVE_SLOPE, inplace=True)
        return (bent.view(-1, *self.attention.shape) * self.attention).sum(dim=2)

    def _peak(self, logits: Tensor, own: Tensor, geometry: Geometry) -> Tensor:
        """Return the largest logits at each atom [n_atoms, heads], subtracted against overflow."""
        index = geometry.receiver[:, None].expand_as(logits)
        return own.scatter_reduce(0, index, logits, "amax")


class GAT(Convolutions):
    """Stack of GAT layers, which read which atoms are connected.

    They also read lengths if `edge_features` names these, and always in a potential. The leaky ReLU
    has a kink, so the forces of a potential have small jumps.
    """

    def convolution(self, width: int) -> nn.Module:
        """Return the GAT convolution of one layer, for node features [n_atoms, width]."""
        fades = self.architecture.sees_lengths
        return GATConvolution(width, self.reader.size, self.architecture.dropout, fades)

    def edge_features(self, geometry: Geometry) -> GATEdges:
        """Return functions that apply networks to edge features, and that sum over neighbours."""
        functions = self.reader(geometry) if self.reader.size else None
        return GATEdges(functions, neighbour_sums(geometry, HEADS))
