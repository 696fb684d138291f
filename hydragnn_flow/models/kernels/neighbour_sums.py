"""Sums over the neighbours of atoms, for messages that are the senders' features.

They use ``embedding_bag``, which adds rows while it reads them. A gather followed by a sum writes a
tensor with a row per edge, and its backward pass another. For 20 neighbours that is ten times
slower on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.multilinear import derivative


class Bags(NamedTuple):
    """Sets of a table's rows that are summed; the entries of a bag are consecutive.

    Attributes
    ----------
    rows
        Row that each entry reads, int64 [n_entries].
    owners
        Bag that each entry belongs to, ascending, int64 [n_entries].
    starts
        First entry of each bag, and the number of entries, int64 [n_bags + 1].
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor


@dataclass(frozen=True)
class NeighbourSums:
    """Bags of senders for each head and atom, and the transposed bags of receivers.

    Rows and bags are numbered by head, and by atom within a head. Tensors that only gradients need
    are computed on first use.

    Attributes
    ----------
    edges
        Edges sorted by receiver, int64 [n_edges].
    senders, receivers
        Atoms of the edges in that order, int64 [n_edges].
    n_atoms
        Number of atoms in the batch.
    heads
        Number of heads, each with a copy of the bags.
    """

    edges: Tensor
    senders: Tensor
    receivers: Tensor
    n_atoms: int
    heads: int

    @cached_property
    def incoming(self) -> Bags:
        """Bags of the senders of each receiver."""
        return self._bags(self.senders, self.receivers)

    @cached_property
    def outgoing(self) -> Bags:
        """Bags of the receivers of each sender."""
        senders, order = self._by_sender
        return self._bags(self.receivers.index_select(0, order), senders)

    @cached_property
    def degrees(self) -> Tensor:
        """Number of senders in each bag, int64 [heads * n_atoms]."""
        return self.incoming.starts.diff()

    def sum(self, nodes: Tensor) -> Tensor:
        """Sum the senders' rows at each receiver, for one head: [n_atoms, d] to [n_atoms, d]."""
        return derivative(self._plain, 0, nodes)

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        """Sum the senders' weighted values at each receiver, [n_atoms, heads, d].

        Parameters
        ----------
        values
            Values of the atoms by head [n_atoms, heads, d].
        weights
            Weights of the edges by head [n_edges, heads].
        """
        by_head = values.transpose(0, 1).to(weights.dtype)
        entries = weights.index_select(0, self.edges).t().reshape(-1)
        total = derivative(self._weighted, 0, by_head.flatten(0, 1), entries)
        return total.view(by_head.shape).transpose(0, 1)

    @cached_property
    def to_outgoing(self) -> Tensor:
        """Index of the incoming entry that equals each outgoing one, int64 [n_entries]."""
        return self._numbered(self._by_sender[1], len(self.edges))

    def _plain(self, of: int, operands: list[Any]) -> Tensor:
        """Compute derivatives of Σ_ij receivers_i · senders_j."""
        receivers, senders = operands
        if of == 0:
            return _sums(self.incoming, senders, None)
        return _sums(self.outgoing, receivers, None)

    def _weighted(self, of: int, operands: list[Any]) -> Tensor:
        """Compute derivatives of Σ_ij weights_ij receivers_i · senders_j."""
        receivers, senders, weights = operands
        if of == 0:
            return _sums(self.incoming, senders, weights)
        if of == 1:
            return _sums(self.outgoing, receivers, weights.index_select(0, self.to_outgoing))
        return _dots(self.incoming, receivers, senders)

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor]:
        """Senders in ascending order, and the edge of each."""
        return torch.sort(self.senders, stable=True)

    def _bags(self, rows: Tensor, owners: Tensor) -> Bags:
        owners = self._numbered(owners, self.n_atoms)
        bags = torch.arange(self.heads * self.n_atoms + 1, device=owners.device)
        return Bags(self._numbered(rows, self.n_atoms), owners, torch.searchsorted(owners, bags))

    def _numbered(self, numbers: Tensor, each: int) -> Tensor:
        """Repeat numbers for every head, offset by ``each`` per head."""
        if self.heads == 1:
            return numbers
        head = torch.arange(self.heads, device=numbers.device)[:, None]
        return (numbers + head * each).flatten()


def neighbour_sums(geometry: Geometry, heads: int = 1) -> NeighbourSums:
    """Return the bags of a batch; this is faster if edges are sorted by receiver."""
    receivers, edges = geometry.receiver, None
    # Checking costs a CPU much less than sorting, but makes an accelerator's host wait.
    if receivers.device.type != "cpu" or bool((receivers[1:] < receivers[:-1]).any()):
        receivers, edges = torch.sort(receivers, stable=True)
    senders = geometry.sender if edges is None else geometry.sender.index_select(0, edges)
    if edges is None:
        edges = torch.arange(len(receivers))
    return NeighbourSums(edges, senders, receivers, geometry.n_atoms, heads)


def _sums(bags: Bags, table: Tensor, weights: Tensor | None) -> Tensor:
    """Compute Σ weight * row over each bag, with weights of one if there are none."""
    return functional.embedding_bag(
        bags.rows,
        table.contiguous(),
        bags.starts,
        mode="sum",
        include_last_offset=True,
        per_sample_weights=weights,
    )


def _dots(bags: Bags, ours: Tensor, table: Tensor) -> Tensor:
    """Compute products of the bag's row of one table and the entry's row of another [n_entries]."""
    # This is the gradient of embedding_bag by its weights; mode 0 is the sum.
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        ours.contiguous(), table.contiguous(), bags.rows, bags.starts[:-1], bags.owners, 0
    )
    return dots
