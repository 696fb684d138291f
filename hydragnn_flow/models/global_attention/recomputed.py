"""Activation checkpointing that also saves memory when training on forces.

``torch.utils.checkpoint`` keeps what a backward pass recomputes until the second derivative is
taken, which training on forces needs, and then saves no memory. Here both passes recompute it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

_Function = Callable[..., Tensor]


def recomputed(module: nn.Module, *inputs: Tensor, **others: Any) -> Tensor:
    """Compute the output of a module; derivatives keep only the inputs and recompute the rest.

    Parameters
    ----------
    module
        Module that returns one tensor and draws no random numbers.
    inputs
        Tensors that, like the parameters, may need gradients.
    others
        Keyword arguments that need no gradient.
    """
    names, parameters = zip(*module.named_parameters(), strict=True)
    precision = _precision(inputs[0].device.type)

    def function(*tensors: Tensor) -> Tensor:
        given, swapped = tensors[: len(inputs)], tensors[len(inputs) :]
        with precision():
            new: Tensor = functional_call(
                module, dict(zip(names, swapped, strict=True)), given, others
            )
        return new

    new: Tensor = _Value.apply(function, *inputs, *parameters)  # type: ignore[no-untyped-call]
    return new


def _precision(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return the current autocast settings as a context; backward passes do not have them."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


def _leaves(tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    pairs = zip(tensors, wanted, strict=True)
    return [tensor.detach().requires_grad_(wants) for tensor, wants in pairs]


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: _Function, *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wanted = ctx.needs_input_grad[1:]
        return None, *_Gradient.apply(ctx.function, wanted, gradient, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _Gradient(torch.autograd.Function):
    """Gradients of a function by its tensors; zero if it does not depend on one."""

    @staticmethod
    def forward(
        ctx: Any,
        function: _Function,
        wanted: Sequence[bool],
        gradient: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:
        ctx.function, ctx.wanted = function, wanted
        ctx.save_for_backward(gradient, *tensors)
        with torch.enable_grad():
            leaves = _leaves(tensors, wanted)
            asked = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(
                torch.autograd.grad(function(*leaves), asked, gradient, materialize_grads=True)
            )
        return tuple(next(found) if wants else None for wants in wanted)

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor | None) -> Any:
        gradient, *tensors = ctx.saved_tensors
        with torch.enable_grad():
            leaves = _leaves([gradient, *tensors], [True, *ctx.wanted])
            asked = [leaf for leaf in leaves[1:] if leaf.requires_grad]
            firsts = torch.autograd.grad(
                ctx.function(*leaves[1:]),
                asked,
                leaves[0],
                create_graph=True,
                materialize_grads=True,
            )
            given = [second for second, wants in zip(seconds, ctx.wanted, strict=True) if wants]
            pairs = [
                (first, second)
                for first, second in zip(firsts, given, strict=True)
                if second is not None and first.requires_grad
            ]
            found = iter(
                torch.autograd.grad(
                    [first for first, _ in pairs],
                    [leaves[0], *asked],
                    [second for _, second in pairs],
                    materialize_grads=True,
                )
            )
        slopes = [next(found) if leaf.requires_grad else None for leaf in leaves]
        return None, None, *slopes
