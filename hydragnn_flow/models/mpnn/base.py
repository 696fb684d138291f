"""The contract of a message-passing type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry


@dataclass(frozen=True)
class Properties:
    """What a type promises; the conformance tests hold it to that.

    Attributes
    ----------
    continuous_at_cutoff
        Where edges have lengths, the output changes continuously when an edge appears or vanishes
        at the cutoff.
    always_sees_lengths
        Edges have lengths whether or not `edge_features` asks for them.
    """

    continuous_at_cutoff: bool
    always_sees_lengths: bool


@dataclass(frozen=True)
class TrainingFacts:
    """What a type may know of the training split.

    Attributes
    ----------
    cutoff
        Of the neighbour list [Å]; envelopes end here.
    average_neighbours
        Mean number of incoming edges of an atom.
    degree_histogram
        Atoms by number of incoming edges.
    """

    cutoff: float
    average_neighbours: float
    degree_histogram: tuple[int, ...]


class MessagePassing(nn.Module):
    """A stack of message-passing layers of one type.

    A type subclasses this, sets :attr:`properties`, fills :attr:`layers` and says in
    :meth:`edge_features` what the layers read of the edges. It must give the same node features
    whatever the order of atoms and edges, and for an atom whatever other graphs are in the batch;
    it must see geometry only through :class:`Geometry`, whose lengths respect periodic images.
    """

    properties: ClassVar[Properties]
    layers: nn.ModuleList
    """Each is called as ``layer(nodes, features, geometry)`` and returns new nodes."""

    def __init__(self, architecture: Architecture, facts: TrainingFacts) -> None:
        super().__init__()

    @classmethod
    def sees_lengths(cls, architecture: Architecture) -> bool:
        """Whether positions enter: always, on request, and for every potential."""
        return (
            cls.properties.always_sees_lengths
            or bool(architecture.edge_features)
            or architecture.enable_interatomic_potential
        )

    def edge_features(self, geometry: Geometry) -> Tensor:
        """What all layers read of the edges [n_edges, d], computed once per batch."""
        raise NotImplementedError

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Node features [n_atoms, hidden_dim] after all layers."""
        features = self.edge_features(geometry)
        for layer in self.layers:
            nodes = layer(nodes, features, geometry)
        return nodes
