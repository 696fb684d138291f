"""PaiNN: scalars and equivariant vectors. Schütt et al., arXiv:2102.03150."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import filtered_sum, outer_sum
from hydragnn_flow.models.layers import BesselBasis, QuietLinear
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


class VectorEdges(NamedTuple):
    """Edge features that the layers of PaiNN and PNAEq read: functions of length, and directions.

    Attributes
    ----------
    radial
        Functions of the length, a constant and the attributes, times the envelope [n_edges, d].
    directions
        Unit vectors of the edges [n_edges, 3].
    """

    radial: Tensor
    directions: Tensor


class VectorEdgeReader(nn.Module):
    """Reader of edge features: Bessel functions of the length, other attributes, and directions.

    Parameters
    ----------
    size
        Number of Bessel functions.
    statistics
        Statistics of the training split.
    scale
        Factor of the radial features, not of the directions.
    """

    def __init__(self, size: int, statistics: DatasetStatistics, scale: float) -> None:
        super().__init__()
        self.basis = BesselBasis(size, statistics.cutoff)
        # Gives each function a mean square of one for neighbours of uniform density: the functions
        # are normalised to one over the sphere, whose volume is 4π c³ / 3.
        self.gain = (statistics.cutoff**3 / 3.0) ** 0.5
        self.scale = scale
        self.size = size + 1 + statistics.n_attributes
        """Width of the radial features."""

    def forward(self, geometry: Geometry) -> VectorEdges:
        """Return the radial features and directions of a batch's edges."""
        lengths = geometry.lengths
        features = [self.basis(lengths) * self.gain, torch.ones_like(lengths)]
        if geometry.attributes is not None:
            features.append(geometry.attributes)
        radial = torch.cat(features, dim=1) * (geometry.envelope * self.scale)
        return VectorEdges(radial, geometry.directions)


class Filter(nn.Module):
    """Linear map of edge features, without a bias.

    The weight is [inputs, width], transposed relative to ``nn.Linear``: for a long and narrow input
    the matrix products of the gradients are then several times faster.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, width) * inputs**-0.5)

    def forward(self, features: Tensor) -> Tensor:
        """Map edge features [n_edges, inputs] to [n_edges, width]."""
        return features @ self.weight


class VectorUpdate(nn.Module):
    """Update block of PaiNN, in which scalars and vectors of the same atom are combined.

    Parameters
    ----------
    width
        Width of scalars and vectors.
    last
        If true, vectors are read but not changed.
    """

    def __init__(self, width: int, *, last: bool) -> None:
        super().__init__()
        self.width = width
        self.mix = nn.Linear(width, 2 * width, bias=False)
        self.scalars = nn.Linear(2 * width, width)
        self.gates = QuietLinear(width, (2 if last else 3) * width, 0.5)

    def forward(self, scalars: Tensor, vectors: Tensor) -> NodeState:
        """Return the updated scalars [n_atoms, width] and vectors [n_atoms, 3, width] of the atoms.

        The last layer returns no vectors.
        """
        left, right = self.mix(vectors).split(self.width, dim=2)
        # On an ideal lattice vectors are zero, where the root alone has no derivative. A smaller
        # constant would give a force that turns within a tiny displacement.
        norms = (right.square().sum(dim=1) + 1e-2).sqrt()
        hidden = functional.silu(self.scalars(torch.cat([scalars, norms], dim=1)))
        gates = self.gates(hidden).split(self.width, dim=1)
        scalars = scalars + gates[0] * (left * right).sum(dim=1) + gates[1]
        if len(gates) == 2:
            return NodeState(scalars)
        return NodeState(scalars, vectors + gates[2][:, None] * left)


class PAINNLayer(nn.Module):
    """PaiNN layer: sums over neighbours (message block), then a mix per atom (update block).

    Filters are smooth (SiLU, as in the paper) whatever the activation of the heads.

    Parameters
    ----------
    width
        Width of scalars and vectors.
    features
        Width of the edge features.
    first
        True for the first layer, which has no vectors yet.
    last
        True for the last layer, whose vectors nothing reads.
    """

    def __init__(self, width: int, features: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.width = width
        self.hidden = nn.Linear(width, width)
        self.sent = nn.Linear(width, (2 if first else 3) * width)
        self.scalar_filter = Filter(features, width)
        self.direction_filter = Filter(features, width)
        self.vector_filter = None if first else Filter(features, width)
        self.update = VectorUpdate(width, last=last)

    def forward(self, state: NodeState, features: VectorEdges, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; vectors, if any, are [n_atoms, 3, width]."""
        radial = features.radial
        sent = self.sent(functional.silu(self.hidden(state.scalars))).split(self.width, dim=1)
        scalars = filtered_sum(sent[0][:, None], self.scalar_filter(radial), geometry)[:, 0]
        lengths = geometry.of_sender(sent[1]) * self.direction_filter(radial)
        vectors = outer_sum(features.directions, lengths, geometry)
        if self.vector_filter is not None:
            assert state.tensors is not None
            # Terms linear in the sender's vectors are multiplied once per atom.
            gated = state.tensors * sent[2][:, None]
            turned = filtered_sum(gated, self.vector_filter(radial), geometry)
            vectors = state.tensors + vectors + turned
        new: NodeState = self.update(state.scalars + scalars, vectors)
        return new


class PAINN(MessagePassing):
    """Stack of PaiNN layers, with Bessel functions of the edge length and a cosine cutoff.

    Sums of messages are divided by the root of the average number of neighbours.
    """

    first_energies = 0.1

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.degrees = [0, *[1] * (depth - 1), 0]
        # Networks are smoother, and learn forces in fewer steps, if messages and updates begin
        # smaller than what they are added to.
        scale = 0.4 * statistics.average_neighbours**-0.5
        self.reader = VectorEdgeReader(architecture.num_radial, statistics, scale)
        self.layers = nn.ModuleList(
            PAINNLayer(width, self.reader.size, first=number == 0, last=number == depth - 1)
            for number in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> VectorEdges:
        """Return the radial features and directions of a batch's edges."""
        edges: VectorEdges = self.reader(geometry)
        return edges
