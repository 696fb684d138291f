"""HydraGNN's layers of scalars that see connections, without lengths."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack, Maker, Options
from hydragnn_flow.models.kernels.neighbour_sums import neighbour_sums
from hydragnn_flow.models.mpnn.base import DatasetStatistics, NodeState
from hydragnn_flow.models.mpnn.mfc import MFCEdges, MFConvolution, degree_classes


class SAGEConvolution(nn.Module):
    """The sum of a map of the neighbours' mean and one of the atom's features."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(inputs, width)
        self.lin_r = nn.Linear(inputs, width, bias=False)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        degree = geometry.degree.clamp(min=1.0).to(nodes.dtype)
        mean = geometry.sum_at_receiver(geometry.of_sender(nodes)) / degree
        return NodeState(self.lin_l(mean) + self.lin_r(nodes))


class SAGE(HydraGNNStack):
    """Means over connections."""

    properties = Properties(lengths="never", options=Options)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        return lambda inputs, width, last: SAGEConvolution(inputs, width)


class GINConvolution(nn.Module):
    """A perceptron of (1 + ε) times the atom's features plus the sum of its neighbours'."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.full((1,), 100.0))
        self.nn = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        total = geometry.sum_at_receiver(geometry.of_sender(state.scalars))
        return NodeState(self.nn((1.0 + self.eps) * state.scalars + total))


class GIN(HydraGNNStack):
    """Sums over connections."""

    properties = Properties(lengths="never", options=Options)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        return lambda inputs, width, last: GINConvolution(inputs, width)


class MFCLayer(nn.Module):
    """A map of the atom's features and of its neighbours' sum, for each number of neighbours.

    It reads features as wide as those it gives; in the first layer those beyond the input columns
    are zero.
    """

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.maps = MFConvolution(width, classes, 1.0)

    def forward(self, state: NodeState, features: MFCEdges, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = functional.pad(state.scalars, (0, self.width - state.scalars.shape[1]))
        return NodeState(self.maps(nodes, features, geometry))


class MFC(HydraGNNStack):
    """A map for each number of neighbours, from 0 to `max_neighbours`."""

    properties = Properties(lengths="never", options=Options)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        self.largest = architecture.max_neighbours or len(statistics.degree_histogram) - 1
        return lambda inputs, width, last: MFCLayer(width, self.largest + 1)

    def edge_features(self, geometry: Geometry) -> MFCEdges:
        """Sums over the neighbours, and the classes of the atoms."""
        edges = neighbour_sums(geometry)
        return MFCEdges(edges, degree_classes(edges.degrees, 0, self.largest))


class CGConvolution(nn.Module):
    """The atom's features plus a sum of gated messages."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.lin_f = nn.Linear(2 * inputs, inputs)
        self.lin_s = nn.Linear(2 * inputs, inputs)

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        nodes = state.scalars
        both = torch.cat([geometry.of_receiver(nodes), geometry.of_sender(nodes)], dim=1)
        messages = torch.sigmoid(self.lin_f(both)) * functional.softplus(self.lin_s(both))
        return NodeState(nodes + geometry.sum_at_receiver(messages))


class CGCNN(HydraGNNStack):
    """Gated messages over connections; as wide as its input."""

    properties = Properties(lengths="never", options=Options)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        return lambda inputs, width, last: CGConvolution(width)
