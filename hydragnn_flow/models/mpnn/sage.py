"""SAGE: sample and aggregate, here without sampling. Hamilton et al., arXiv:1706.02216."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import NeighbourSums, neighbour_sums
from hydragnn_flow.models.mpnn.layers import Convolutions


class SAGEEdges(NamedTuple):
    """Neighbour sums of a batch, and the weight of a neighbour in an atom's mean [n_atoms, 1]."""

    neighbours: NeighbourSums
    weight: Tensor


class SAGEConvolution(nn.Module):
    """Convolution of SAGE: a linear map of an atom's features and its neighbours' mean features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * width, width)

    def forward(self, nodes: Tensor, features: SAGEEdges, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        mean = features.neighbours.sum(nodes) * features.weight.to(nodes.dtype)
        new: Tensor = self.mix(torch.cat([mean, nodes], dim=1))
        return new


class SAGE(Convolutions):
    """Stack of SAGE layers, which read the mean over the neighbours of each atom.

    By default there is no normalisation: means do not grow with the number of neighbours, and the
    error on HydraGNN's synthetic task is half of that with layer normalisation.
    """

    normalization = "none"

    def convolution(self, width: int) -> nn.Module:
        """Return the SAGE convolution of one layer, for node features [n_atoms, width]."""
        return SAGEConvolution(width)

    def edge_features(self, geometry: Geometry) -> SAGEEdges:
        """Return an object that sums over neighbours, and a neighbour's weight in the mean."""
        edges = neighbour_sums(geometry)
        degrees = edges.degrees.clamp(min=1)[:, None].to(geometry.vectors.dtype)
        return SAGEEdges(edges, degrees.reciprocal())
