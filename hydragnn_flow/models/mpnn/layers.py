"""Wrappers of a type's layers, with the same call signature."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.activation import activation
from hydragnn_flow.models.edge_functions import gaussian_reader
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState
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


class Convolutions(MessagePassing):
    """Type that only consists of convolutions of invariant features.

    A type of this kind prepares what its convolutions need in :meth:`prepare`, and returns that of
    a layer from :meth:`convolution`. Parameters are those of :class:`MessagePassing`.
    """

    normalization: ClassVar[str] = "layer"
    """Normalisation if the architecture names none."""

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__(architecture, statistics, width, depth)
        self.architecture, self.statistics = architecture, statistics
        self.prepare()
        self.layers = nn.ModuleList(
            Convolution(self.convolution(width), width, architecture, self.normalization)
            for _ in range(depth)
        )

    def prepare(self) -> None:
        """Make what the layers share; by default a reader of Gaussians and attributes."""
        lengths = self.architecture.sees_lengths
        self.reader = gaussian_reader(self.architecture, self.statistics, lengths=lengths)

    def convolution(self, width: int) -> nn.Module:
        """Return the convolution of a layer, for node features [n_atoms, width]."""
        raise NotImplementedError


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
