"""Geometry of a batch for message-passing layers: edges, vectors, lengths, envelopes.

Vectors are computed from the positions and the stored shifts of periodic images. So a gradient
reaches the positions, and every type respects the cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hydragnn_flow.models.padding import Padding
from hydragnn_flow.models.space import Space


class GraphBatch(Protocol):
    """Keys of a PyG batch that every model reads.

    Some networks also read ``edge_attr`` [n_edges, k], ``graph_attr``, ``pe`` and ``rel_pe``,
    ``cell``, ``pbc`` or ``dataset_name``.
    """

    x: Tensor
    """Node features [n_atoms, n_columns]."""
    pos: Tensor
    """Positions [n_atoms, 3] in Å."""
    edge_index: Tensor
    """Sender (row 0) and receiver (row 1) of each edge, int64 [2, n_edges]."""
    edge_shifts: Tensor
    """Cartesian shift of the periodic image [n_edges, 3] in Å."""
    batch: Tensor
    """Graph that each atom belongs to, int64 [n_atoms]."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        ...


@dataclass(frozen=True)
class Geometry:
    """Edges of a batch with their vectors, and the other inputs of layers.

    Attributes
    ----------
    sender, receiver
        Atoms that each edge leads from and to, int64 [n_edges].
    vectors
        Vectors from the sender to the receiver's image [n_edges, 3] in Å.
    cutoff
        Length at which envelopes end [Å].
    graph
        Graph that each atom belongs to, int64 [n_atoms].
    n_graphs
        Number of graphs in the batch.
    elements
        Atomic number of each atom, int64 [n_atoms]; None if the graphs have none.
    attributes
        Edge features other than lengths [n_edges, k]; None if the network reads none.
    graph_attr
        Features of the graphs [n_graphs, k]; None if the network reads none.
    padding
        Padding of the atoms to one matrix per graph; None if no layer needs it.
    space
        Positions and periodicity of the graphs; None if no layer needs them.
    """

    sender: Tensor
    receiver: Tensor
    vectors: Tensor
    cutoff: float
    graph: Tensor
    n_graphs: int
    elements: Tensor | None = None
    attributes: Tensor | None = None
    graph_attr: Tensor | None = None
    padding: Padding | None = None
    space: Space | None = None

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the batch."""
        return self.graph.shape[0]

    @cached_property
    def lengths(self) -> Tensor:
        """Edge lengths [n_edges, 1] in Å."""
        # The small constant keeps second derivatives of the root finite for edges of zero length.
        return (self.vectors.square().sum(dim=1, keepdim=True) + 1e-12).sqrt()

    @cached_property
    def directions(self) -> Tensor:
        """Unit vectors of the edges [n_edges, 3]; zero for an edge of zero length."""
        return self.vectors / self.lengths

    @cached_property
    def envelope(self) -> Tensor:
        """Cosine cutoff of the lengths [n_edges, 1]: 1 at zero, 0 with zero slope at the cutoff."""
        return cosine_envelope(self.lengths, self.cutoff)

    @cached_property
    def degree(self) -> Tensor:
        """Number of incoming edges [n_atoms, 1]."""
        return self.sum_at_receiver(torch.ones_like(self.vectors[:, :1]))

    @cached_property
    def coordination(self) -> Tensor:
        """Number of incoming edges weighted by their envelopes [n_atoms, 1]."""
        return self.sum_at_receiver(self.envelope)

    def of_sender(self, nodes: Tensor) -> Tensor:
        """Return the senders' rows: [n_atoms, …] to [n_edges, …]."""
        # index_select and index_add, here and below, and their gradients are several times faster
        # than indexing by x[index].
        return nodes.index_select(0, self.sender)

    def of_receiver(self, nodes: Tensor) -> Tensor:
        """Return the receivers' rows: [n_atoms, …] to [n_edges, …]."""
        return nodes.index_select(0, self.receiver)

    def sum_at_receiver(self, messages: Tensor) -> Tensor:
        """Sum incoming messages at each atom: [n_edges, …] to [n_atoms, …]."""
        return sum_by(messages, self.receiver, self.n_atoms)

    def sum_at_sender(self, messages: Tensor) -> Tensor:
        """Sum outgoing messages at each atom: [n_edges, …] to [n_atoms, …]."""
        return sum_by(messages, self.sender, self.n_atoms)

    def moved(self, displacements: Tensor) -> Geometry:
        """Return the geometry after atoms have moved by ``displacements`` [n_atoms, 3] in Å."""
        step = self.of_receiver(displacements) - self.of_sender(displacements)
        return replace(self, vectors=self.vectors + step)


def sum_by(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows that share an index: [n, …] to [size, …].

    The sum is at least in single precision. In the half precision of automatic mixed precision it
    would stop growing once it is some hundred times as large as the next term.
    """
    if rows.dtype in (torch.bfloat16, torch.float16):
        rows = rows.float()
    return rows.new_zeros((size, *rows.shape[1:])).index_add(0, index, rows)


def cosine_envelope(lengths: Tensor, cutoff: float) -> Tensor:
    """Compute Behler and Parrinello's cutoff function, doi:10.1103/PhysRevLett.98.146401.

    Parameters
    ----------
    lengths
        Lengths of any shape, in Å.
    cutoff
        Length from which the function is zero [Å].
    """
    return 0.5 * (torch.cos(lengths.clamp(max=cutoff) * (math.pi / cutoff)) + 1.0)


def edge_vectors(batch: GraphBatch, positions: Tensor) -> Tensor:
    """Compute the vectors of a batch's edges [n_edges, 3] in Å.

    Parameters
    ----------
    batch
        Batch whose edges and shifts are used, and whose positions are not.
    positions
        Positions [n_atoms, 3] in Å; they determine the precision, and receive a gradient.
    """
    sender, receiver = batch.edge_index[0], batch.edge_index[1]
    vectors = positions.index_select(0, receiver) - positions.index_select(0, sender)
    return vectors + batch.edge_shifts.to(positions.dtype)
