"""EGNN: E(n)-equivariant graph network. Satorras et al., arXiv:2102.09844."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.filtered_messages import (
    EdgeSlice,
    filtered_message_sum,
    slices_of,
)
from hydragnn_flow.models.layers import activation, gaussian_reader
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState
from hydragnn_flow.models.mpnn.layers import Displacement, Edges


@dataclass(frozen=True)
class EGNNEdges(Edges):
    """Edges of a batch, and perhaps the slices in which messages along them are computed.

    Attributes
    ----------
    slices
        Slices of the edges; None if messages are needed edge by edge or edges have attributes.
    """

    slices: list[EdgeSlice] | None = None


class EGNNLayer(nn.Module):
    """Layer of EGNN: messages φ_e(h_i, h_j, d) and the node update φ_h(h_i, Σ messages).

    The update is added to the node features, as in the paper. The second layer of φ_e is a filter:
    a function of the length that multiplies the first layer's output. In the paper it is a map of
    that output. With the filter, force errors after equally many training steps are half as large,
    and no matrix product runs over the edges.

    φ_e is smooth (SiLU, as in the paper) whatever the activation of the other layers: training on
    forces takes its second derivative, which a ReLU lacks. Messages fade out at the cutoff, and
    their sum is divided by the root of the average number of neighbours.

    Parameters
    ----------
    width
        Width of node features and messages.
    features
        Width of the edge features.
    name
        HydraGNN's name of the activation.
    average_neighbours
        Mean number of incoming edges of an atom.
    moves
        If true, the layer also moves the atoms.
    """

    def __init__(
        self, width: int, features: int, name: str, average_neighbours: float, moves: bool
    ) -> None:
        super().__init__()
        # First layer of φ_e on [h_i | h_j | features], split so that products for nodes run once
        # per atom, not once per edge.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(features, width, bias=False)
        self.filter = nn.Linear(features, width)
        self.update = nn.Sequential(
            nn.Linear(2 * width, width), activation(name), nn.Linear(width, width)
        )
        self.scale = average_neighbours**-0.5
        self.displacement = Displacement(width, average_neighbours) if moves else None

    def forward(self, state: NodeState, features: EGNNEdges, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        nodes, tensors = state.scalars, state.tensors
        edges = features.at(state)
        to_receivers, to_senders = self.receiver(nodes), self.sender(nodes)
        if features.slices is not None and edges.functions.interpolation is not None:
            shift, filters = (edges.functions.at_knots(layer) for layer in (self.edge, self.filter))
            weights = edges.functions.interpolation.weights
            received = filtered_message_sum(
                to_receivers, to_senders, shift, filters, weights, features.slices
            )
        else:
            # In place, because no gradient needs these three.
            hidden = geometry.of_receiver(to_receivers).add_(geometry.of_sender(to_senders))
            hidden = functional.silu(hidden.add_(edges.functions.of(self.edge)))
            messages = hidden * edges.functions.of(self.filter)
            if self.displacement is not None:
                tensors = self.displacement(state, messages, edges)
            received = geometry.sum_at_receiver(messages)
        received = received * self.scale
        update: Tensor = self.update(torch.cat([nodes, received], dim=1))
        return NodeState(nodes + update, tensors)


class EGNN(MessagePassing):
    """Stack of EGNN layers, which read Gaussians of the length, not its square as in the paper.

    The square resolves bond lengths poorly; the Gaussians make forces learnable. With
    `equivariance` all layers but the last one also move the atoms; nothing reads positions after
    the last.
    """

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.moves = architecture.equivariance
        self.reader = gaussian_reader(architecture, statistics)
        self.layers = nn.ModuleList(
            EGNNLayer(
                width,
                self.reader.size,
                architecture.activation_function,
                statistics.average_neighbours,
                moves=self.moves and layer < depth - 1,
            )
            for layer in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> EGNNEdges:
        """Return the batch's edges, with a function that applies a network to each edge's features.

        The features are length and attributes. The function's results fade to zero at the cutoff.
        """
        envelope = geometry.envelope
        functions = self.reader(geometry, envelope)
        slices = None
        if functions.interpolation is not None and not self.moves:
            slices = slices_of(geometry, functions.interpolation)
        return EGNNEdges(geometry, envelope, functions, self.reader, slices)
