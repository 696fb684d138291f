"""PNA: principal neighbourhood aggregation. Corso et al., arXiv:2004.05718."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import MessagePassing, Properties, TrainingFacts
from hydragnn_flow.models.radial import GaussianBasis

N_AGGREGATORS = 4
N_SCALERS = 3


class PNALayer(nn.Module):
    """Mean, minimum, maximum and deviation of the messages, scaled by the degree three ways.

    One tower, one linear map before and after aggregation, as in PyG's ``PNAConv``; then layer
    normalisation, activation and a residual. HydraGNN normalises over the batch, which makes a
    prediction depend on how a batch is split over ranks.

    Where edges have lengths a neighbour counts by its envelope, and the atom itself counts as one
    neighbour with a zero message: then nothing jumps when an atom crosses the cutoff. As a
    potential it has continuous energies; its forces jump where another message becomes the extreme.

    Parameters
    ----------
    width
        Hidden width.
    features
        Width of the edge features; 0 for a layer that sees connections only.
    name
        Activation.
    mean_log_degree
        Mean of ln(degree + 1) over the training split.
    """

    def __init__(self, width: int, features: int, name: str, mean_log_degree: float) -> None:
        super().__init__()
        # The maps before and after aggregation are split by what they act on: the parts for nodes
        # are multiplied once per atom, and the scalers are applied after the product.
        self.receiver = nn.Linear(width, width)
        self.sender = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(features, width, bias=False) if features else None
        self.own = nn.Linear(width, width)
        self.aggregate = nn.Linear(N_AGGREGATORS * width, N_SCALERS * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.activation = activation(name)
        self.mean_log_degree = mean_log_degree

    def forward(self, nodes: Tensor, features: Tensor, geometry: Geometry) -> Tensor:
        """New node features [n_atoms, width]."""
        values = geometry.of_receiver(self.receiver(nodes))
        values = values + geometry.of_sender(self.sender(nodes))
        if self.edge is None:
            messages = values
            degree = geometry.degree.clamp(min=1.0)
        else:
            values = values + self.edge(features)
            messages = values * geometry.envelope
            degree = geometry.coordination + 1.0
        smallest, largest = self._extremes(messages.detach(), geometry)
        share = degree.reciprocal()
        mean = geometry.sum_at_receiver(messages) * share
        variance = geometry.sum_at_receiver(messages * values) * share - mean * mean
        aggregated = torch.cat(
            [
                mean,
                geometry.sum_at_receiver(messages * smallest),
                geometry.sum_at_receiver(messages * largest),
                (variance.relu() + 1e-5).sqrt(),
            ],
            dim=1,
        )
        amplification = torch.log(degree + 1.0) / self.mean_log_degree
        plain, amplified, attenuated = self.aggregate(aggregated).chunk(N_SCALERS, dim=1)
        combined = plain + amplified * amplification + attenuated * amplification.reciprocal()
        update: Tensor = self.activation(self.norm(self.mix(self.own(nodes) + combined)))
        return nodes + update

    def _extremes(self, messages: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """Which messages are the smallest and largest at their receiver, [n_edges, width] each.

        The extreme is then a sum of marked messages, whose second derivative costs a fraction of
        that of ``scatter_reduce``. Messages that tie share the mark.
        """
        both = torch.cat([-messages, messages], dim=1)
        index = geometry.receiver[:, None].expand_as(both)
        empty = both.new_zeros((geometry.n_atoms, both.shape[1]))
        # Where edges have lengths the atom's own zero message takes part.
        own = self.edge is not None
        peak = empty.scatter_reduce(0, index, both, "amax", include_self=own)
        marks = (both == geometry.of_receiver(peak)).to(messages.dtype)
        ties = geometry.sum_at_receiver(marks).clamp(min=1.0)
        smallest, largest = (marks / geometry.of_receiver(ties)).chunk(2, dim=1)
        return smallest, largest


class PNA(MessagePassing):
    """PNA over connections; over lengths too where asked for, and always as a potential."""

    properties: ClassVar[Properties] = Properties(
        continuous_at_cutoff=True, always_sees_lengths=False
    )

    def __init__(self, architecture: Architecture, facts: TrainingFacts) -> None:
        super().__init__(architecture, facts)
        size = architecture.num_gaussians if self.sees_lengths(architecture) else 0
        self.basis = GaussianBasis(size, facts.cutoff) if size else None
        logs = sum(n * math.log(degree + 1) for degree, n in enumerate(facts.degree_histogram))
        # Below ln 2, where hardly an atom has a neighbour, the scalers would explode.
        mean_log_degree = max(logs / max(sum(facts.degree_histogram), 1), math.log(2.0))
        self.layers = nn.ModuleList(
            PNALayer(
                architecture.hidden_dim,
                size,
                architecture.activation_function,
                mean_log_degree,
            )
            for _ in range(architecture.num_conv_layers)
        )

    def edge_features(self, geometry: Geometry) -> Tensor:
        """Gaussians of the lengths [n_edges, num_gaussians], or nothing [n_edges, 0]."""
        if self.basis is None:
            return geometry.lengths.new_empty((geometry.lengths.shape[0], 0))
        features: Tensor = self.basis(geometry.lengths)
        return features
