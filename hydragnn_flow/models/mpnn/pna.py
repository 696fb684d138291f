"""PNA: principal neighbourhood aggregation. Corso et al., arXiv:2004.05718."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.neighbour_sums import EXTREMES, extreme
from hydragnn_flow.models.layers import EdgeFunctions
from hydragnn_flow.models.mpnn.base import DatasetStatistics
from hydragnn_flow.models.mpnn.layers import Convolutions

N_AGGREGATORS = 4
N_SCALERS = 3


class WeightedEdges(NamedTuple):
    """Edge features that all PNA layers read, and the weights of edges in averages.

    Attributes
    ----------
    functions
        Evaluator that applies networks to the edge features.
    envelope
        Weight of an edge [n_edges, 1]: zero at the cutoff if edges have lengths, otherwise one.
    degree
        Sum of these weights at an atom, plus one for the atom itself [n_atoms, 1].
    """

    functions: EdgeFunctions
    envelope: Tensor
    degree: Tensor


class Combination(nn.Module):
    """Last step of a PNA layer: a linear map of aggregates that the degree scales in three ways.

    The aggregates are mean, minimum, maximum and deviation over an atom's messages. The degree is
    the number, perhaps weighted, of its neighbours.

    Parameters
    ----------
    width
        Width of the node features.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    """

    def __init__(self, width: int, mean_log_degree: float) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        # Scalers are applied after the product, whose input is then a third as wide.
        self.aggregate = nn.Linear(N_AGGREGATORS * width, N_SCALERS * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.mean_log_degree = mean_log_degree

    def forward(self, nodes: Tensor, aggregates: list[Tensor], degree: Tensor) -> Tensor:
        """Compute new node features from old ones and four aggregates, [n_atoms, width] each."""
        amplification = torch.log(degree + 1.0) / self.mean_log_degree
        products = self.aggregate(torch.cat(aggregates, dim=1))
        plain, amplified, attenuated = products.chunk(N_SCALERS, dim=1)
        combined = plain + amplified * amplification + attenuated * amplification.reciprocal()
        new: Tensor = self.mix(self.own(nodes) + combined)
        return new


class PNAConvolution(nn.Module):
    """Convolution of PNA without edge features.

    It takes mean, minimum, maximum and deviation over the neighbours. Like PyG's ``PNAConv`` with
    one tower, it has one linear map before and one after aggregation. In the map of [h_i | h_j] the
    term of atom i is the same in all messages to this atom. So the term is added to the aggregates,
    except to the deviation, which does not depend on it.

    Parameters
    ----------
    width
        Width of the node features.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    """

    def __init__(self, width: int, mean_log_degree: float) -> None:
        super().__init__()
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.combine = Combination(width, mean_log_degree)

    def forward(self, nodes: Tensor, features: None, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        own, values = self.receiver(nodes), self.sender(nodes)
        degree = geometry.degree.clamp(min=1.0)
        # Squared before gathering, so once per atom.
        powers = geometry.of_sender(torch.cat([values, values.square()], dim=1))
        mean, squares = (geometry.sum_at_receiver(powers) / degree).chunk(2, dim=1)
        messages = geometry.of_sender(values)
        lowest, highest = (extreme(messages, geometry, which, own_zero=False) for which in EXTREMES)
        aggregates = [mean + own, lowest + own, highest + own, _deviation(mean, squares)]
        new: Tensor = self.combine(nodes, aggregates, degree)
        return new


class WeightedPNAConvolution(nn.Module):
    """Convolution of PNA with edge features, in which the envelope weights edges that have lengths.

    An atom counts as a neighbour of its own with a zero message. With lengths nothing jumps when an
    atom crosses the cutoff. The energy of a potential is continuous; its forces jump where another
    message becomes the extreme.

    Parameters
    ----------
    width
        Width of the node features.
    features
        Width of the edge features.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    gated
        If true, messages are multiplied by a second linear map of the edge features.
    """

    def __init__(
        self, width: int, features: int, mean_log_degree: float, *, gated: bool = False
    ) -> None:
        super().__init__()
        # The map before aggregation is split by operand, so that products for nodes run once per
        # atom.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(features, width, bias=False)
        self.gate = nn.Linear(features, width, bias=False) if gated else None
        self.combine = Combination(width, mean_log_degree)

    def forward(self, nodes: Tensor, features: WeightedEdges, geometry: Geometry) -> Tensor:
        """Compute the atoms' features after the convolution, [n_atoms, width]."""
        # In place, because no gradient needs these three.
        values = geometry.of_receiver(self.receiver(nodes))
        values = values.add_(geometry.of_sender(self.sender(nodes)))
        values = values.add_(features.functions.of(self.edge))
        if self.gate is not None:
            values = values * features.functions.of(self.gate)
        messages = values * features.envelope
        mean = geometry.sum_at_receiver(messages) / features.degree
        squares = geometry.sum_at_receiver(messages * values) / features.degree
        lowest, highest = (extreme(messages, geometry, which, own_zero=True) for which in EXTREMES)
        aggregates = [mean, lowest, highest, _deviation(mean, squares)]
        new: Tensor = self.combine(nodes, aggregates, features.degree)
        return new


def _deviation(mean: Tensor, squares: Tensor) -> Tensor:
    """Return the standard deviation from mean and mean square, with a finite derivative at zero."""
    return ((squares - mean * mean).relu() + 1e-5).sqrt()


def mean_log_degree(statistics: DatasetStatistics) -> float:
    """Return the mean of ln(degree + 1) over the training split's atoms, at least ln 2.

    The degree of an atom is its number of incoming edges.
    """
    logs = sum(n * math.log(degree + 1) for degree, n in enumerate(statistics.degree_histogram))
    # Below ln 2, if few atoms have neighbours, the scalers would become huge.
    return max(logs / max(sum(statistics.degree_histogram), 1), math.log(2.0))


class PNA(Convolutions):
    """Stack of PNA layers, which read which atoms are connected.

    They also read lengths if `edge_features` names these, and always in a potential.
    """

    def prepare(self) -> None:
        """Set ``reader`` of edge features, and ``fades``: whether messages fade with the length."""
        super().prepare()
        self.fades = self.architecture.sees_lengths

    def convolution(self, width: int) -> nn.Module:
        """Return the PNA convolution of one layer, for node features [n_atoms, width]."""
        logs = mean_log_degree(self.statistics)
        if not self.reader.size:
            return PNAConvolution(width, logs)
        return WeightedPNAConvolution(width, self.reader.size, logs)

    def edge_features(self, geometry: Geometry) -> WeightedEdges | None:
        """Return functions that apply networks to each edge's features, and the weights of edges.

        The features are length and attributes. The result is None if layers read neither.
        """
        if not self.reader.size:
            return None
        if self.fades:
            envelope, coordination = geometry.envelope, geometry.coordination
        else:
            envelope, coordination = torch.ones_like(geometry.vectors[:, :1]), geometry.degree
        return WeightedEdges(self.reader(geometry), envelope, coordination + 1.0)
