"""Sums of filtered messages, computed in slices of edges and recomputed in backward passes.

Training on forces takes the second derivative of the messages. Written with torch's operations,
each of a few dozen operations writes and keeps a tensor over all edges. These tensors exceed a
processor's cache, and moving them takes longer than computing them. Here only the inputs are kept,
and a processor works on a slice of the edges at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.kernels.multilinear import (
    apply_function,
    edge_slices,
    needed_gradients,
)
from hydragnn_flow.models.kernels.spline import Interpolation, KnotRows


class EdgeSlice(NamedTuple):
    """Consecutive edges of a batch that a kernel processes at once, and the rows that they read.

    The rows are those of the two atoms of each edge, and of spline coefficients.

    Attributes
    ----------
    span
        Python's slice of these edges among all edges of the batch.
    sender, receiver
        Indices of the atoms that the edges lead from and to, int64 [n].
    rows
        Indices of the spline coefficients that the edges read.
    summands
        Indices of six rows per edge in one table: the receiver's, the sender's, and four spline
        coefficients, int64 [6 * n].
    first
        Index in ``summands`` where each edge begins, int64 [n].
    """

    span: slice
    sender: Tensor
    receiver: Tensor
    rows: KnotRows
    summands: Tensor
    first: Tensor

    def argument(self, table: Tensor, weights: Tensor) -> Tensor:
        """Compute silu's argument for each edge of the slice, [n, width].

        It is receiver_i + sender_j + spline(d_ij). ``table`` is the concatenation of receivers,
        senders and spline coefficients. ``weights`` [n, 4] are the interpolation weights of the
        coefficients.
        """
        weights = torch.cat([weights.new_ones((weights.shape[0], 2)), weights], dim=1)
        return functional.embedding_bag(
            self.summands, table, self.first, mode="sum", per_sample_weights=weights.view(-1)
        )


def slices_of(geometry: Geometry, interpolation: Interpolation) -> list[EdgeSlice]:
    """Divide a batch's edges into slices: short ones on a CPU, a single one on an accelerator.

    ``interpolation`` is the spline interpolation at the lengths of these edges.
    """
    n_atoms, all_rows = geometry.n_atoms, interpolation.rows
    slices = []
    for span in edge_slices(geometry.sender):
        sender, receiver = geometry.sender[span], geometry.receiver[span]
        rows = KnotRows(all_rows.start[span], all_rows.intervals)
        ends = [receiver[:, None], sender[:, None] + n_atoms]
        index = torch.cat([*ends, rows.of_edge + 2 * n_atoms], dim=1)
        starts = torch.arange(0, index.numel(), index.shape[1], device=index.device)
        slices.append(EdgeSlice(span, sender, receiver, rows, index.view(-1), starts))
    return slices


def filtered_message_sum(
    receiver: Tensor,
    sender: Tensor,
    shift: Tensor,
    filters: Tensor,
    weights: Tensor,
    slices: list[EdgeSlice],
) -> Tensor:
    """Sum the filtered messages from the neighbours j of each atom i, [n_atoms, width].

    The sum is Σ_j silu(receiver_i + sender_j + shift(d_ij)) · filter(d_ij), with edge lengths d_ij.

    Parameters
    ----------
    receiver, sender
        Contributions of each edge's receiver and sender to the argument of silu [n_atoms, width].
    shift, filters
        Values at the spline's knots of two functions of the length [n_knots, width].
    weights
        Interpolation weights of the edges [n_edges, 4].
    slices
        Slices of the edges from :func:`slices_of`.
    """
    precise = shift.dtype
    total: Tensor = apply_function(
        _Sum, receiver.to(precise), sender.to(precise), shift, filters, weights, slices
    )
    return total


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        *tensors, ctx.slices = operands
        ctx.save_for_backward(*tensors)
        receiver, sender, shift, filters, weights = _detached(tensors)
        table = torch.cat([receiver, sender, shift])
        total = torch.zeros_like(receiver)
        for some in ctx.slices:
            w = weights[some.span]
            value = functional.silu(some.argument(table, w))
            total.index_add_(0, some.receiver, value.mul_(some.rows.read(filters, w)))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        slopes = apply_function(
            _Slopes, gradient, *ctx.saved_tensors, ctx.slices, needed_gradients(ctx)
        )
        return *slopes, None


class _Slopes(Function):
    """Gradients by the operands of :class:`_Sum`, where needed."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Any:
        *tensors, ctx.slices, needs = operands
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        gradient, receiver, sender, shift, filters, weights = _detached(tensors)
        table = torch.cat([receiver, sender, shift])
        both = torch.cat([shift, filters], dim=1)
        to = _Gradients(tensors[1:], needs)
        for some in ctx.slices:
            rows, w = some.rows, weights[some.span]
            x = some.argument(table, w)
            g = gradient.index_select(0, some.receiver)
            dx = torch.ops.aten.silu_backward(rows.read(filters, w).mul_(g), x)
            db = functional.silu(x).mul_(g)
            to.add(some, dx, db, w)
            if to.weights is not None:
                to.weights[some.span] = rows.compare(torch.cat([dx, db], dim=1), both)
        return to.all()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *directions: Tensor | None) -> Any:
        # Along the directions in operand space the sum changes by Σ b silu'(x) dx + silu(x) db. The
        # code below computes the gradients of this.
        tensors = ctx.saved_tensors
        gradient, receiver, sender, shift, filters, weights = _detached(tensors)
        *by_ends, by_shift, by_filters, by_weights = directions
        needs = needed_gradients(ctx)
        table = torch.cat([receiver, sender, shift])
        ends = [torch.zeros_like(receiver) if by is None else by for by in by_ends]
        table_along = torch.cat([*ends, shift])
        both = torch.cat([shift, filters], dim=1)
        to = _Gradients(tensors[1:], needs[1:])
        to_gradient = torch.zeros_like(gradient)
        for some in ctx.slices:
            rows, w = some.rows, weights[some.span]
            by_w = torch.zeros_like(w) if by_weights is None else by_weights[some.span]
            x, b = some.argument(table, w), rows.read(filters, w)
            dx, db = some.argument(table_along, by_w), rows.read(filters, by_w)
            if by_shift is not None:
                dx += rows.read(by_shift, w)
            if by_filters is not None:
                db += rows.read(by_filters, w)

            s = torch.sigmoid(x)
            value = x * s
            slope = torch.addcmul(value, value, s, value=-1.0).add_(s)
            # silu'' = s (1 - s) (2 + x - 2 silu), stored in x.
            curvature = x.add_(value, alpha=-2.0).add_(2.0).mul_(s.addcmul_(s, s, value=-1.0))
            growth = torch.mul(slope, b, out=s).mul_(dx).addcmul_(value, db)
            to_gradient.index_add_(0, some.receiver, growth)
            g = gradient.index_select(0, some.receiver)
            slope.mul_(g)
            ddx = curvature.mul_(b).mul_(g).mul_(dx).addcmul_(slope, db)
            ddb = dx.mul_(slope)
            to.add(some, ddx, ddb, w)
            first_dx, first_db = slope.mul_(b), value.mul_(g)
            to.add_to_splines(some, first_dx, first_db, by_w)
            if to.weights is not None:
                to_w = rows.compare(torch.cat([ddx, ddb], dim=1), both)
                if by_shift is not None:
                    to_w += rows.compare(first_dx, by_shift)
                if by_filters is not None:
                    to_w += rows.compare(first_db, by_filters)
                to.weights[some.span] = to_w
        return to_gradient, *to.all(), None, None


class _Gradients:
    """Accumulators of the gradients by the operands of :class:`_Sum`; None for an unneeded one."""

    def __init__(self, operands: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self.receiver, self.sender, self.shift, self.filters, self.weights = (
            torch.zeros_like(operand) if need else None
            for operand, need in zip(operands, needed, strict=False)
        )

    def add(self, some: EdgeSlice, dx: Tensor, db: Tensor, weights: Tensor) -> None:
        """Add to the accumulators, in place, the gradients that come from a slice of edges.

        ``dx`` and ``db`` [n, width] are the gradients by silu's argument and by the filters at the
        edges.
        """
        if self.receiver is not None:
            self.receiver.index_add_(0, some.receiver, dx)
        if self.sender is not None:
            self.sender.index_add_(0, some.sender, dx)
        self.add_to_splines(some, dx, db, weights)

    def add_to_splines(self, some: EdgeSlice, dx: Tensor, db: Tensor, weights: Tensor) -> None:
        if self.shift is None and self.filters is None:
            return
        weights = some.rows.sort(weights)
        for spline, values in ((self.shift, dx), (self.filters, db)):
            if spline is not None:
                some.rows.add_spread(spline, values, weights)

    def all(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of the operands."""
        return self.receiver, self.sender, self.shift, self.filters, self.weights


def _detached(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]
