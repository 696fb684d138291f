"""The smallest and the largest message at each atom, with derivatives that cost little."""

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
    """Smallest or largest of the incoming messages [n_atoms, width]; zero if there are none.

    Messages that tie share the gradient. torch's ``scatter_reduce`` computes the same, but its
    backward pass is several times slower and can be differentiated only at great cost.

    Parameters
    ----------
    messages
        [n_edges, width].
    geometry
        Says who receives them.
    which
        torch's name of the reduction.
    own_zero
        Whether a zero message of the atom itself takes part.
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
        # Linear in the gradient, and the marks are constants: torch differentiates it further.
        messages, peak = ctx.saved_tensors
        marks, ties = ctx.marks or _marks(messages, peak, ctx.receiver)
        if torch.is_grad_enabled():
            ctx.marks = marks, ties  # for the backward pass through the forces
        return (gradient / ties).index_select(0, ctx.receiver) * marks, None, None, None


def _marks(messages: Tensor, peak: Tensor, receiver: Tensor) -> tuple[Tensor, Tensor]:
    """One where a message is the extreme and zero elsewhere, and their number at each atom."""
    # In place, because torch compares to booleans eight times as slowly.
    marks = peak.detach().index_select(0, receiver).eq_(messages.detach())
    return marks, sum_by(marks, receiver, peak.shape[0]).clamp(min=1.0)
