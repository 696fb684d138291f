"""SchNet: continuous-filter convolutions. Schütt et al., arXiv:1706.08566."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import activation, gaussian_reader
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState
from hydragnn_flow.models.mpnn.layers import Displacement, Edges


class ShiftedSoftplus(nn.Module):
    """Activation ln(½ eˣ + ½): smooth, and zero at zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation element by element."""
        return functional.softplus(x) - math.log(2.0)


class SchNetLayer(nn.Module):
    """Layer of SchNet: an interaction block, whose output is added to the atom's features.

    Sums of messages are divided by the root of the average number of neighbours; in the paper the
    weights have to learn that scale.

    Parameters
    ----------
    width
        Width of the node features.
    filters
        Width of filters and messages.
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
        self,
        width: int,
        filters: int,
        features: int,
        name: str,
        average_neighbours: float,
        moves: bool,
    ) -> None:
        super().__init__()
        self.filter = nn.Sequential(
            nn.Linear(features, filters), ShiftedSoftplus(), nn.Linear(filters, filters)
        )
        self.before = nn.Linear(width, filters, bias=False)
        self.after = nn.Sequential(
            nn.Linear(filters, width), activation(name), nn.Linear(width, width)
        )
        self.scale = average_neighbours**-0.5
        self.displacement = Displacement(filters, average_neighbours) if moves else None

    def forward(self, state: NodeState, features: Edges, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        edges = features.at(state)
        nodes = self.before(state.scalars) * self.scale
        messages = geometry.of_sender(nodes) * edges.functions.of(self.filter)
        tensors = state.tensors
        if self.displacement is not None:
            tensors = self.displacement(state, messages, edges)
        update: Tensor = self.after(geometry.sum_at_receiver(messages))
        return NodeState(state.scalars + update, tensors)


class SchNet(MessagePassing):
    """Stack of SchNet's interaction blocks, which read Gaussians of the edge length.

    With `equivariance` all layers but the last one also move the atoms; nothing reads positions
    after the last.
    """

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.reader = gaussian_reader(architecture, statistics)
        self.layers = nn.ModuleList(
            SchNetLayer(
                width,
                architecture.num_filters or width,
                self.reader.size,
                architecture.activation_function,
                statistics.average_neighbours,
                moves=architecture.equivariance and layer < depth - 1,
            )
            for layer in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> Edges:
        """Return a batch's edges, with a function that applies a network to each edge's features.

        The features are length and attributes. The function's results fade to zero at the cutoff.
        """
        envelope = geometry.envelope
        return Edges(geometry, envelope, self.reader(geometry, envelope), self.reader)
