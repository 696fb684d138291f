"""Derivatives of forms that are linear in each of their operands.

The derivative of such a form with respect to one operand is a sum over the others, and the
derivative of that sum is another of the same family. So one function is closed under
differentiation, and a kernel has to compute nothing but the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

EDGES_AT_A_TIME = 2048
"""Edges that a CPU takes at a time, so that what it computes of them stays in its cache."""

Form = Callable[[int, list[Any]], Tensor]
"""Derivative of a form with respect to the operand of a number, whose place holds None."""

# Not a public function of torch; without it some gradients are computed for nothing.
_CAN_ASK = hasattr(torch._C, "_will_engine_execute_node")


def derivative(form: Form, of: int, *others: Tensor) -> Tensor:
    """Derivative of a form with respect to one operand, itself differentiable any number of times.

    Parameters
    ----------
    form
        Computes the derivatives.
    of
        Number of the operand.
    *others
        The other operands, in their order.
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
    """Which gradients of an autograd function's tensors are needed, in its backward pass.

    The tensors must be its first operands.

    Of operands that require a gradient, torch's ``needs_input_grad`` counts those too whose
    gradient leads to nothing that was asked for: that of a spline's coefficients, in the pass that
    computes the forces.
    """
    nodes = [node for node, _ in ctx.next_functions]
    needs = list(ctx.needs_input_grad[: len(nodes)])
    if not _CAN_ASK:
        return needs
    return [
        needed
        # torch cannot say it of a leaf, which is rarely an operand.
        and (node.name().endswith("AccumulateGrad") or torch._C._will_engine_execute_node(node))
        for needed, node in zip(needs, nodes, strict=True)
    ]


def edge_slices(edges: Tensor) -> Iterator[slice]:
    """Slices of the rows of a tensor by edge: a CPU takes some at a time, an accelerator all."""
    n = edges.shape[0]
    step = EDGES_AT_A_TIME if edges.device.type == "cpu" else max(n, 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def apply_function(function: Any, *operands: Any) -> Any:
    """``function.apply``, which torch has left without types."""
    return function.apply(*operands)
