"""Layers that move the atoms: HydraGNN's `equivariance` of EGNN and SchNet.

Satorras et al., arXiv:2102.09844, equation 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from hydragnn_flow.models.edge_functions import EdgeFunctions
from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.mpnn.base import NodeState


@dataclass(frozen=True)
class Edges:
    """Edges with the current positions of the atoms.

    Attributes
    ----------
    geometry
        Geometry with the displacements of earlier layers.
    envelope
        Factor of messages [n_edges, 1]. The neighbour list depends on the original positions, so
        the factor must be zero at the cutoff of the original length and of the current one.
    functions
        Functions of the current lengths.
    reader
        Function that prepares functions of a geometry's edges, multiplied by a factor.
    """

    geometry: Geometry
    envelope: Tensor
    functions: EdgeFunctions
    reader: Callable[[Geometry, Tensor], EdgeFunctions]

    def at(self, state: NodeState) -> Edges:
        """Return the edges after the displacements in a state."""
        if state.tensors is None:
            return self
        geometry = self.geometry.moved(state.tensors)
        envelope = self.envelope * geometry.envelope
        return Edges(geometry, envelope, self.reader(geometry, envelope), self.reader)


class Displacement(nn.Module):
    """Displacement of the atoms by a layer.

    An atom is pushed along each edge by a bounded function of the message that fades out at the
    cutoff. The sum is divided by the average number of neighbours.

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
        """Compute all displacements so far [n_atoms, 3] in Å, from messages [n_edges, width]."""
        geometry = edges.geometry
        sizes = self.size(messages) * (edges.envelope * self.reach)
        # Shorter than unit vectors, so that the push is continuous where two atoms coincide.
        pushes = geometry.vectors / (geometry.lengths + 1.0) * sizes
        step = geometry.sum_at_receiver(pushes)
        return step if state.tensors is None else state.tensors + step
