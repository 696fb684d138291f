"""Recomputation of a module in both backward passes that training on forces takes.

``torch.utils.checkpoint`` keeps what a backward pass recomputes until the second derivative is
taken, which training on forces needs, and then saves no memory. Here both passes recompute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hydragnn_flow.models.kernels.multilinear import apply_function, needed_gradients


def recomputed(
    module: nn.Module, *inputs: Tensor, unused: Sequence[str] = (), **others: Any
) -> tuple[Tensor, ...]:
    """Compute a module's outputs and keep only its inputs; backward passes recompute the rest.

    Parameters
    ----------
    module
        Module that returns a tensor or a tuple of them, and draws no random numbers.
    inputs
        Tensors that the module reads; like its parameters and buffers, they may need gradients.
    unused
        Beginnings of the names of parameters and buffers that the module does not read.
    others
        Keyword arguments of the module that need no gradient.
    """
    of_module = chain(module.named_parameters(), module.named_buffers())
    named = {
        name: tensor
        for name, tensor in of_module
        if tensor.requires_grad and not name.startswith(tuple(unused))
    }

    def function(*tensors: Tensor) -> Sequence[Tensor]:
        given, swapped = tensors[: len(inputs)], tensors[len(inputs) :]
        values = functional_call(module, dict(zip(named, swapped, strict=True)), given, others)
        return values if isinstance(values, tuple) else (values,)

    # Of views torch can tell that the pass for forces does not ask for their gradients.
    views = (tensor.view_as(tensor) for tensor in named.values())
    found: tuple[Tensor, ...] = apply_function(_Recomputed, *inputs, *views, function)
    return found


def _precision(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes a context manager with the current autocast settings.

    Backward passes would not have these settings by themselves.
    """
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Any:
        *tensors, ctx.function = operands
        ctx.precision = _precision(tensors[0].device.type)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        # Detached, because gradients must not reach one of them by way of another.
        return ctx.function(*(x.detach() for x in tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        function, precision, needs = ctx.function, ctx.precision, needed_gradients(ctx)
        known = [n for n, gradient in enumerate(gradients) if gradient is not None]

        def slopes(*operands: Tensor) -> Sequence[Tensor]:
            along, inputs = operands[: len(known)], operands[len(known) :]
            differentiable = torch.is_grad_enabled()
            with torch.enable_grad():
                inputs = tuple(
                    x.detach().requires_grad_() if need and not x.requires_grad else x
                    for x, need in zip(inputs, needs, strict=True)
                )
                with precision():
                    values = function(*inputs)
                pairs = [
                    (values[n], gradient)
                    for n, gradient in zip(known, along, strict=True)
                    if values[n].requires_grad
                ]
                return torch.autograd.grad(
                    [value for value, _ in pairs],
                    [x for x, need in zip(inputs, needs, strict=True) if need],
                    [gradient for _, gradient in pairs],
                    create_graph=differentiable,
                    materialize_grads=True,
                )

        # Its own backward pass recomputes the slopes, and so their values.
        given = [gradients[n] for n in known]
        found = iter(apply_function(_Recomputed, *given, *ctx.saved_tensors, slopes))
        return *(next(found) if need else None for need in needs), None
