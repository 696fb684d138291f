"""HydraGNN's engine `EquivariantTransformer`: message passing, attention and a perceptron.

All three act on scalars, vectors and features of higher degree, and are equivariant. HydraGNN's own
design; see ``docs/equivariant_graph_transformer.md`` there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.global_attention.equivariant_attention import (
    DegreeLinear,
    EquivariantAttention,
)
from hydragnn_flow.models.mpnn.base import NodeState


class RootMeanSquare(nn.Module):
    """Normalisation of an atom's features by their root mean square, which is invariant."""

    def __init__(self) -> None:
        super().__init__()
        # One-dimensional, because a parameter without dimensions cannot be sharded over ranks.
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Normalise features [n_atoms, components, width]."""
        squares = features.square().mean(dim=(1, 2), keepdim=True)
        return features * (self.gain * (squares + 1e-8).rsqrt())


class Perceptron(nn.Module):
    """Two linear layers on features of all degrees, with a gate by their norm in between.

    Parameters
    ----------
    highest
        Highest degree of the features.
    width
        Number of channels of each degree.
    multiplier
        Ratio of hidden channels to channels.
    gain
        Initial size of the output.
    """

    def __init__(self, highest: int, width: int, multiplier: int, gain: float = 1.0) -> None:
        super().__init__()
        self.first = DegreeLinear(highest, width, multiplier * width)
        self.second = DegreeLinear(highest, multiplier * width, width, gain)
        self.sizes = [2 * degree + 1 for degree in range(highest + 1)]

    def forward(self, features: Tensor) -> Tensor:
        """Compute new features [n_atoms, components, width]."""
        hidden = self.first(features).to(features.dtype)
        # SiLU of the norm, in the same direction; with finite derivatives at zero.
        parts = [
            part * (part.square().sum(dim=1, keepdim=True) + 1e-12).sqrt().sigmoid()
            for part in hidden.split(self.sizes, dim=1)
        ]
        new: Tensor = self.second(torch.cat(parts, dim=1))
        return new.to(features.dtype)


class EquivariantTransformerLayer(nn.Module):
    """Message-passing layer and equivariant attention, followed by a perceptron.

    Parameters
    ----------
    layer
        Message-passing layer, which includes its own residual connection.
    attention
        Attention over the atoms of a graph.
    perceptron
        Perceptron for the output features.
    sequential
        If true, attention acts on the output of message passing, otherwise in parallel to it.
    """

    def __init__(
        self,
        layer: nn.Module,
        attention: EquivariantAttention,
        perceptron: Perceptron,
        *,
        sequential: bool,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention = attention
        self.perceptron = perceptron
        self.sequential = sequential
        self.attention_norm = RootMeanSquare()
        self.norm = RootMeanSquare()

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the state after this layer."""
        new: NodeState = self.layer(state, features, geometry)
        nodes = _together(new)
        read = nodes if self.sequential else _together(state)
        far = self.attention(self.attention_norm(read), geometry)
        # Attention may not reach the highest degrees.
        reached = far.shape[1]
        nodes = torch.cat([nodes[:, :reached] + far, nodes[:, reached:]], dim=1)
        nodes = nodes + self.perceptron(self.norm(nodes))
        return NodeState(nodes[:, 0], nodes[:, 1:] if new.tensors is not None else None)


def _together(state: NodeState) -> Tensor:
    """Return features of all degrees [n_atoms, components, width]."""
    scalars = state.scalars[:, None]
    return scalars if state.tensors is None else torch.cat([scalars, state.tensors], dim=1)
