"""Wrappers of message-passing layers with the same call signature, and layers that move atoms.

Atoms move as in Satorras et al., arXiv:2102.09844, equation 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.layers import EdgeFunctions, Normalization, activation, gaussian_reader
from hydragnn_flow.models.mpnn.base import DatasetStatistics, MessagePassing, NodeState


class Convolution(nn.Module):
    """Message-passing layer of convolution, normalisation, activation and residual connection.

    Features are invariant (scalars).

    Parameters
    ----------
    convolution
        Module called as ``convolution(nodes, features, geometry)``; returns [n_atoms, width].
    width
        Width of the node features.
    architecture
        Section `Architecture`, with activation and normalisation.
    default
        Kind of normalisation if ``architecture`` names none.
    """

    def __init__(
        self, convolution: nn.Module, width: int, architecture: Architecture, default: str
    ) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm = Normalization(architecture.normalization or default, width)
        self.activation = activation(architecture.activation_function)

    def forward(self, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        new: Tensor = self.convolution(state.scalars, features, geometry)
        return NodeState(state.scalars + self.activation(self.norm(new, geometry)))


class Convolutions(MessagePassing):
    """Base class of message-passing types whose layers are convolutions of invariant features.

    A subclass returns the convolution of one layer from :meth:`convolution`. It sets in
    :meth:`prepare` the attributes that :meth:`convolution` reads. Parameters are those of
    :class:`MessagePassing`.
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
        """Build ``reader``, the module that makes the features of edges which all layers use.

        They are Gaussians of the edge's length, if the architecture reads lengths, and the other
        attributes of the edge.
        """
        lengths = self.architecture.sees_lengths
        self.reader = gaussian_reader(self.architecture, self.statistics, lengths=lengths)

    def convolution(self, width: int) -> nn.Module:
        """Return the convolution of one layer, a module for node features [n_atoms, width]."""
        raise NotImplementedError


class Followed(nn.Module):
    """Message-passing layer followed by a normalisation or conditioning of its invariant features.

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
        """Return the atoms' features after this layer; their scalars are [n_atoms, width]."""
        new: NodeState = self.layer(state, features, geometry)
        return new._replace(scalars=self.after(new.scalars, geometry))


@dataclass(frozen=True)
class Edges:
    """Edges of a batch at the current positions of the atoms, which layers may have moved.

    Attributes
    ----------
    geometry
        Geometry with the displacements of earlier layers.
    envelope
        Factor of messages [n_edges, 1]. The neighbour list depends on the original positions, so
        the factor must be zero at the cutoff of the original length and of the current one.
    functions
        Evaluator that applies small networks to the edges' current lengths.
    reader
        Function that returns ``functions`` for a geometry and a factor of messages [n_edges, 1].
    """

    geometry: Geometry
    envelope: Tensor
    functions: EdgeFunctions
    reader: Callable[[Geometry, Tensor], EdgeFunctions]

    def at(self, state: NodeState) -> Edges:
        """Return the edges after the atoms have moved by ``state.tensors``, [n_atoms, 3] in Å.

        If these displacements are None, the edges stay the same.
        """
        if state.tensors is None:
            return self
        geometry = self.geometry.moved(state.tensors)
        envelope = self.envelope * geometry.envelope
        return Edges(geometry, envelope, self.reader(geometry, envelope), self.reader)


class Displacement(nn.Module):
    """Displacement of atoms along their edges [Å], computed from the messages of a layer.

    Along each edge an atom is pushed by a bounded function of the message. The push fades out at
    the cutoff. The sum of the pushes is divided by the average number of neighbours.

    Parameters
    ----------
    width
        Width of the messages.
    average_neighbours
        Mean number of incoming edges of an atom.
    """

    def __init__(self, width: int, average_neighbours: float) -> None:
        super().__init__()
        # Smooth like the messages, whatever the activation of the other layers.
        self.size = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False), nn.Tanh()
        )
        # Largest displacement by a layer [Å], with the average number of neighbours, all on one
        # side.
        self.reach = 0.2 / average_neighbours

    def forward(self, state: NodeState, messages: Tensor, edges: Edges) -> Tensor:
        """Return the sum of the displacements by this layer and earlier ones [n_atoms, 3] in Å.

        ``messages`` are [n_edges, width]; ``state.tensors`` are the earlier displacements.
        """
        geometry = edges.geometry
        sizes = self.size(messages) * (edges.envelope * self.reach)
        # Shorter than unit vectors, so that the push is continuous where two atoms coincide.
        pushes = geometry.vectors / (geometry.lengths + 1.0) * sizes
        step = geometry.sum_at_receiver(pushes)
        return step if state.tensors is None else state.tensors + step
