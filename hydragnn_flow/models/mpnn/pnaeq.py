"""PNAEq: PaiNN's vectors with PNA's aggregation of the scalars.

HydraGNN's own type; see Schütt et al., arXiv:2102.03150, and Corso et al., arXiv:2004.05718.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import EXTREMES, extreme, filtered_sum, outer_sum
from hydragnn_flow.models.layers import smooth_silu
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState
from hydragnn_flow.models.mpnn.painn import Filter, VectorEdgeReader, VectorEdges, VectorUpdate
from hydragnn_flow.models.mpnn.pna import N_AGGREGATORS, mean_log_degree

N_SCALERS = 5


class CountedEdges(NamedTuple):
    """Edge features that all PNAEq layers read, and the weighted degree of each atom.

    Attributes
    ----------
    edges
        Radial features and directions.
    degree
        Sum of the envelopes at an atom, plus one for the atom itself [n_atoms, 1].
    """

    edges: VectorEdges
    degree: Tensor


class Aggregation(nn.Module):
    """Mean, minimum, maximum and deviation of an atom's messages, scaled by degree in five ways.

    Messages fade out at the cutoff, and the atom counts as a neighbour of its own with a zero
    message. So nothing jumps when an atom crosses the cutoff; forces jump where another message
    becomes the extreme.

    Parameters
    ----------
    width
        Width of the messages.
    logarithm, degree
        Means over the training split of ln(degree + 1) and of the degree.
    """

    def __init__(self, width: int, logarithm: float, degree: float) -> None:
        super().__init__()
        # Scalers are applied after the product, whose input is then a fifth as wide.
        self.aggregate = nn.Linear(N_AGGREGATORS * width, N_SCALERS * width, bias=False)
        self.logarithm, self.degree = logarithm, degree

    def forward(self, messages: Tensor, degree: Tensor, geometry: Geometry) -> Tensor:
        """Compute the update of atoms' scalars [n_atoms, width] from messages [n_edges, width]."""
        mean = geometry.sum_at_receiver(messages) / degree
        squares = geometry.sum_at_receiver(messages.square()) / degree
        lowest, highest = (extreme(messages, geometry, which, own_zero=True) for which in EXTREMES)
        # A smaller constant makes the root so steep that training on forces diverges.
        deviation = ((squares - mean.square()).relu() + 1e-2).sqrt()
        aggregates = [mean, lowest, highest, deviation]
        scaled = self.aggregate(torch.cat(aggregates, dim=1)).chunk(N_SCALERS, dim=1)
        amplification = torch.log(degree + 1.0) / self.logarithm
        linear = degree / self.degree
        total = scaled[0] + scaled[1] * amplification + scaled[2] / amplification
        new: Tensor = (total + scaled[3] * linear + scaled[4] / linear) * N_SCALERS**-0.5
        return new


class PNAEqLayer(nn.Module):
    """Layer of PNAEq: messages that depend on both atoms of an edge, then PaiNN's update block.

    Messages are smooth (SiLU) whatever the activation of the heads.

    Parameters
    ----------
    width
        Width of scalars and vectors.
    features
        Width of the edge features.
    aggregation
        Aggregation of the scalar messages.
    scale
        Factor of the sums of vector messages.
    first
        True for the first layer, which has no vectors yet.
    last
        True for the last layer, whose vectors nothing reads.
    """

    def __init__(
        self,
        width: int,
        features: int,
        aggregation: Aggregation,
        scale: float,
        *,
        first: bool,
        last: bool,
    ) -> None:
        super().__init__()
        # First layer on [x_i | x_j | features], split so that products for nodes run once per atom.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = Filter(features, width)
        kinds = 2 if first else 3
        self.messages = nn.ModuleList(nn.Linear(width, width) for _ in range(kinds))
        self.filters = nn.ModuleList(Filter(features, width) for _ in range(kinds))
        self.aggregation = aggregation
        self.scale = scale
        self.update = VectorUpdate(width, last=last)

    def forward(self, state: NodeState, features: CountedEdges, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; vectors, if any, are [n_atoms, 3, width]."""
        edges, nodes = features.edges, state.scalars
        hidden = smooth_silu(
            geometry.of_receiver(self.receiver(nodes))
            + geometry.of_sender(self.sender(nodes))
            + self.edge(edges.radial)
        )
        filtered = [
            message(hidden) * weights(edges.radial)
            for message, weights in zip(self.messages, self.filters, strict=True)
        ]
        scalars = nodes + self.aggregation(filtered[0], features.degree, geometry)
        vectors = outer_sum(edges.directions, filtered[1], geometry) * self.scale
        if state.tensors is not None:
            turned = filtered_sum(state.tensors, filtered[2], geometry) * self.scale
            vectors = state.tensors + vectors + turned
        new: NodeState = self.update(scalars, vectors)
        return new


class PNAEq(MessagePassing):
    """Stack of PNAEq layers, with Bessel functions of the edge length and a cosine cutoff."""

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.degrees = [0, *[1] * (depth - 1), 0]
        self.reader = VectorEdgeReader(architecture.num_radial, statistics, 1.0)
        logarithm, neighbours = mean_log_degree(statistics), statistics.average_neighbours
        self.layers = nn.ModuleList(
            PNAEqLayer(
                width,
                self.reader.size,
                Aggregation(width, logarithm, neighbours),
                neighbours**-0.5,
                first=number == 0,
                last=number == depth - 1,
            )
            for number in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> CountedEdges:
        """Return radial features and directions of edges, and the weighted degree of each atom."""
        return CountedEdges(self.reader(geometry), geometry.coordination + 1.0)
