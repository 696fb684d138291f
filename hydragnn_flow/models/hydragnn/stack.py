"""What all types with HydraGNN's layers share: their options, a layer, and the stack of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hydragnn_flow.config.base import Section
from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState

Maker = Callable[[int, int, bool], nn.Module]
"""Makes a convolution from the columns it reads and gives, and whether it is the last."""


class Options(Section):
    """`Architecture.mpnn_options` of these types."""

    inputs: int = Field(default=1, ge=1)
    """Number of input columns, `input_node_features`."""


class Affine(nn.Module):
    """A scale and a shift of each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Tensor) -> Tensor:
        """[n_atoms, width] to the same."""
        return nodes * self.weight + self.bias


class Layer(nn.Module):
    """A convolution that replaces the features, and an activation.

    Parameters
    ----------
    convolution
        Called as ``convolution(state, features, geometry)``; gives a new state.
    width
        Of the features that come out.
    name
        HydraGNN's name of the activation.
    inputs
        Columns that the convolution reads, the first of those that come in.
    normalised
        Whether features are scaled and shifted before the activation.
    """

    def __init__(
        self, convolution: nn.Module, width: int, name: str, inputs: int, *, normalised: bool
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = Affine(width) if normalised else nn.Identity()
        self.activation = activation(name)
        self.inputs = inputs

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """The state after this layer."""
        read = state._replace(scalars=state.scalars[:, : self.inputs])
        new: NodeState = self.convolution(read, features, geometry)
        return new._replace(scalars=self.activation(self.norm(new.scalars)))


class HydraGNNStack(MessagePassing):
    """Base of the types here: layers, the first of which reads the input columns."""

    normalised: ClassVar[bool] = True

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        inputs = min(Options.model_validate(architecture.mpnn_options).inputs, width)
        self.layers = nn.ModuleList(self.build(architecture, statistics, inputs, depth))

    def build(
        self, architecture: Architecture, statistics: DatasetStatistics, inputs: int, depth: int
    ) -> Iterator[Layer]:
        """Makes the layers; the first reads some columns of the input."""
        width, name = architecture.hidden_dim, architecture.activation_function
        make = self.maker(architecture, statistics)
        for layer in range(depth):
            read = width if layer else inputs
            convolution = make(read, width, layer == depth - 1)
            yield Layer(convolution, width, name, read, normalised=self.normalised)

    def maker(self, architecture: Architecture, statistics: DatasetStatistics) -> Maker:
        """What makes the convolutions of the layers."""
        raise NotImplementedError

    def edge_features(self, geometry: Geometry) -> Any:
        """Nothing that all layers read."""
        return None
