"""Wrappers of a type's layers, called as these are."""

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
    """A convolution of invariant features, then normalisation, activation and a residual.

    Parameters
    ----------
    convolution
        Called as ``convolution(nodes, features, geometry)``; gives new nodes [n_atoms, width].
    width
        Of the node features.
    architecture
        Of its activation and normalisation.
    default
        Normalisation where the architecture names none.
    """

    def __init__(
        self, convolution: nn.Module, width: int, architecture: Architecture, default: str
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = Normalization(architecture.normalization or default, width)
        self.activation = activation(architecture.activation_function)

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """The state after this layer."""
        new: Tensor = self.convolution(state.scalars, features, geometry)
        return NodeState(state.scalars + self.activation(self.norm(new, geometry)))


def convolutions(
    architecture: Architecture,
    width: int,
    depth: int,
    make: Callable[[], nn.Module],
    default: str = "layer",
) -> nn.ModuleList:
    """The layers of a type that is nothing but convolutions.

    Parameters
    ----------
    architecture, width, depth
        As a type gets them.
    make
        Makes the convolution of a layer.
    default
        Normalisation where the architecture names none.
    """
    return nn.ModuleList(Convolution(make(), width, architecture, default) for _ in range(depth))


class Followed(nn.Module):
    """A layer whose invariant features then pass through a normalisation or conditioning.

    Parameters
    ----------
    layer
        Message passing.
    after
        Called as ``after(nodes, geometry)``; gives new nodes [n_atoms, width].
    """

    def __init__(self, layer: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """The state after this layer."""
        new: NodeState = self.layer(state, features, geometry)
        return new._replace(scalars=self.after(new.scalars, geometry))
