"""SAGE: sample and aggregate, here without sampling. Hamilton et al., arXiv:1706.02216."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import NeighbourSums, neighbour_sums
from hydragnn_flow.models.mpnn.layers import Convolutions


class SAGEEdges(NamedTuple):
    """Sums over neighbours, and the weight of a neighbour in the mean [n_atoms, 1]."""

    neighbours: NeighbourSums
    weight: Tensor


class SAGEConvolution(nn.Module):
    """Linear map of the atom's features and the mean of its neighbours' features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, features: SAGEEdges, geometry: Geometry) -> Tensor:
        """Compute new node features [n_atoms, width]."""
        mean = features.neighbours.sum(nodes) * features.weight.to(nodes.dtype)
        new: Tensor = self.mix(torch.cat([mean, nodes], dim=1))
        return new


class SAGE(Convolutions):
    """SAGE layers: means over the neighbours of each atom.

    By default there is no normalisation: means do not grow with the number of neighbours, and the
    error on HydraGNN's synthetic task is half of that with layer normalisation.
    """

    normalization = "none"

    def convolution(self, width: int) -> nn.Module:
        """Return one layer's convolution, for node features [n_atoms, width]."""
        return SAGEConvolution(width)

    def edge_features(self, geometry: Geometry) -> SAGEEdges:
        """Return sums over neighbours, and the reciprocal of each atom's number of neighbours."""
        edges = neighbour_sums(geometry)
        degrees = edges.degrees.clamp(min=1)[:, None].to(geometry.vectors.dtype)
        return SAGEEdges(edges, degrees.reciprocal())
