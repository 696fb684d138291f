"""SchNet: continuous-filter convolutions. Schütt et al., arXiv:1706.08566."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.radial import GaussianBasis


class ShiftedSoftplus(nn.Module):
    """ln(½ eˣ + ½): smooth, and zero at zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return functional.softplus(x) - math.log(2.0)


class SchNetLayer(nn.Module):
    """One interaction block, with the paper's residual connection.

    Sums of messages are divided by the root of the average number of neighbours; the paper leaves
    that scale to the weights.
    """

    def __init__(
        self, width: int, filters: int, gaussians: int, name: str, neighbours: float
    ) -> None:
        super().__init__()
        self.filter = nn.Sequential(
            nn.Linear(gaussians, filters), ShiftedSoftplus(), nn.Linear(filters, filters)
        )
        self.before = nn.Linear(width, filters, bias=False)
        self.after = nn.Sequential(
            nn.Linear(filters, width), activation(name), nn.Linear(width, width)
        )
        self.scale = neighbours**-0.5

    def forward(self, nodes: Tensor, features: Tensor, geometry: Geometry) -> Tensor:
        """New node features [n_atoms, width]."""
        weights = self.filter(features) * (geometry.envelope * self.scale)
        messages = geometry.of_sender(self.before(nodes)) * weights
        update: Tensor = self.after(geometry.sum_at_receiver(messages))
        return nodes + update


class SchNet(MessagePassing):
    """SchNet's interaction blocks over Gaussians of the edge length."""

    properties: ClassVar[Properties] = Properties(
        continuous_at_cutoff=True, always_sees_lengths=True
    )

    def __init__(self, architecture: Architecture, facts: TrainingFacts) -> None:
        super().__init__(architecture, facts)
        width = architecture.hidden_dim
        self.basis = GaussianBasis(architecture.num_gaussians, facts.cutoff)
        self.layers = nn.ModuleList(
            SchNetLayer(
                width,
                architecture.num_filters or width,
                architecture.num_gaussians,
                architecture.activation_function,
                facts.average_neighbours,
            )
            for _ in range(architecture.num_conv_layers)
        )

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Gaussians of the lengths [n_edges, num_gaussians]."""
        features: Tensor = self.basis(geometry.lengths)
        return features
