"""HydraGNN's engine `EquivariantTransformer`: message passing, attention, and a perceptron.

Vectors and features of higher degree take part in all three, each in the way that turns with the
frame. HydraGNN's own; see ``docs/equivariant_graph_transformer.md`` there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydragnn_flow.models.equivariant_attention import DegreeLinear, EquivariantAttention
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import NodeState


class RootMeanSquare(nn.Module):
    """Features of an atom divided by the root of their mean square, which no rotation changes."""

    def __init__(self) -> None:
        super().__init__()
        # Of one dimension: a parameter without any could not be divided among ranks.
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Features [n_atoms, components, width]."""
        squares = features.square().mean(dim=(1, 2), keepdim=True)
        return features * (self.gain * (squares + 1e-8).rsqrt())

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *others: Any) -> None:
        name = f"{prefix}gain"
        if name in state:  # once a number without dimensions
            state[name] = state[name].reshape(1)
        super()._load_from_state_dict(state, prefix, *others)


class Perceptron(nn.Module):
    """A layer on features of all degrees, each scaled by a function of its length, and another.

    Parameters
    ----------
    highest
        Highest degree.
    width
        Channels of each degree.
    multiplier
        How many times as many there are in between.
    gain
        Size of the result before training.
    """

    def __init__(self, highest: int, width: int, multiplier: int, gain: float = 1.0) -> None:
        super().__init__()
        self.first = DegreeLinear(highest, width, multiplier * width)
        self.second = DegreeLinear(highest, multiplier * width, width, gain)
        self.sizes = [2 * degree + 1 for degree in range(highest + 1)]

    def forward(self, features: Tensor) -> Tensor:
        """Features [n_atoms, components, width]."""
        hidden = self.first(features).to(features.dtype)
        # SiLU of the length, in the direction it had; with finite slopes where it is zero.
        parts = [
            part * (part.square().sum(dim=1, keepdim=True) + 1e-12).sqrt().sigmoid()
            for part in hidden.split(self.sizes, dim=1)
        ]
        new: Tensor = self.second(torch.cat(parts, dim=1))
        return new.to(features.dtype)


class EquivariantTransformerLayer(nn.Module):
    """A message-passing layer and equivariant attention, then a perceptron.

    Parameters
    ----------
    layer
        Message passing; it brings its own residual connection.
    attention
        Over the atoms of a graph.
    perceptron
        For the features that come out.
    sequential
        Attention acts on what message passing makes, not beside it.
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
        """The state after this layer."""
        new: NodeState = self.layer(state, features, geometry)
        nodes = _together(new)
        read = nodes if self.sequential else _together(state)
        far = self.attention(self.attention_norm(read), geometry)
        # It may not reach the highest degrees.
        reached = far.shape[1]
        nodes = torch.cat([nodes[:, :reached] + far, nodes[:, reached:]], dim=1)
        nodes = nodes + self.perceptron(self.norm(nodes))
        return NodeState(nodes[:, 0], nodes[:, 1:] if new.tensors is not None else None)


def _together(state: NodeState) -> Tensor:
    """Features of all degrees [n_atoms, components, width]."""
    scalars = state.scalars[:, None]
    return scalars if state.tensors is None else torch.cat([scalars, state.tensors], dim=1)
