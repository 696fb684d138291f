"""What all message-passing types have in common, and what each promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hydragnn_flow.config.network import Architecture
from hydragnn_flow.models.geometry import Geometry


@dataclass(frozen=True)
class Properties:
    """What a type promises; the conformance tests hold it to that.

    Attributes
    ----------
    lengths
        Whether edges have lengths ``always``, on ``request`` by `edge_features` (and in every
        potential), or ``never``; a type that never sees lengths cannot be a potential.
    continuous_at_cutoff
        Where edges have lengths, the output changes continuously when an edge appears or vanishes
        at the cutoff.
    smooth_forces
        So do the forces of a potential, and they have no jumps inside the cutoff.
    sees_angles
        Two structures that differ in the angles between edges alone are told apart by one layer.
    """

    lengths: Literal["always", "request", "never"]
    continuous_at_cutoff: bool
    smooth_forces: bool
    sees_angles: bool = False


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
    elements
        Atomic numbers in the data, ascending; empty where atoms are not elements.
    n_attributes
        Edge features other than lengths.
    """

    cutoff: float
    average_neighbours: float
    degree_histogram: tuple[int, ...]
    elements: tuple[int, ...] = ()
    n_attributes: int = 0


class NodeState(NamedTuple):
    """What a layer hands to the next.

    Attributes
    ----------
    scalars
        Invariant features [n_atoms, width].
    tensors
        Features that turn with the frame [n_atoms, …], laid out as the type likes; None where it
        has none.
    """

    scalars: Tensor
    tensors: Tensor | None = None


Layer = Callable[[NodeState, Any, Geometry], NodeState]
"""A message-passing layer, or something wrapped around one."""


class MessagePassing(nn.Module):
    """A stack of message-passing layers of one type.

    A type subclasses this, sets :attr:`properties`, fills :attr:`layers` and says in
    :meth:`edge_features` what the layers read of the edges. It must give the same node features
    whatever the order of atoms and edges, and for an atom whatever other graphs are in the batch;
    it must see geometry only through :class:`Geometry`, whose vectors respect periodic images.

    Parameters
    ----------
    architecture
        Parameters of the type.
    facts
        Of the training split.
    width
        Of the node features that go in and come out.
    depth
        Number of layers.
    """

    properties: ClassVar[Properties]
    layers: nn.ModuleList
    """Each is a :data:`Layer`."""

    def __init__(
        self, architecture: Architecture, facts: TrainingFacts, width: int, depth: int
    ) -> None:
        super().__init__()
        self.checkpointing = False
        """Whether layers are computed anew in the backward pass instead of keeping what it needs
        (Chen et al., arXiv:1604.06174)."""

    @classmethod
    def sees_lengths(cls, architecture: Architecture) -> bool:
        """Whether positions enter."""
        if cls.properties.lengths == "request":
            return architecture.asks_for_lengths or architecture.enable_interatomic_potential
        return cls.properties.lengths == "always"

    def edge_features(self, geometry: Geometry) -> Any:
        """What all layers read of the edges, computed once per batch."""
        raise NotImplementedError

    def begin(self, nodes: Tensor, geometry: Geometry) -> NodeState:
        """The state before the first layer, from node features [n_atoms, width]."""
        return NodeState(nodes)

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
    # What a geometry remembers would be there the second time, and the two passes differ.
    return layer(state, features, replace(geometry))
