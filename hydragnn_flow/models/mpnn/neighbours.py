"""Sums over the neighbours of atoms, for messages that are the senders' own features.

They are taken with ``embedding_bag``, which adds the rows as it reads them. A gather followed by a
sum first writes a tensor as long as the edges, and the backward pass another: for 20 neighbours
that is ten times slower on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry


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
    order
        Which entry of the opposite bags each one is, int64 [n_entries].
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor
    order: Tensor


class Neighbours(NamedTuple):
    """For each head and atom a bag of the senders, and the opposite: a bag of the receivers.

    Rows and bags are numbered head by head, and by atom within a head.

    Attributes
    ----------
    edges
        The edges in the order of their receivers, int64 [n_edges].
    incoming, outgoing
        Bags of the senders and of the receivers.
    """

    edges: Tensor
    incoming: Bags
    outgoing: Bags

    @property
    def degrees(self) -> Tensor:
        """Number of senders in each bag, int64 [heads * n_atoms]."""
        return self.incoming.starts.diff()

    def sum(self, nodes: Tensor) -> Tensor:
        """Sum of the senders' rows at each receiver, for one head: [n_atoms, d] to [n_atoms, d]."""
        return _sum(nodes, None, self.incoming, self.outgoing)

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
        total = _sum(by_head.flatten(0, 1), entries, self.incoming, self.outgoing)
        return total.view(by_head.shape).transpose(0, 1)


def neighbours(geometry: Geometry, heads: int = 1) -> Neighbours:
    """The bags of a batch; they are found faster where the edges are sorted by receiver."""
    device, n_atoms, n_edges = geometry.graph.device, geometry.n_atoms, geometry.sender.shape[0]
    receivers, edges = torch.sort(geometry.receiver, stable=True)
    senders, order = torch.sort(geometry.sender.index_select(0, edges), stable=True)
    back = torch.empty_like(order).index_copy(0, order, torch.arange(n_edges, device=device))
    head = torch.arange(heads, device=device)[:, None]

    def bags(rows: Tensor, owners: Tensor, order: Tensor) -> Bags:
        owners = (owners + head * n_atoms).flatten()
        starts = torch.searchsorted(owners, torch.arange(heads * n_atoms + 1, device=device))
        rows, order = (rows + head * n_atoms).flatten(), (order + head * n_edges).flatten()
        return Bags(rows, owners, starts, order)

    return Neighbours(
        edges,
        bags(senders.index_select(0, back), receivers, back),
        bags(receivers.index_select(0, order), senders, order),
    )


class _Sum(Function):
    """Σ weight * row over each bag; all weights are one where there are none.

    With :class:`_Dots` it is closed under differentiation, so forces can be learnt through it.
    """

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, weights: Tensor | None, bags: Bags, opposite: Bags
    ) -> Tensor:
        ctx.save_for_backward(table if weights is not None else None, weights)
        ctx.bags, ctx.opposite = bags, opposite
        return functional.embedding_bag(
            bags.rows,
            table.contiguous(),
            bags.starts,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=weights,
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        table, weights = ctx.saved_tensors
        bags, opposite = ctx.bags, ctx.opposite
        if weights is None:
            return _sum(gradient, None, opposite, bags), None, None, None
        of_table = _sum(gradient, weights.index_select(0, opposite.order), opposite, bags)
        return of_table, _dots(gradient, table, bags, opposite), None, None


class _Dots(Function):
    """Product of the bag's row of one table with the entry's row of another [n_entries]."""

    @staticmethod
    def forward(ctx: Any, ours: Tensor, table: Tensor, bags: Bags, opposite: Bags) -> Tensor:
        ctx.save_for_backward(ours, table)
        ctx.bags, ctx.opposite = bags, opposite
        # The gradient of embedding_bag with respect to its weights; mode 0 is the sum.
        dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            ours.contiguous(), table.contiguous(), bags.rows, bags.starts[:-1], bags.owners, 0
        )
        return dots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ours, table = ctx.saved_tensors
        bags, opposite = ctx.bags, ctx.opposite
        of_ours = _sum(table, gradient, bags, opposite)
        entries = gradient.index_select(0, opposite.order)
        return of_ours, _sum(ours, entries, opposite, bags), None, None


_sum: Callable[..., Tensor] = _Sum.apply
_dots: Callable[..., Tensor] = _Dots.apply
