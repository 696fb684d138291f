"""HydraGNN's layers of scalars whose messages read the length of an edge."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import GaussianSmearing, ShiftedSoftplus

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.hydragnn.stack import HydraGNNStack, Maker, Options
from hydragnn_flow.models.mpnn.base import DatasetStatistics, NodeState


class CFConvolution(nn.Module):
    """Neighbours' features times filters, functions of the length, summed."""

    def __init__(self, inputs: int, width: int, gaussians: int, filters: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(inputs, filters, bias=False)
        self.lin2 = nn.Linear(filters, width)
        self.nn = nn.Sequential(
            nn.Linear(gaussians, filters), ShiftedSoftplus(), nn.Linear(filters, filters)
        )

    def forward(self, state: NodeState, features: Tensor, geometry: Geometry) -> NodeState:
        """The state after this convolution."""
        filters = self.nn(features) * geometry.envelope
        sent = geometry.of_sender(self.lin1(state.scalars))
        return NodeState(self.lin2(geometry.sum_at_receiver(sent * filters)))


class SchNet(HydraGNNStack):
    """SchNet's continuous filters."""

    properties = Properties(
        lengths="always", keys=("num_gaussians", "num_filters"), options=Options
    )
    normalised = False

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        gaussians = architecture.num_gaussians
        filters = architecture.num_filters or architecture.hidden_dim
        self.distance_expansion = GaussianSmearing(0.0, statistics.cutoff, gaussians)
        return lambda inputs, width, last: CFConvolution(inputs, width, gaussians, filters)

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Gaussians of the lengths [n_edges, num_gaussians]."""
        gaussians: Tensor = self.distance_expansion(geometry.lengths)
        return gaussians


class EGNNConvolution(nn.Module):
    """Messages from both atoms and the length, with rectifiers; it may move the atoms.

    HydraGNN sums messages at the sender of an edge.
    """

    def __init__(self, inputs: int, width: int, *, moves: bool) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * inputs + 1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.node_mlp = nn.Sequential(
            nn.Linear(inputs + width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.coord_mlp = None
        if moves:
            self.coord_mlp = nn.Sequential(
                nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1, bias=False), nn.Tanh()
            )

    def forward(self, state: NodeState, features: None, geometry: Geometry) -> NodeState:
        """The state after this convolution; its tensors are how far atoms have moved [Å]."""
        nodes, moved = state
        now = geometry if moved is None else geometry.moved(moved)
        read = [geometry.of_sender(nodes), geometry.of_receiver(nodes), now.lengths]
        messages = self.edge_mlp(torch.cat(read, dim=1))
        if self.coord_mlp is not None:
            pushes = now.vectors / (now.lengths + 1.0) * self.coord_mlp(messages)
            total = geometry.sum_at_sender(pushes)
            number = geometry.sum_at_sender(torch.ones_like(now.lengths))
            step = total / number.clamp(min=1.0)
            moved = step if moved is None else moved + step
        received = geometry.sum_at_sender(messages)
        return NodeState(self.node_mlp(torch.cat([nodes, received], dim=1)), moved)


class EGNN(HydraGNNStack):
    """EGNN on the length as one number."""

    properties = Properties(
        lengths="always", vectors="request", keys=("equivariance",), options=Options
    )
    normalised = False

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        moves = architecture.equivariance
        return lambda inputs, width, last: EGNNConvolution(inputs, width, moves=moves and not last)
