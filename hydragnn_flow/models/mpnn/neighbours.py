"""Sums over the neighbours of atoms, for messages that are the senders' own features.

They are taken with ``embedding_bag``, which adds the rows as it reads them. A gather followed by a
sum first writes a tensor as long as the edges, and the backward pass another: for 20 neighbours
that is ten times slower on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
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
    """

    rows: Tensor
    owners: Tensor
    starts: Tensor


@dataclass(frozen=True)
class Neighbours:
    """For each head and atom a bag of the senders, and the opposite: a bag of the receivers.

    Rows and bags are numbered head by head, and by atom within a head. What only gradients read is
    made when they first do.

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
        return _sum(nodes, None, _Way(self))

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
        total = _sum(by_head.flatten(0, 1), entries, _Way(self))
        return total.view(by_head.shape).transpose(0, 1)

    @cached_property
    def to_outgoing(self) -> Tensor:
        """Which incoming entry each outgoing one is, int64 [n_entries]."""
        return self._numbered(self._by_sender[1], len(self.edges))

    @cached_property
    def to_incoming(self) -> Tensor:
        """Which outgoing entry each incoming one is, int64 [n_entries]."""
        order = self._by_sender[1]
        numbers = torch.arange(len(order), device=order.device)
        return self._numbered(
            torch.empty_like(order).index_copy(0, order, numbers), len(self.edges)
        )

    @cached_property
    def _by_sender(self) -> tuple[Tensor, Tensor]:
        """The senders, ascending, and which edge each belongs to."""
        return _sorted(self.senders, self.n_atoms)

    def _bags(self, rows: Tensor, owners: Tensor) -> Bags:
        owners = self._numbered(owners, self.n_atoms)
        bags = torch.arange(self.heads * self.n_atoms + 1, device=owners.device)
        return Bags(self._numbered(rows, self.n_atoms), owners, torch.searchsorted(owners, bags))

    def _numbered(self, numbers: Tensor, each: int) -> Tensor:
        """Repeated for every head, which has so many."""
        if self.heads == 1:
            return numbers
        head = torch.arange(self.heads, device=numbers.device)[:, None]
        return (numbers + head * each).flatten()


def neighbours(geometry: Geometry, heads: int = 1) -> Neighbours:
    """The bags of a batch; they are found faster where the edges are sorted by receiver."""
    receivers, edges = geometry.receiver, None
    # Looking costs a CPU much less than sorting; an accelerator's host would have to wait.
    if receivers.device.type != "cpu" or bool((receivers[1:] < receivers[:-1]).any()):
        receivers, edges = _sorted(receivers, geometry.n_atoms)
    senders = geometry.sender if edges is None else geometry.sender.index_select(0, edges)
    if edges is None:
        edges = torch.arange(len(receivers))
    return Neighbours(edges, senders, receivers, geometry.n_atoms, heads)


def _sorted(numbers: Tensor, below: int) -> tuple[Tensor, Tensor]:
    """Whole numbers below a limit in ascending order, equal ones as they were, and their order."""
    if numbers.device.type != "cpu" or below > 2**16:
        ascending, order = torch.sort(numbers, stable=True)
        return ascending, order
    # NumPy sorts numbers of 16 bits by radix, in a tenth of the time.
    order = torch.from_numpy(np.argsort(numbers.numpy().astype(np.uint16), kind="stable"))
    return numbers.index_select(0, order), order


class _Way(NamedTuple):
    """From the senders to the receivers, or back."""

    neighbours: Neighbours
    is_back: bool = False

    @property
    def back(self) -> _Way:
        return _Way(self.neighbours, not self.is_back)

    @property
    def bags(self) -> Bags:
        return self.neighbours.outgoing if self.is_back else self.neighbours.incoming

    @property
    def order(self) -> Tensor:
        """Which entry of the way back each one is."""
        return self.neighbours.to_outgoing if self.is_back else self.neighbours.to_incoming


class _Sum(Function):
    """Σ weight * row over each bag; all weights are one where there are none.

    With :class:`_Dots` it is closed under differentiation, so forces can be learnt through it.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor | None, way: _Way) -> Tensor:
        ctx.save_for_backward(table if weights is not None else None, weights)
        ctx.way = way
        return functional.embedding_bag(
            way.bags.rows,
            table.contiguous(),
            way.bags.starts,
            mode="sum",
            include_last_offset=True,
            per_sample_weights=weights,
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        table, weights = ctx.saved_tensors
        way: _Way = ctx.way
        if weights is None:
            return _sum(gradient, None, way.back), None, None
        of_table = _sum(gradient, weights.index_select(0, way.back.order), way.back)
        return of_table, _dots(gradient, table, way), None


class _Dots(Function):
    """Product of the bag's row of one table with the entry's row of another [n_entries]."""

    @staticmethod
    def forward(ctx: Any, ours: Tensor, table: Tensor, way: _Way) -> Tensor:
        ctx.save_for_backward(ours, table)
        ctx.way = way
        bags = way.bags
        # The gradient of embedding_bag with respect to its weights; mode 0 is the sum.
        dots: Tensor = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            ours.contiguous(), table.contiguous(), bags.rows, bags.starts[:-1], bags.owners, 0
        )
        return dots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ours, table = ctx.saved_tensors
        way: _Way = ctx.way
        entries = gradient.index_select(0, way.back.order)
        return _sum(table, gradient, way), _sum(ours, entries, way.back), None


_sum: Callable[..., Tensor] = _Sum.apply
_dots: Callable[..., Tensor] = _Dots.apply
