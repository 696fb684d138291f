"""Base class of all message-passing types, and the types of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.config.network.mpnn_types import Properties
from hydragnn_flow.models.geometry import Geometry


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of the training split that a type may use.

    Attributes
    ----------
    cutoff
        Of the neighbour list [Å]; envelopes end here.
    average_neighbours
        Mean number of incoming edges of an atom.
    degree_histogram
        Atoms by number of incoming edges.
    elements
        Atomic numbers in the data, ascending; empty if atoms are not elements.
    n_attributes
        Edge features other than lengths.
    """

    cutoff: float
    average_neighbours: float
    degree_histogram: tuple[int, ...]
    elements: tuple[int, ...] = ()
    n_attributes: int = 0


class NodeState(NamedTuple):
    """Node features between two layers.

    Attributes
    ----------
    scalars
        Invariant features [n_atoms, width].
    tensors
        Features that turn with the frame [n_atoms, …], laid out as the type likes; None if it
        has none.
    """

    scalars: Tensor
    tensors: Tensor | None = None


Layer = Callable[[NodeState, Any, Geometry], NodeState]
"""A message-passing layer, or something wrapped around one."""


class MessagePassing(nn.Module):
    """A stack of message-passing layers of one type.

    A type subclasses this, fills :attr:`layers` and computes in :meth:`edge_features` what they all
    read of the edges. Node features must not depend on the order of atoms and edges, nor on the
    other graphs of the batch. Geometry may be read only from :class:`Geometry`, whose vectors
    respect periodic images. ``hydragnn_flow.testing`` has tests of all this.

    Parameters
    ----------
    architecture
        Parameters of the type.
    statistics
        Of the training split.
    width
        Of the node features that go in and come out.
    depth
        Number of layers.
    """

    properties: ClassVar[Properties]
    """Properties of a user's own type; `config/network/mpnn_types.py` has those of ours."""
    first_energies: ClassVar[float] = 1.0
    """What the last weights of a potential's head are multiplied by before training. A potential
    that begins almost flat is not led astray by the slopes of its random weights."""
    layers: nn.ModuleList
    """Each is a :data:`Layer`."""

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__()
        self.checkpointing = False
        """Whether the backward pass computes layers again instead of keeping their activations
        (Chen et al., arXiv:1604.06174)."""

    def edge_features(self, geometry: Geometry) -> Any:
        """Edge features that all layers read, computed once per batch."""
        raise NotImplementedError

    def begin(self, nodes: Tensor, geometry: Geometry) -> NodeState:
        """The state before the first layer, from node features [n_atoms, width]."""
        return NodeState(nodes)

    @property
    def degrees(self) -> list[int]:
        """Highest degree of the features before each layer, and of those after the last.

        With vectors it is 1. ``tensors`` are then [n_atoms, components, width], where the
        components are those of all degrees from 1 on, in e3nn's order.
        """
        return [0] * (len(self.layers) + 1)

    def wrap(self, wrapper: Callable[[nn.Module], nn.Module]) -> None:
        """Put something around each layer that is called like it."""
        self.layers = nn.ModuleList(wrapper(layer) for layer in self.layers)

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Node features [n_atoms, width] after all layers."""
        features = self.edge_features(geometry)
        state = self.begin(nodes, geometry)
        for layer in self.layers:
            if self.checkpointing and self.training:
                state = checkpoint(_afresh, layer, state, features, geometry, use_reentrant=False)
            else:
                state = layer(state, features, geometry)
        return state.scalars


def _afresh(layer: Layer, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
    # A geometry's memory would be there the second time, and the two passes would differ.
    return layer(state, features, replace(geometry))
