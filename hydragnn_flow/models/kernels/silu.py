"""SiLU with a cheap second derivative, which training on forces takes at every edge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hydragnn_flow.models.kernels.multilinear import apply_function


def smooth_silu(x: Tensor) -> Tensor:
    """Compute x sigmoid(x), element by element.

    torch's own backward pass is one kernel only if it is not differentiated again. Otherwise it is
    half a dozen kernels, each of which keeps a tensor and has a derivative of its own.
    """
    value: Tensor = apply_function(_Value, x)
    return value


class _Value(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return functional.silu(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return apply_function(_Slope, gradient, *ctx.saved_tensors)


class _Slope(Function):
    """Slope of SiLU times a gradient."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, x)
        slope: Tensor = torch.ops.aten.silu_backward(gradient, x)
        return slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient, x = ctx.saved_tensors
        s = torch.sigmoid(x)
        # silu'' = s (1 - s) (2 + x (1 - 2 s)), in place because memory traffic dominates.
        curvature = torch.addcmul(x, x, s, value=-2.0).add_(2.0)
        curvature.mul_(torch.addcmul(s, s, s, value=-1.0)).mul_(gradient).mul_(outer)
        return torch.ops.aten.silu_backward(outer, x), curvature
