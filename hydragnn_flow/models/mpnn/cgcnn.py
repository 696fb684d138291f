"""CGCNN: crystal graph convolutions. Xie and Grossman, arXiv:1710.10324."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import EdgeFunctions
from hydragnn_flow.models.mpnn.layers import Convolutions


class CGConvolution(nn.Module):
    """Convolution of CGCNN: a sum of gated messages, added to the atom's features.

    It resembles PyG's ``CGConv``. If edges have lengths, messages fade with them.

    Parameters
    ----------
    width
        Width of the node features.
    features
        Width of the edge features; 0 for a layer that reads only which atoms are connected.
    average_neighbours
        Average number of neighbours, whose root divides the sums.
    fades
        If true, messages fade to zero at the cutoff.
    """

    def __init__(self, width: int, features: int, average_neighbours: float, fades: bool) -> None:
        super().__init__()
        # Maps of [receiver, sender, edge] to the gate and to the gated value, split by operand, so
        # that products for nodes run once per atom and not once per edge.
        self.receiver = nn.Linear(width, 2 * width)
        self.sender = nn.Linear(width, 2 * width, bias=False)
        self.edge = nn.Linear(features, 2 * width, bias=False) if features else None
        self.scale = average_neighbours**-0.5
        self.fades = fades

    def forward(self, nodes: Tensor, features: EdgeFunctions | None, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        values = geometry.of_receiver(self.receiver(nodes))
        values = values + geometry.of_sender(self.sender(nodes))
        if self.edge is not None and features is not None:
            values = values + features.of(self.edge)
        gate, passing = values.chunk(2, dim=1)
        messages = torch.sigmoid(gate) * functional.softplus(passing)
        if self.fades:
            messages = messages * geometry.envelope
        new: Tensor = nodes + self.scale * geometry.sum_at_receiver(messages)
        return new


class CGCNN(Convolutions):
    """Stack of CGCNN layers, which read which atoms are connected.

    They also read lengths if `edge_features` names these, and always in a potential. The width of
    the layers is `hidden_dim`; in HydraGNN it is the width of the input.
    """

    def convolution(self, width: int) -> nn.Module:
        """Return the CGCNN convolution of one layer, for node features [n_atoms, width]."""
        return CGConvolution(
            width,
            self.reader.size,
            self.statistics.average_neighbours,
            fades=self.architecture.sees_lengths,
        )

    def edge_features(self, geometry: Geometry) -> EdgeFunctions | None:
        """Return an object that applies networks to each edge's length and other attributes.

        The result is None if layers read neither.
        """
        return self.reader(geometry) if self.reader.size else None
