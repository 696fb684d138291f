"""Edges of a batch as the message-passing layers see them: who, how long, how much.

Lengths are computed afresh from the positions and the stored shifts of the periodic images, so a
gradient reaches the positions and every type respects the cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class GraphBatch(Protocol):
    """What a model reads of a PyG batch."""

    x: Tensor
    """Node features [n_atoms, n_columns]."""
    pos: Tensor
    """Positions [n_atoms, 3] in Å."""
    edge_index: Tensor
    """Sender (row 0) and receiver (row 1) of each edge, int64 [2, n_edges]."""
    edge_shifts: Tensor
    """Cartesian shift of the periodic image [n_edges, 3] in Å."""
    batch: Tensor
    """Graph each atom belongs to, int64 [n_atoms]."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        ...


@dataclass(frozen=True)
class Geometry:
    """Edges with their lengths.

    Attributes
    ----------
    sender, receiver
        Atoms an edge leads from and to, int64 [n_edges].
    lengths
        Edge lengths [n_edges, 1] in Å.
    envelope
        Cosine cutoff of the lengths [n_edges, 1]: 1 at zero, 0 with zero slope from the cutoff on.
    n_atoms
        Number of atoms of the batch.
    """

    sender: Tensor
    receiver: Tensor
    lengths: Tensor
    envelope: Tensor
    n_atoms: int

    def of_sender(self, nodes: Tensor) -> Tensor:
        """Rows of the senders: [n_atoms, d] to [n_edges, d]."""
        # index_select and index_add, here and below, are several times faster than x[index], and
        # so are their gradients.
        return nodes.index_select(0, self.sender)

    def of_receiver(self, nodes: Tensor) -> Tensor:
        """Rows of the receivers: [n_atoms, d] to [n_edges, d]."""
        return nodes.index_select(0, self.receiver)

    def sum_at_receiver(self, messages: Tensor) -> Tensor:
        """Sum of the incoming messages: [n_edges, d] to [n_atoms, d]."""
        return sum_by(messages, self.receiver, self.n_atoms)

    @cached_property
    def degree(self) -> Tensor:
        """Number of incoming edges [n_atoms, 1]."""
        return self.sum_at_receiver(torch.ones_like(self.lengths))

    @cached_property
    def coordination(self) -> Tensor:
        """Incoming edges, each counted by its envelope [n_atoms, 1]."""
        return self.sum_at_receiver(self.envelope)


def sum_by(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum the rows that share an index: [n, d] to [size, d]."""
    return rows.new_zeros((size, rows.shape[1])).index_add(0, index, rows)


def cosine_envelope(lengths: Tensor, cutoff: float) -> Tensor:
    """Behler and Parrinello's cutoff function, doi:10.1103/PhysRevLett.98.146401.

    Parameters
    ----------
    lengths
        Any shape, in Å.
    cutoff
        Where it ends [Å].
    """
    return 0.5 * (torch.cos(lengths.clamp(max=cutoff) * (math.pi / cutoff)) + 1.0)


def edge_geometry(batch: GraphBatch, positions: Tensor, cutoff: float) -> Geometry:
    """Measure the edges of a batch.

    Parameters
    ----------
    batch
        Its edges and shifts are used, its positions are not.
    positions
        [n_atoms, 3] in Å; they set the precision, and a gradient flows to them.
    cutoff
        Where the envelope ends [Å].
    """
    sender, receiver = batch.edge_index[0], batch.edge_index[1]
    vectors = positions.index_select(0, receiver) - positions.index_select(0, sender)
    vectors = vectors + batch.edge_shifts.to(positions.dtype)
    # The small number keeps the second derivative of the root finite on edges of zero length.
    lengths = (vectors.square().sum(dim=1, keepdim=True) + 1e-12).sqrt()
    return Geometry(sender, receiver, lengths, cosine_envelope(lengths, cutoff), positions.shape[0])
