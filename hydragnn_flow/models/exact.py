"""Constants a model keeps in float64, whatever precision its parameters are cast to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pack_exact(values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    """Numbers, or rows of them, as a buffer that no cast of the module can round.

    ``module.float()`` and its like cast every floating-point buffer; the bits of a float64 in an
    int64 buffer pass unharmed, through checkpoints and broadcasts as well.
    """
    return torch.tensor(values, dtype=torch.float64).view(torch.int64)


def pack_by_branch(rows: Sequence[Sequence[float]]) -> Tensor:
    """A row of numbers of each branch [n_branches, d], or the only one [d], as such a buffer."""
    return pack_exact(rows if len(rows) > 1 else rows[0])


def of_branch(values: Tensor, branch: Tensor | None) -> Tensor:
    """Rows of the branches [n, d] of numbers by branch; all of them [d] if there is but one.

    Parameters
    ----------
    values
        [n_branches, d], or [d].
    branch
        Branch of each row, int64 [n]; None if there is but one.
    """
    return values if branch is None else values.index_select(0, branch)


def unpack_exact(buffer: Tensor) -> Tensor:
    """The float64 numbers in a buffer of :func:`pack_exact`."""
    return buffer.view(torch.float64)
