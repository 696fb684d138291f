"""GIN: graph isomorphism network. Xu et al., arXiv:1810.00826."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import NeighbourSums, neighbour_sums
from hydragnn_flow.models.layers import activation
from hydragnn_flow.models.mpnn.layers import Convolutions


class GINConvolution(nn.Module):
    """Convolution of GIN: a perceptron of an atom's features and its neighbours' summed features.

    It acts on (1 + ε) times the atom's features plus the scaled sum of its neighbours' features. ε
    is learnt and starts from 0, as in the paper. HydraGNN starts from 100: then twenty neighbours
    hardly count, and usual learning rates hardly change ε.

    Parameters
    ----------
    width
        Width of the node features.
    name
        HydraGNN's name of the activation.
    average_neighbours
        Average number of neighbours, whose root divides the sums.
    """

    def __init__(self, width: int, name: str, average_neighbours: float) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.perceptron = nn.Sequential(
            nn.Linear(width, width), activation(name), nn.Linear(width, width)
        )
        self.scale = average_neighbours**-0.5

    def forward(self, nodes: Tensor, features: NeighbourSums, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        total = self.own(nodes) + self.scale * features.sum(nodes)
        new: Tensor = self.perceptron(total)
        return new

    def own(self, nodes: Tensor) -> Tensor:
        """Compute (1 + ε) times each atom's own features, [n_atoms, width]."""
        return (1.0 + self.epsilon) * nodes


class GIN(Convolutions):
    """Stack of GIN layers, which read which atoms are connected, but no edge features."""

    def convolution(self, width: int) -> nn.Module:
        """Return the GIN convolution of one layer, for node features [n_atoms, width]."""
        name = self.architecture.activation_function
        return GINConvolution(width, name, self.statistics.average_neighbours)

    def edge_features(self, geometry: Geometry) -> NeighbourSums:
        """Return an object that sums features over the neighbours of each atom of a batch."""
        return neighbour_sums(geometry)
