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

_REACH = 0.2
"""How far a layer can move an atom with the average number of neighbours, all at one side [Å]."""


@dataclass(frozen=True)
class Edges:
    """Edges as a layer sees them.

    Attributes
    ----------
    geometry
        With the atoms where the layers before have put them.
    envelope
        What messages fade with [n_edges, 1]. Which edges there are depends on where the atoms were
        at first, so it must be zero wherever that distance or the present one is the cutoff.
    functions
        Of the present lengths.
    reader
        Prepares functions of a geometry's edges, multiplied by a factor.
    """

    geometry: Geometry
    envelope: Tensor
    functions: EdgeFunctions
    reader: Callable[[Geometry, Tensor], EdgeFunctions]

    def at(self, state: NodeState) -> Edges:
        """The same edges after the displacements in a state."""
        if state.tensors is None:
            return self
        geometry = self.geometry.moved(state.tensors)
        envelope = self.envelope * geometry.envelope
        return Edges(geometry, envelope, self.reader(geometry, envelope), self.reader)


class Displacement(nn.Module):
    """How far a layer moves the atoms.

    An atom is pushed along each edge by a bounded function of the message, which fades out at the
    cutoff; the sum is divided by the average number of neighbours.

    Parameters
    ----------
    width
        Of the messages.
    average_neighbours
        Mean number of incoming edges of an atom.
    """

    def __init__(self, width: int, average_neighbours: float) -> None:
        super().__init__()
        # Smooth whatever the activation of the other layers, like the messages.
        self.size = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False), nn.Tanh()
        )
        self.reach = _REACH / average_neighbours

    def forward(self, state: NodeState, messages: Tensor, edges: Edges) -> Tensor:
        """All displacements so far [n_atoms, 3] in Å, from messages [n_edges, width]."""
        geometry = edges.geometry
        sizes = self.size(messages) * (edges.envelope * self.reach)
        # Shorter than one, so that nothing jumps where two atoms coincide.
        pushes = geometry.vectors / (geometry.lengths + 1.0) * sizes
        step = geometry.sum_at_receiver(pushes)
        return step if state.tensors is None else state.tensors + step
