"""Wrappers of a type's layers, with the same call signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import NodeState
from hydragnn_flow.models.normalization import Normalization


class Convolution(nn.Module):
    """Convolution of invariant features, with normalisation, activation and residual connection.

    Parameters
    ----------
    convolution
        Module called as ``convolution(nodes, features, geometry)``; returns [n_atoms, width].
    width
        Width of the node features.
    architecture
        Section with activation and normalisation.
    default
        Normalisation if the section names none.
    """

    def __init__(
        self, convolution: nn.Module, width: int, architecture: Architecture, default: str
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = Normalization(architecture.normalization or default, width)
        self.activation = activation(architecture.activation_function)

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the state after this layer."""
        new: Tensor = self.convolution(state.scalars, features, geometry)
        return NodeState(state.scalars + self.activation(self.norm(new, geometry)))


def convolutions(
    architecture: Architecture,
    width: int,
    depth: int,
    make: Callable[[], nn.Module],
    default: str = "layer",
) -> nn.ModuleList:
    """Return the layers of a type that only consists of convolutions.

    Parameters
    ----------
    architecture, width, depth
        Arguments of the type.
    make
        Function that makes the convolution of a layer.
    default
        Normalisation if the architecture names none.
    """
    return nn.ModuleList(Convolution(make(), width, architecture, default) for _ in range(depth))


class Followed(nn.Module):
    """Layer with a normalisation or conditioning of its invariant features.

    Parameters
    ----------
    layer
        Message-passing layer, perhaps wrapped already.
    after
        Module called as ``after(nodes, geometry)``; returns new nodes [n_atoms, width].
    """

    def __init__(self, layer: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the state after this layer."""
        new: NodeState = self.layer(state, features, geometry)
        return new._replace(scalars=self.after(new.scalars, geometry))
