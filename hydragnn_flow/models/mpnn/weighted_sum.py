"""Sums over neighbours in which each head weighs them in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry


class Bags(NamedTuple):
    """Which rows of a table are summed: all entries of a bag follow one another.

    Attributes
    ----------
    rows
        Row that each entry reads, int64 [n_entries].
    owners
        Bag that each entry belongs to, ascending, int64 [n_entries].
    starts
        Where each bag begins, and the number of entries, int64 [n_bags + 1].
    order
        Places of the entries in the transposed bags, int64 [n_entries].
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor
    order: Tensor


class HeadBags(NamedTuple):
    """For each head and atom a bag of the senders; the transposed has a bag of the receivers.

    Attributes
    ----------
    edges
        The edges by receiver, int64 [n_edges].
    forward, transposed
        Rows and bags are numbered head by head, atom by atom.
    """

    edges: Tensor
    forward: Bags
    transposed: Bags

    def sum(self, values: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums of the senders' values at each receiver [n_atoms, heads, d].

        Parameters
        ----------
        values
            [n_atoms, heads, d].
        weights
            [n_edges, heads].
        """
        shape = values.transpose(0, 1).shape
        table = values.transpose(0, 1).reshape(-1, shape[2]).to(weights.dtype)
        entries = weights.index_select(0, self.edges).t().reshape(-1)
        total = _weighted_sum(table, entries, self.forward, self.transposed)
        return total.view(shape).transpose(0, 1)


def head_bags(geometry: Geometry, heads: int) -> HeadBags:
    """The bags of a batch."""
    device, n_atoms, n_edges = geometry.sender.device, geometry.n_atoms, geometry.sender.shape[0]
    receivers, edges = torch.sort(geometry.receiver, stable=True)
    senders = geometry.sender.index_select(0, edges)
    by_sender, order = torch.sort(senders, stable=True)
    back = torch.empty_like(order).index_copy(0, order, torch.arange(n_edges, device=device))
    shifts = torch.arange(heads, device=device)[:, None]

    def of_heads(values: Tensor, per_head: int) -> Tensor:
        return (values + shifts * per_head).flatten()

    def bags(rows: Tensor, owners: Tensor, order: Tensor) -> Bags:
        owners = of_heads(owners, n_atoms)
        starts = torch.searchsorted(owners, torch.arange(heads * n_atoms + 1, device=device))
        return Bags(of_heads(rows, n_atoms), owners, starts, of_heads(order, n_edges))

    return HeadBags(
        edges,
        bags(senders, receivers, back),
        bags(receivers.index_select(0, order), by_sender, order),
    )


class _WeightedSum(Function):
    """Σ weight * row over each bag, without a tensor as long as the entries times the width.

    With :class:`_Dots` it is closed under differentiation, so forces can be learnt through it.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor, bags: Bags, transposed: Bags) -> Tensor:
        ctx.save_for_backward(table, weights)
        ctx.bags, ctx.transposed = bags, transposed
        return functional.embedding_bag(
            bags.rows,
            table,
            bags.starts,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=weights,
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        table, weights = ctx.saved_tensors
        bags, transposed = ctx.bags, ctx.transposed
        gradient = gradient.contiguous()
        entries = weights.index_select(0, transposed.order)
        of_table = _weighted_sum(gradient, entries, transposed, bags)
        return of_table, _dots(gradient, table, bags, transposed), None, None


class _Dots(Function):
    """Product of the bag's row of one table with the entry's row of another [n_entries]."""

    @staticmethod
    def forward(ctx: Any, ours: Tensor, table: Tensor, bags: Bags, transposed: Bags) -> Tensor:
        ctx.save_for_backward(ours, table)
        ctx.bags, ctx.transposed = bags, transposed
        # The gradient of embedding_bag with respect to its weights; mode 0 is the sum.
        dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            ours, table, bags.rows, bags.starts[:-1], bags.owners, 0
        )
        return dots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ours, table = ctx.saved_tensors
        bags, transposed = ctx.bags, ctx.transposed
        of_ours = _weighted_sum(table, gradient, bags, transposed)
        entries = gradient.index_select(0, transposed.order)
        return of_ours, _weighted_sum(ours, entries, transposed, bags), None, None


_weighted_sum: Callable[..., Tensor] = _WeightedSum.apply
_dots: Callable[..., Tensor] = _Dots.apply
