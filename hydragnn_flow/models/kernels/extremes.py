"""Smallest and largest message at each atom, with cheap derivatives."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_flow.models.geometry import Geometry, sum_by

EXTREMES: tuple[Literal["amin"], Literal["amax"]] = ("amin", "amax")


def extreme(
    messages: Tensor, geometry: Geometry, which: Literal["amin", "amax"], *, own_zero: bool
) -> Tensor:
    """Compute the smallest or largest incoming message [n_atoms, width]; zero if there are none.

    Tied messages share the gradient. torch's ``scatter_reduce`` gives the same result, but its
    backward pass is several times slower and can be differentiated only at great cost.

    Parameters
    ----------
    messages
        Messages of the edges [n_edges, width].
    geometry
        Geometry with the receivers of the edges.
    which
        Name of the reduction in torch.
    own_zero
        If true, each atom also gets a zero message from itself.
    """
    apply: Any = _Extreme.apply
    value: Tensor = apply(messages, geometry, which, own_zero)
    return value


class _Extreme(Function):
    @staticmethod
    def forward(
        ctx: Any, messages: Tensor, geometry: Geometry, which: str, own_zero: bool
    ) -> Tensor:
        index = geometry.receiver[:, None].expand_as(messages)
        empty = messages.new_zeros((geometry.n_atoms, messages.shape[1]))
        peak = empty.scatter_reduce(0, index, messages, which, include_self=own_zero)
        ctx.save_for_backward(messages, peak)
        ctx.receiver, ctx.marks = geometry.receiver, None
        return peak

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        # Linear in the gradient, with constant marks, so torch can differentiate it further.
        messages, peak = ctx.saved_tensors
        marks, ties = ctx.marks or _marks(messages, peak, ctx.receiver)
        if torch.is_grad_enabled():
            ctx.marks = marks, ties  # for the backward pass through the forces
        return (gradient / ties).index_select(0, ctx.receiver) * marks, None, None, None


def _marks(messages: Tensor, peak: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask of the messages that are extreme, and their number at each atom."""
    # In place, because comparing to booleans is eight times slower in torch.
    marks = peak.detach().index_select(0, receiver).eq_(messages.detach())
    return marks, sum_by(marks, receiver, peak.shape[0]).clamp(min=1.0)
