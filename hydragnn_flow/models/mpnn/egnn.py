"""EGNN without coordinate updates. Satorras et al., arXiv:2102.09844."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.radial import GaussianBasis


class EGNNLayer(nn.Module):
    """Messages φ_e(h_i, h_j, d), node update φ_h(h_i, Σ messages), with the residual of the paper.

    φ_e is smooth (SiLU, as in the paper) whatever the activation of the other layers: forces are
    trained through its second derivative, which a ReLU does not have. Messages fade out at the
    cutoff, and their sum is divided by the root of the average number of neighbours.
    """

    def __init__(self, width: int, features: int, name: str, neighbours: float) -> None:
        super().__init__()
        # φ_e's first layer on [h_i | h_j | features], split so that the two node parts are
        # multiplied once per atom, not once per edge.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(features, width, bias=False)
        self.message = nn.Linear(width, width)
        self.update = nn.Sequential(
            nn.Linear(2 * width, width), activation(name), nn.Linear(width, width)
        )
        self.scale = neighbours**-0.5

    def forward(self, nodes: Tensor, features: Tensor, geometry: Geometry) -> Tensor:
        """New node features [n_atoms, width]."""
        hidden = functional.silu(
            geometry.of_receiver(self.receiver(nodes))
            + geometry.of_sender(self.sender(nodes))
            + self.edge(features)
        )
        messages = functional.silu(self.message(hidden)) * (geometry.envelope * self.scale)
        update: Tensor = self.update(torch.cat([nodes, geometry.sum_at_receiver(messages)], dim=1))
        return nodes + update


class EGNN(MessagePassing):
    """EGNN on the squared length, as in the paper, and on Gaussians of the length.

    The square alone resolves bond lengths poorly; the Gaussians make forces learnable.
    """

    properties: ClassVar[Properties] = Properties(
        continuous_at_cutoff=True, always_sees_lengths=True
    )

    def __init__(self, architecture: Architecture, facts: TrainingFacts) -> None:
        super().__init__(architecture, facts)
        self.cutoff = facts.cutoff
        self.basis = GaussianBasis(architecture.num_gaussians, facts.cutoff)
        self.layers = nn.ModuleList(
            EGNNLayer(
                architecture.hidden_dim,
                architecture.num_gaussians + 1,
                architecture.activation_function,
                facts.average_neighbours,
            )
            for _ in range(architecture.num_conv_layers)
        )

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Squared length in units of the cutoff, and Gaussians [n_edges, 1 + num_gaussians]."""
        squares = (geometry.lengths / self.cutoff).square()
        return torch.cat([squares, self.basis(geometry.lengths)], dim=1)
