"""Sums of filtered messages, computed piece by piece and anew in each backward pass.

Forces are trained through the second derivative of the messages. Written with torch's operations,
each of a few dozen steps writes a tensor over all edges, which is kept. They are larger than a
processor's cache, and moving them takes longer than computing them. Here nothing is kept but what
goes in, and on a processor the edges are taken some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hydragnn_flow.models.geometry import Geometry
from hydragnn_flow.models.spline import Interpolation, Rows, apply_function, wanted


def filtered_sum(
    receiver: Tensor,
    sender: Tensor,
    shift: Tensor,
    filters: Tensor,
    interpolation: Interpolation,
    geometry: Geometry,
) -> Tensor:
    """Σ_j silu(receiver_i + sender_j + shift(d_ij)) · filter(d_ij) at each atom [n_atoms, width].

    Parameters
    ----------
    receiver, sender
        What the atoms at the two ends of an edge put in [n_atoms, width].
    shift, filters
        Functions of the length by their values at knots [n_knots, width].
    interpolation
        Reads them at the edges.
    geometry
        Says which edges there are.
    """
    edges = _Edges(geometry.sender, geometry.receiver, interpolation.rows)
    precise = shift.dtype
    total: Tensor = apply_function(
        _Sum,
        receiver.to(precise),
        sender.to(precise),
        shift,
        filters,
        interpolation.weights,
        edges,
    )
    return total


class _Piece(NamedTuple):
    """Some edges: which of all, what they read of splines, and from where to where they lead."""

    span: slice
    rows: Rows
    sender: Tensor
    receiver: Tensor


class _Edges(NamedTuple):
    sender: Tensor
    receiver: Tensor
    rows: Rows

    def pieces(self) -> Iterator[_Piece]:
        for span, rows in self.rows.pieces:
            yield _Piece(span, rows, self.sender[span], self.receiver[span])


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        *tensors, ctx.edges = operands
        ctx.save_for_backward(*tensors)
        receiver, sender, shift, filters, weights = tensors
        total = torch.zeros_like(receiver)
        for span, rows, start, end in ctx.edges.pieces():
            w = weights[span]
            x = rows.read(shift, w)
            x += receiver.index_select(0, end)
            x += sender.index_select(0, start)
            total.index_add_(0, end, functional.silu(x).mul_(rows.read(filters, w)))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        slopes = apply_function(_Slopes, gradient, *ctx.saved_tensors, ctx.edges, wanted(ctx))
        return *slopes, None


class _Slopes(Function):
    """Gradients of the operands of :class:`_Sum`, those that are needed."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Any:
        *tensors, ctx.edges, needs = operands
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        gradient, receiver, sender, shift, filters, weights = tensors
        results = _zeros(tensors[1:], needs)
        to_receiver, to_sender, to_shift, to_filters, to_weights = results
        for span, rows, start, end in ctx.edges.pieces():
            w = weights[span]
            x = rows.read(shift, w)
            x += receiver.index_select(0, end)
            x += sender.index_select(0, start)
            g = gradient.index_select(0, end)
            gb = rows.read(filters, w).mul_(g)
            dx = torch.ops.aten.silu_backward(gb, x)
            db = functional.silu(x).mul_(g)
            if to_receiver is not None:
                to_receiver.index_add_(0, end, dx)
            if to_sender is not None:
                to_sender.index_add_(0, start, dx)
            if to_shift is not None:
                to_shift += rows.spread(dx, w)
            if to_filters is not None:
                to_filters += rows.spread(db, w)
            if to_weights is not None:
                to_weights[span] = rows.compare(dx, shift).add_(rows.compare(db, filters))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *directions: Tensor | None) -> Any:
        # Along the directions in the space of the operands the sum grows by
        # Σ b silu'(x) dx + silu(x) db. What follows are the gradients of that.
        tensors = ctx.saved_tensors
        gradient, receiver, sender, shift, filters, weights = tensors
        by_receiver, by_sender, by_shift, by_filters, by_weights = directions
        results = _zeros(tensors, wanted(ctx))
        to_gradient, to_receiver, to_sender, to_shift, to_filters, to_weights = results
        for span, rows, start, end in ctx.edges.pieces():
            w = weights[span]
            x = rows.read(shift, w)
            x += receiver.index_select(0, end)
            x += sender.index_select(0, start)
            b = rows.read(filters, w)
            g = gradient.index_select(0, end)
            by_w = torch.zeros_like(w) if by_weights is None else by_weights[span]
            dx, db = rows.read(shift, by_w), rows.read(filters, by_w)
            if by_receiver is not None:
                dx += by_receiver.index_select(0, end)
            if by_sender is not None:
                dx += by_sender.index_select(0, start)
            if by_shift is not None:
                dx += rows.read(by_shift, w)
            if by_filters is not None:
                db += rows.read(by_filters, w)

            # x becomes silu'' = s (1 - s) (2 + x - 2 silu).
            s = torch.sigmoid(x)
            value = x * s
            slope = torch.addcmul(value, value, s, value=-1.0).add_(s)
            x.add_(value, alpha=-2.0).add_(2.0).mul_(s.addcmul_(s, s, value=-1.0))
            if to_gradient is not None:
                growth = torch.mul(value, db).addcmul_(s.copy_(b).mul_(slope), dx)
                to_gradient.index_add_(0, end, growth)
            slope.mul_(g)
            ddx = x.mul_(b).mul_(g).mul_(dx).addcmul_(slope, db)
            ddb = dx.mul_(slope)
            if to_receiver is not None:
                to_receiver.index_add_(0, end, ddx)
            if to_sender is not None:
                to_sender.index_add_(0, start, ddx)
            first_dx, first_db = slope.mul_(b), value.mul_(g)
            if to_shift is not None:
                to_shift += rows.spread(ddx, w).add_(rows.spread(first_dx, by_w))
            if to_filters is not None:
                to_filters += rows.spread(ddb, w).add_(rows.spread(first_db, by_w))
            if to_weights is not None:
                to_weights[span] = rows.compare(ddx, shift).add_(rows.compare(ddb, filters))
                if by_shift is not None:
                    to_weights[span] += rows.compare(first_dx, by_shift)
                if by_filters is not None:
                    to_weights[span] += rows.compare(first_db, by_filters)
        return *results, None, None


def _zeros(operands: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Where to add up gradients; None for those that are not needed."""
    pairs = zip(operands, needed, strict=False)
    return [torch.zeros_like(operand) if need else None for operand, need in pairs]
