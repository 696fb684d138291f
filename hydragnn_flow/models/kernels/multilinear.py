"""Derivatives of multilinear forms: numbers that are linear in each of several tensors (operands).

The derivative by one operand depends on the other operands only. Its own derivatives are again
those of the form, with the incoming gradient in place of that operand. So a kernel that computes
the first derivative by each operand is enough for derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

EDGES_AT_A_TIME = 2048
"""Number of edges that a CPU processes at a time, so that intermediate results fit its cache."""

Form = Callable[[int, list[Any]], Tensor]
"""Function that returns the derivative of a multilinear form by one operand. Its arguments are the
index of this operand, and the list of all operands, in which this operand's entry is None."""

_traced = ContextVar("traced", default=False)

# A private function of torch; without it some unneeded gradients are computed.
_CAN_ASK = hasattr(torch._C, "_will_engine_execute_node")


def derivative(form: Form, of: int, *others: Tensor) -> Tensor:
    """Compute the derivative of a multilinear form by one of its operands (tensors).

    A multilinear form is a number that is linear in each operand. Autograd can differentiate the
    result any number of times.

    Parameters
    ----------
    form
        Function that computes the derivative of the form by any operand.
    of
        Index of the operand to differentiate by.
    *others
        All other operands, in the order of their indices.
    """
    value: Tensor = apply_function(_Derivative, *others, form, of)
    return value


class _Derivative(Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        *others, ctx.form, ctx.of = operands
        ctx.save_for_backward(*others)
        others.insert(ctx.of, None)
        value: Tensor = ctx.form(ctx.of, others)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        operands = list(ctx.saved_tensors)
        operands.insert(ctx.of, gradient)
        numbers = [number for number in range(len(operands)) if number != ctx.of]
        gradients = [
            derivative(ctx.form, number, *operands[:number], *operands[number + 1 :])
            if needed
            else None
            for number, needed in zip(numbers, needed_gradients(ctx), strict=True)
        ]
        return *gradients, None, None


def needed_gradients(ctx: Any) -> list[bool]:
    """Return for each tensor operand of an autograd function whether its gradient is needed.

    ``ctx`` is the function's context, in its backward pass. The tensors must be the first operands
    of the function.

    torch's ``needs_input_grad`` is also true for gradients that lead to nothing that was asked for,
    such as those of a spline's coefficients in the pass that computes the forces.
    """
    nodes = [node for node, _ in ctx.next_functions]
    needs = list(ctx.needs_input_grad[: len(nodes)])
    if not _CAN_ASK:
        return needs
    return [
        needed
        # torch cannot tell for a leaf, which is rarely an operand.
        and (node.name().endswith("AccumulateGrad") or torch._C._will_engine_execute_node(node))
        for needed, node in zip(needs, nodes, strict=True)
    ]


@contextmanager
def tracing() -> Iterator[None]:
    """Context manager: layers on a CPU compute as on an accelerator, so that they can be traced.

    They read no number on the host, and compute all edges at once, as compiled kernels need no
    slices.
    """
    token = _traced.set(True)
    try:
        yield
    finally:
        _traced.reset(token)


def on_host(device: torch.device) -> bool:
    """Return whether layers may read numbers from a device at no cost: a CPU, unless traced."""
    return device.type == "cpu" and not _traced.get()


def edge_slices(edges: Tensor) -> Iterator[slice]:
    """Yield slices that together cover the rows of ``edges`` [n_edges, …].

    On a CPU the slices are short; on an accelerator there is a single one.
    """
    n = edges.shape[0]
    step = EDGES_AT_A_TIME if on_host(edges.device) else max(n, 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def apply_function(function: Any, *operands: Any) -> Any:
    """Return ``function.apply(*operands)`` of an autograd function, which torch leaves untyped."""
    return function.apply(*operands)
