"""Attention over all atoms of a graph, in addition to message passing between neighbours.

The scheme is GPS, Rampášek et al., arXiv:2205.12454. Atoms attend only to those of their own graph.
In HydraGNN they attend to the whole batch, so a prediction depends on the other graphs in it.

Attention averages over atoms, so the energy of n copies of a periodic cell stays n times that of
one. It has no cutoff: two molecules in one graph interact at any distance.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import Normalization, activation
from hydragnn_flow.models.mpnn.base import NodeState


class GlobalAttention(nn.Module):
    """Softmax attention between the atoms of each graph.

    Vaswani et al., arXiv:1706.03762.

    Parameters
    ----------
    width
        Width of the node features; a multiple of ``heads``.
    heads
        Number of attention heads.
    dropout
        Fraction of attention weights left out in training.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = _dropout(dropout)

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Return the attention's output for each atom, [n_atoms, width], from its node features."""
        assert geometry.padding is not None  # the encoder provides it
        padded = geometry.padding.pad(self.inputs(nodes))
        by_head = padded.view(*padded.shape[:2], 3, self.heads, -1)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        averaged = self.average(query, key, value, geometry.padding.present[:, None, :, None])
        rows = geometry.padding.unpad(averaged.transpose(1, 2).flatten(2))
        new: Tensor = self.output(rows)
        return new

    def average(self, query: Tensor, key: Tensor, value: Tensor, present: Tensor) -> Tensor:
        """Average the values over each graph's atoms by attention, [n_graphs, heads, largest, d].

        Parameters
        ----------
        query, key, value
            Padded features by head, [n_graphs, heads, largest, d].
        present
            Mask of the rows that hold an atom, [n_graphs, 1, largest, 1].
        """
        # Not torch's fused attention: it lacks the second derivative that training on forces needs.
        logits = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
        weights = logits.masked_fill(~present.transpose(2, 3), -math.inf).softmax(dim=3)
        averaged: Tensor = torch.matmul(self.dropout(weights), value)
        return averaged


class PerformerAttention(GlobalAttention):
    """Softmax attention estimated in time and memory linear in the number of atoms.

    The exponential of query · key is estimated by a mean over random directions. Each term of the
    mean is a function of the query times a function of the key: FAVOR+, Choromanski et al.,
    arXiv:2009.14794. The directions are drawn once and kept in the state dict, for reproducible
    predictions; HydraGNN redraws them every 1000 steps.

    Parameters
    ----------
    width, heads, dropout
        The same as for :class:`GlobalAttention`, but dropout acts on averaged values, not on
        weights.
    """

    directions: Tensor

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__(width, heads, dropout)
        self.register_buffer("directions", orthogonal_directions(width // heads))

    def average(self, query: Tensor, key: Tensor, value: Tensor, present: Tensor) -> Tensor:
        """Estimate the averages of the values by attention, [n_graphs, heads, largest, d]."""
        of_query = self._exponents(query)
        of_key = self._exponents(key).masked_fill(~present, -math.inf)
        # The subtracted maximum cancels in the average. It keeps exponentials from overflowing,
        # separately for each graph.
        of_query = torch.exp(of_query - of_query.detach().amax(dim=3, keepdim=True))
        of_key = torch.exp(of_key - of_key.detach().amax(dim=(2, 3), keepdim=True))
        total = of_query @ (of_key.transpose(2, 3) @ value)
        weight = of_query @ of_key.sum(dim=2)[..., None]
        # Where queries and keys are so large and different that all products underflow, the average
        # is zero, with finite derivatives.
        averaged: Tensor = self.dropout(total / weight.clamp(min=1e-20))
        return averaged

    def _exponents(self, rows: Tensor) -> Tensor:
        """Return the logarithms of the random features of queries or keys ``rows``."""
        scaled = rows * rows.shape[3] ** -0.25
        projected: Tensor = scaled @ self.directions.t().to(scaled.dtype)
        squares: Tensor = scaled.square().sum(dim=3, keepdim=True)
        return projected - 0.5 * squares


def orthogonal_directions(width: int) -> Tensor:
    """Draw about width · ln(width) random directions for an attention head, [n, width].

    Directions are orthogonal within groups of ``width``, which gives better estimates than
    independent ones. Their lengths are those of normally distributed vectors.
    """
    number = max(width, round(width * math.log(width)))
    groups = [torch.linalg.qr(torch.randn(width, width)).Q for _ in range(-(-number // width))]
    lengths = torch.randn(number, width).norm(dim=1, keepdim=True)
    directions: Tensor = torch.cat(groups)[:number] * lengths
    return directions


class GPSLayer(nn.Module):
    """Message-passing layer and attention in parallel, followed by a perceptron.

    Layer, attention and perceptron each have a residual connection and a normalisation. Equivariant
    features pass through message passing only.

    Parameters
    ----------
    layer
        Message-passing layer, which includes its own residual connection.
    attention
        Attention over the atoms of a graph.
    width
        Width of the node features.
    name
        HydraGNN's name of the perceptron's activation.
    normalization
        Kind of normalisation, `Architecture.normalization`; layer normalisation if None.
    dropout
        Fraction of features left out in training.
    """

    def __init__(
        self,
        layer: nn.Module,
        attention: GlobalAttention,
        width: int,
        name: str,
        normalization: str | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.perceptron = nn.Sequential(
            nn.Linear(width, 2 * width),
            activation(name),
            _dropout(dropout),
            nn.Linear(2 * width, width),
        )
        self.dropout = _dropout(dropout)
        kind = normalization or "layer"
        self.local_norm = Normalization(kind, width)
        self.global_norm = Normalization(kind, width)
        self.norm = Normalization(kind, width)

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        nodes = state.scalars
        new: NodeState = self.layer(state, features, geometry)
        near = self.local_norm(nodes + self.dropout(new.scalars - nodes), geometry)
        far = self.global_norm(nodes + self.dropout(self.attention(nodes, geometry)), geometry)
        both = near + far
        return new._replace(scalars=self.norm(both + self.dropout(self.perceptron(both)), geometry))


def _dropout(rate: float) -> nn.Module:
    return nn.Dropout(rate) if rate else nn.Identity()
