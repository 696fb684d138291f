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
from hydragnn_flow.models.kernels.recomputed import recomputed


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of the training split, such as its elements, that a message-passing type may use.

    Attributes
    ----------
    cutoff
        Cutoff of the neighbour list [Å], where envelopes end.
    average_neighbours
        Mean number of incoming edges of an atom.
    degree_histogram
        Number of atoms with 0, 1, 2, … incoming edges.
    elements
        Atomic numbers in the training split, ascending; empty if the graphs do not have them.
    n_attributes
        Number of edge features other than lengths.
    """

    cutoff: float
    average_neighbours: float
    degree_histogram: tuple[int, ...]
    elements: tuple[int, ...] = ()
    n_attributes: int = 0


class NodeState(NamedTuple):
    """Features of a batch's atoms between two message-passing layers.

    Attributes
    ----------
    scalars
        Invariant features [n_atoms, width].
    tensors
        Equivariant features [n_atoms, …], in a layout that the message-passing type chooses; None
        for no such features.
    """

    scalars: Tensor
    tensors: Tensor | None = None


Layer = Callable[[NodeState, Any, Geometry], NodeState]
"""Message-passing layer, or wrapper of one: called with node state, edge features and geometry."""


class MessagePassing(nn.Module):
    """Stack of message-passing layers of one type.

    A message-passing type is a subclass. It fills :attr:`layers`, and computes in
    :meth:`edge_features` the edge features that all layers read. Node features must not depend on
    the order of atoms and edges, nor on other graphs of the batch. Geometry may be read only from
    :class:`Geometry`, whose vectors respect periodic images. ``hydragnn_flow.testing`` has tests of
    all this.

    Parameters
    ----------
    architecture
        Section `Architecture`, with the parameters of the type.
    statistics
        Statistics of the training split.
    width
        Width of the input and output node features.
    depth
        Number of layers in the stack.
    """

    properties: ClassVar[Properties]
    """Properties of a user's own type; `config/network/mpnn_types.py` has those of the types
    that ship."""
    first_energies: ClassVar[float] = 1.0
    """Factor of the initial weights in a potential's last layer. With small weights the potential
    begins almost flat, and is not led astray by the slopes of random weights."""
    layers: nn.ModuleList
    """Layers of the stack, each a :data:`Layer`."""

    def __init__(
        self, architecture: Architecture, statistics: DatasetStatistics, width: int, depth: int
    ) -> None:
        super().__init__()
        self.checkpointing = False
        """True if the backward pass recomputes layers instead of keeping their activations (Chen et
        al., arXiv:1604.06174)."""
        self.degrees = [0] * (depth + 1)
        """Highest degree of the node features before each layer, and after the last one. The degree
        of scalars is 0, that of vectors 1. Where it is above 0, ``tensors`` of the
        :class:`NodeState` are [n_atoms, components, width], with the components of all degrees from
        1 on, in e3nn's order."""

    def edge_features(self, geometry: Geometry) -> Any:
        """Compute the edge features that all layers read, once per batch."""
        raise NotImplementedError

    def begin(self, nodes: Tensor, geometry: Geometry) -> NodeState:
        """Return the first layer's input, made from the node features [n_atoms, width]."""
        return NodeState(nodes)

    def wrap(self, wrapper: Callable[[nn.Module], nn.Module]) -> None:
        """Replace each message-passing layer, in place, by ``wrapper(layer)``.

        The new module has the same call signature as the layer.
        """
        self.layers = nn.ModuleList(wrapper(layer) for layer in self.layers)

    def forward(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        """Compute node features [n_atoms, width] after all layers of the stack."""
        recomputes = self.checkpointing and self.training
        if recomputes and geometry.vectors.requires_grad and not self._draws():
            return self._recompute_for_forces(nodes, geometry)
        features = self.edge_features(geometry)
        state = self.begin(nodes, geometry)
        for layer in self.layers:
            if recomputes:
                state = checkpoint(_afresh, layer, state, features, geometry, use_reentrant=False)
            else:
                state = layer(state, features, geometry)
        return state.scalars

    def _draws(self) -> bool:
        # Dropout draws the same numbers again only under ``torch.utils.checkpoint``.
        return any(isinstance(module, nn.Dropout) for module in self.layers.modules())

    def _recompute_for_forces(self, nodes: Tensor, geometry: Geometry) -> Tensor:
        state = self.begin(nodes, geometry)
        moving = [geometry.vectors]
        if geometry.space is not None:
            moving.append(geometry.space.positions)
        for number in range(len(self.layers)):
            others = [f"stack.layers.{n}." for n in range(len(self.layers)) if n != number]
            tensors = [one for one in state if one is not None]
            layer = _Layer(self, number, geometry)
            state = NodeState(*recomputed(layer, *moving, *tensors, unused=others))
        return state.scalars


class _Layer(nn.Module):
    """Layer that also computes its edge features, whose gradients lead to the edge vectors."""

    def __init__(self, stack: MessagePassing, number: int, geometry: Geometry) -> None:
        super().__init__()
        self.stack, self.number, self.geometry = stack, number, geometry

    def forward(self, vectors: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        space, tensors = self.geometry.space, others
        if space is not None:
            space, tensors = space._replace(positions=others[0]), others[1:]
        geometry = replace(self.geometry, vectors=vectors, space=space)
        features = self.stack.edge_features(geometry)
        new = self.stack.layers[self.number](NodeState(*tensors), features, geometry)
        return tuple(one for one in new if one is not None)


def _afresh(layer: Layer, state: NodeState, features: Any, geometry: Geometry) -> NodeState:
    # The second pass would find properties of the same geometry cached, and the two would differ.
    return layer(state, features, replace(geometry))
