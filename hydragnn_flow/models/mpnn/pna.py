"""PNA: principal neighbourhood aggregation. Corso et al., arXiv:2004.05718."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.edge_functions import EdgeFunctions, gaussian_reader
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.mpnn.layers import Convolution

N_AGGREGATORS = 4
N_SCALERS = 3


class WeightedEdges(NamedTuple):
    """Edges that have features.

    Attributes
    ----------
    functions
        Of the features.
    envelope
        What an edge counts [n_edges, 1]; zero at the cutoff.
    degree
        Sum of the envelopes at an atom, and one for the atom itself [n_atoms, 1].
    """

    functions: EdgeFunctions
    envelope: Tensor
    degree: Tensor


class Combination(nn.Module):
    """The end of a layer: aggregates scaled by the degree three ways, and a linear map.

    Parameters
    ----------
    width
        Hidden width.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    """

    def __init__(self, width: int, mean_log_degree: float) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        # The scalers are applied after the product, whose input then is a third as wide.
        self.aggregate = nn.Linear(N_AGGREGATORS * width, N_SCALERS * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.mean_log_degree = mean_log_degree

    def forward(self, nodes: Tensor, aggregates: list[Tensor], degree: Tensor) -> Tensor:
        """New node features [n_atoms, width] from the old and four aggregates like them."""
        amplification = torch.log(degree + 1.0) / self.mean_log_degree
        products = self.aggregate(torch.cat(aggregates, dim=1))
        plain, amplified, attenuated = products.chunk(N_SCALERS, dim=1)
        combined = plain + amplified * amplification + attenuated * amplification.reciprocal()
        new: Tensor = self.mix(self.own(nodes) + combined)
        return new


class PNAConvolution(nn.Module):
    """Mean, minimum, maximum and deviation over the neighbours; edges have no features.

    One tower, one linear map before and after aggregation, as in PyG's ``PNAConv``. Of that map of
    [h_i | h_j] the part of the atom itself is the same for all its messages: it is added to the
    aggregates, and the deviation does not depend on it.
    """

    def __init__(self, width: int, mean_log_degree: float) -> None:
        super().__init__()
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.combine = Combination(width, mean_log_degree)

    def forward(self, nodes: Tensor, features: None, geometry: Geometry) -> Tensor:
        """New node features [n_atoms, width]."""
        own, values = self.receiver(nodes), self.sender(nodes)
        degree = geometry.degree.clamp(min=1.0)
        sums = geometry.sum_at_receiver(geometry.of_sender(torch.cat([values, values.square()], 1)))
        mean, squares = (sums / degree).chunk(2, dim=1)
        both = geometry.of_sender(torch.cat([-values, values], dim=1))
        index = geometry.receiver[:, None].expand_as(both)
        # Includes no zero of its own, but leaves it where an atom has no neighbour.
        peaks = both.new_zeros((geometry.n_atoms, both.shape[1])).scatter_reduce(
            0, index, both, "amax", include_self=False
        )
        lowest, highest = peaks.chunk(2, dim=1)
        aggregates = [mean + own, own - lowest, own + highest, _deviation(mean, squares)]
        new: Tensor = self.combine(nodes, aggregates, degree)
        return new


class WeightedPNAConvolution(nn.Module):
    """The same over edges with features, each of which counts by its envelope.

    An atom itself counts as one neighbour with a zero message. Nothing then jumps when an atom
    crosses the cutoff. As a potential it has continuous energies; its forces jump where another
    message becomes the extreme.

    Parameters
    ----------
    width
        Hidden width.
    features
        Width of the edge features.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    gated
        Messages are multiplied, feature by feature, by a second linear map of the edge features.
    """

    def __init__(
        self, width: int, features: int, mean_log_degree: float, *, gated: bool = False
    ) -> None:
        super().__init__()
        # The map before aggregation is split by what it acts on: the parts for nodes are
        # multiplied once per atom.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(features, width, bias=False)
        self.gate = nn.Linear(features, width, bias=False) if gated else None
        self.combine = Combination(width, mean_log_degree)

    def forward(self, nodes: Tensor, features: WeightedEdges, geometry: Geometry) -> Tensor:
        """New node features [n_atoms, width]."""
        values = geometry.of_receiver(self.receiver(nodes))
        values = values + geometry.of_sender(self.sender(nodes))
        values = values + features.functions.of(self.edge)
        if self.gate is not None:
            values = values * features.functions.of(self.gate)
        messages = values * features.envelope
        mean = geometry.sum_at_receiver(messages) / features.degree
        squares = geometry.sum_at_receiver(messages * values) / features.degree
        lowest = -_highest(-messages, geometry)
        aggregates = [mean, lowest, _highest(messages, geometry), _deviation(mean, squares)]
        new: Tensor = self.combine(nodes, aggregates, features.degree)
        return new


def _deviation(mean: Tensor, squares: Tensor) -> Tensor:
    """Standard deviation from a mean and a mean square; its slope is finite where it is zero."""
    return ((squares - mean * mean).relu() + 1e-5).sqrt()


def _highest(messages: Tensor, geometry: Geometry) -> Tensor:
    """Largest message at each receiver, or zero where all are below it [n_atoms, width].

    It is a mean of the messages that have been marked as the largest (several may tie), whose
    second derivative costs a fraction of that of ``scatter_reduce``.
    """
    found = messages.detach()
    index = geometry.receiver[:, None].expand_as(found)
    peak = found.new_zeros((geometry.n_atoms, found.shape[1]))
    peak = peak.scatter_reduce(0, index, found, "amax", include_self=True)
    marks = (found == geometry.of_receiver(peak)).to(found.dtype)
    ties = geometry.sum_at_receiver(marks).clamp(min=1.0)
    return geometry.sum_at_receiver(messages * marks) / ties


def mean_log_degree(facts: TrainingFacts) -> float:
    """Mean of ln(degree + 1) over the atoms of the training split."""
    logs = sum(n * math.log(degree + 1) for degree, n in enumerate(facts.degree_histogram))
    # Below ln 2, where hardly an atom has a neighbour, the scalers would explode.
    return max(logs / max(sum(facts.degree_histogram), 1), math.log(2.0))


class PNA(MessagePassing):
    """PNA over connections; over lengths too where asked for, and always as a potential."""

    properties: ClassVar[Properties] = Properties(
        lengths="request", continuous_at_cutoff=True, smooth_forces=False
    )

    def __init__(
        self, architecture: Architecture, facts: TrainingFacts, width: int, depth: int
    ) -> None:
        super().__init__(architecture, facts, width, depth)
        gaussians = architecture.num_gaussians if self.sees_lengths(architecture) else 0
        reader = gaussian_reader(gaussians, facts)
        self.read = reader if reader.size else None
        logs = mean_log_degree(facts)
        self.layers = nn.ModuleList(
            Convolution(
                WeightedPNAConvolution(width, reader.size, logs)
                if reader.size
                else PNAConvolution(width, logs),
                width,
                architecture.activation_function,
                architecture.normalization,
            )
            for _ in range(depth)
        )

    def edge_features(self, geometry: Geometry) -> WeightedEdges | None:
        """Gaussians of the lengths and the attributes, where there are any."""
        if self.read is None:
            return None
        return WeightedEdges(self.read(geometry), geometry.envelope, geometry.coordination + 1.0)
