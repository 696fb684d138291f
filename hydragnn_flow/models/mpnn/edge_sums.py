"""Sums over edges of products of atoms' and edges' features, for messages with vectors in them.

Written with torch's gathers, products and sums, such a message exists as a tensor of
[n_edges, 3, width], and so does every derivative of it. Here it exists for some thousand edges at a
time, which a CPU keeps in its cache: a potential's training step takes two thirds of the time.

Each sum belongs to a form that is linear in all its operands. The form's derivative with respect to
one operand is a sum over the others, and the derivative of that is another of the same family. So
:class:`_Derivative` is closed under differentiation, and forces can be learnt through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hydragnn_flow.models.geometry import Geometry

_EDGES_AT_A_TIME = 2048

Operand = Tensor | None


def filtered_sum(nodes: Tensor, filters: Tensor, geometry: Geometry) -> Tensor:
    """Σ_j nodes_j * filters_ij at each receiver, [n_atoms, k, width], in single precision at least.

    Parameters
    ----------
    nodes
        Of the senders [n_atoms, k, width].
    filters
        Of the edges [n_edges, width], the same for all k.
    geometry
        The edges.
    """
    dtype = _precise(nodes, filters)
    operands = (None, nodes.to(dtype), filters.to(dtype))
    return _derivative(_filtered, 0, geometry, *operands)


def outer_sum(vectors: Tensor, features: Tensor, geometry: Geometry) -> Tensor:
    """Σ_j vectors_ij ⊗ features_ij at each receiver, [n_atoms, 3, width], in single precision at
    least.

    Parameters
    ----------
    vectors
        [n_edges, 3].
    features
        [n_edges, width].
    geometry
        The edges.
    """
    dtype = _precise(vectors, features)
    operands = (None, vectors.to(dtype), features.to(dtype))
    return _derivative(_outer, 0, geometry, *operands)


def _precise(one: Tensor, other: Tensor) -> torch.dtype:
    """What to sum products in: as :func:`~hydragnn_flow.models.geometry.sum_by` does."""
    return torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)


class _Derivative(Function):
    """The derivative of a form with respect to one operand, which is not given."""

    @staticmethod
    def forward(
        ctx: Any, form: _Form, wanted: int, geometry: Geometry, *operands: Operand
    ) -> Tensor:
        ctx.form, ctx.wanted, ctx.geometry = form, wanted, geometry
        ctx.save_for_backward(*operands)
        return form(wanted, geometry, operands)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Operand, ...]:
        operands = list(ctx.saved_tensors)
        operands[ctx.wanted] = gradient
        gradients: list[Operand] = [None] * len(operands)
        for other in range(len(operands)):
            if other != ctx.wanted and ctx.needs_input_grad[3 + other]:
                given = [*operands[:other], None, *operands[other + 1 :]]
                gradients[other] = _derivative(ctx.form, other, ctx.geometry, *given)
        return None, None, None, *gradients


_Form = Callable[[int, Geometry, tuple[Operand, ...]], Tensor]
_derivative: Callable[..., Tensor] = _Derivative.apply


def _filtered(wanted: int, geometry: Geometry, operands: tuple[Operand, ...]) -> Tensor:
    """Derivatives of Σ_ij Σ_k receivers_ik * senders_jk * filters_ij."""
    receivers, senders, filters = operands
    if wanted == 2:
        assert receivers is not None and senders is not None
        values = receivers.new_empty((geometry.sender.shape[0], receivers.shape[2]))
        for part in _parts(values):
            products = receivers.index_select(0, geometry.receiver[part])
            products.mul_(senders.index_select(0, geometry.sender[part]))
            torch.sum(products, 1, out=values[part])
        return values
    source, target = geometry.sender, geometry.receiver
    nodes = senders
    if wanted == 1:
        source, target = target, source
        nodes = receivers
    assert nodes is not None and filters is not None
    sums = torch.zeros_like(nodes)
    for part in _parts(filters):
        messages = nodes.index_select(0, source[part]).mul_(filters[part, None])
        sums.index_add_(0, target[part], messages)
    return sums


def _outer(wanted: int, geometry: Geometry, operands: tuple[Operand, ...]) -> Tensor:
    """Derivatives of Σ_ij Σ_c receivers_ic · vectors_ijc features_ij."""
    receivers, vectors, features = operands
    if wanted == 0:
        assert vectors is not None and features is not None
        sums = features.new_zeros((geometry.n_atoms, 3, features.shape[1]))
        for part in _parts(features):
            messages = vectors[part, :, None] * features[part, None]
            sums.index_add_(0, geometry.receiver[part], messages)
        return sums
    assert receivers is not None
    if wanted == 1:
        assert features is not None
        values = features.new_empty((features.shape[0], 3))
        for part in _parts(features):
            products = receivers.index_select(0, geometry.receiver[part])
            torch.sum(products.mul_(features[part, None]), 2, out=values[part])
        return values
    assert vectors is not None
    values = vectors.new_empty((vectors.shape[0], receivers.shape[2]))
    for part in _parts(vectors):
        x, y, z = receivers.index_select(0, geometry.receiver[part]).unbind(1)
        torch.mul(x, vectors[part, :1], out=values[part])
        values[part].addcmul_(y, vectors[part, 1:2]).addcmul_(z, vectors[part, 2:])
    return values


def _parts(edges: Tensor) -> Iterator[slice]:
    """Slices of the edges: an accelerator takes them all at once."""
    n = edges.shape[0]
    step = _EDGES_AT_A_TIME if edges.device.type == "cpu" else max(n, 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
