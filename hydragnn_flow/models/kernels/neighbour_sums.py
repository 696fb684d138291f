"""Sums over the neighbours of atoms, for messages that are the senders' own features.

They are taken with ``embedding_bag``, which adds the rows as it reads them. A gather followed by a
sum first writes a tensor as long as the edges, and the backward pass another: for 20 neighbours
that is ten times slower on a CPU.
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
    """Which rows of a table are summed: the entries of a bag follow one another.

    Attributes
    ----------
    rows
        Row that each entry reads, int64 [n_entries].
    owners
        Bag that each entry belongs to, ascending, int64 [n_entries].
    starts
        Where each bag begins, and the number of entries, int64 [n_bags + 1].
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor


@dataclass(frozen=True)
class NeighbourSums:
    """For each head and atom a bag of the senders, and the opposite: a bag of the receivers.

    Rows and bags are numbered head by head, and by atom within a head. Tensors that only gradients
    read are computed when they first do.

    Attributes
    ----------
    edges
        The edges in the order of their receivers, int64 [n_edges].
    senders, receivers
        Of the edges in that order, int64 [n_edges].
    n_atoms
        Atoms of the batch.
    heads
        Copies of the bags.
    """

    edges: Tensor
    senders: Tensor
    receivers: Tensor
    n_atoms: int
    heads: int

    @cached_property
    def incoming(self) -> Bags:
        """Bags of the senders."""
        return self._bags(self.senders, self.receivers)

    @cached_property
    def outgoing(self) -> Bags:
        """Bags of the receivers."""
        senders, order = self._by_sender
        return self._bags(self.receivers.index_select(0, order), senders)

    @cached_property
    def degrees(self) -> Tensor:
        """Number of senders in each bag, int64 [heads * n_atoms]."""
        return self.incoming.starts.diff()

    def sum(self, nodes: Tensor) -> Tensor:
        """Sum of the senders' rows at each receiver, for one head: [n_atoms, d] to [n_atoms, d]."""
        return derivative(self._plain, 0, nodes)

    def weighted_sum(self, values: Tensor, weights: Tensor) -> Tensor:
        """Sums of the senders' values at each receiver [n_atoms, heads, d].

        Parameters
        ----------
        values
            [n_atoms, heads, d].
        weights
            Of each edge [n_edges, heads].
        """
        by_head = values.transpose(0, 1).to(weights.dtype)
        entries = weights.index_select(0, self.edges).t().reshape(-1)
        total = derivative(self._weighted, 0, by_head.flatten(0, 1), entries)
        return total.view(by_head.shape).transpose(0, 1)

    @cached_property
    def to_outgoing(self) -> Tensor:
        """Which incoming entry each outgoing one is, int64 [n_entries]."""
        return self._numbered(self._by_sender[1], len(self.edges))

    def _plain(self, of: int, operands: list[Any]) -> Tensor:
        """Derivatives of Σ_ij receivers_i · senders_j."""
        receivers, senders = operands
        if of == 0:
            return _sums(self.incoming, senders, None)
        return _sums(self.outgoing, receivers, None)

    def _weighted(self, of: int, operands: list[Any]) -> Tensor:
        """Derivatives of Σ_ij weights_ij receivers_i · senders_j."""
        receivers, senders, weights = operands
        if of == 0:
            return _sums(self.incoming, senders, weights)
        if of == 1:
            return _sums(self.outgoing, receivers, weights.index_select(0, self.to_outgoing))
        return _dots(self.incoming, receivers, senders)

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor]:
        """The senders, ascending, and which edge each belongs to."""
        return torch.sort(self.senders, stable=True)

    def _bags(self, rows: Tensor, owners: Tensor) -> Bags:
        owners = self._numbered(owners, self.n_atoms)
        bags = torch.arange(self.heads * self.n_atoms + 1, device=owners.device)
        return Bags(self._numbered(rows, self.n_atoms), owners, torch.searchsorted(owners, bags))

    def _numbered(self, numbers: Tensor, each: int) -> Tensor:
        """Numbers repeated for every head, which has ``each`` of them."""
        if self.heads == 1:
            return numbers
        head = torch.arange(self.heads, device=numbers.device)[:, None]
        return (numbers + head * each).flatten()


def neighbour_sums(geometry: Geometry, heads: int = 1) -> NeighbourSums:
    """The bags of a batch; they are found faster where the edges are sorted by receiver."""
    receivers, edges = geometry.receiver, None
    # Looking costs a CPU much less than sorting; an accelerator's host would have to wait.
    if receivers.device.type != "cpu" or bool((receivers[1:] < receivers[:-1]).any()):
        receivers, edges = torch.sort(receivers, stable=True)
    senders = geometry.sender if edges is None else geometry.sender.index_select(0, edges)
    if edges is None:
        edges = torch.arange(len(receivers))
    return NeighbourSums(edges, senders, receivers, geometry.n_atoms, heads)


def _sums(bags: Bags, table: Tensor, weights: Tensor | None) -> Tensor:
    """Σ weight * row over each bag; without weights they are one."""
    return functional.embedding_bag(
        bags.rows,
        table.contiguous(),
        bags.starts,
        mode="sum",
        include_last_offset=True,
        per_sample_weights=weights,
    )


def _dots(bags: Bags, ours: Tensor, table: Tensor) -> Tensor:
    """Product of the bag's row of one table with the entry's row of another [n_entries]."""
    # The gradient of embedding_bag with respect to its weights; mode 0 is the sum.
    dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        ours.contiguous(), table.contiguous(), bags.rows, bags.starts[:-1], bags.owners, 0
    )
    return dots
