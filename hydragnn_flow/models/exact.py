"""Constants a model keeps in float64, whatever precision its parameters are cast to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pack_exact(values: Sequence[float]) -> Tensor:
    """Numbers as a buffer that no cast of the module can round.

    ``module.float()`` and its like cast every floating-point buffer; the bits of a float64 in an
    int64 buffer pass unharmed, through checkpoints and broadcasts as well.
    """
    return torch.tensor(list(values), dtype=torch.float64).view(torch.int64)


def unpack_exact(buffer: Tensor) -> Tensor:
    """The float64 numbers in a buffer of :func:`pack_exact`."""
    return buffer.view(torch.float64)
