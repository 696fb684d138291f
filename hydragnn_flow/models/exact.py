"""Constants that a model keeps in float64, whatever precision its parameters are cast to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pack_exact(values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    """Return numbers, or rows of them, as a buffer that casting the module does not round.

    ``module.float()`` and similar calls cast every floating-point buffer. The bits of a float64 in
    an int64 buffer survive that, and checkpoints and broadcasts too.
    """
    return torch.tensor(values, dtype=torch.float64).view(torch.int64)


def pack_by_branch(rows: Sequence[Sequence[float]]) -> Tensor:
    """Return a row of numbers for each branch as a buffer that casting does not round.

    Its shape is [n_branches, d], or [d] for a single branch.
    """
    return pack_exact(rows if len(rows) > 1 else rows[0])


def of_branch(values: Tensor, branch: Tensor | None) -> Tensor:
    """Return for each row the values of its branch [n, d]; ``values`` [d] for a single branch.

    Parameters
    ----------
    values
        Values by branch [n_branches, d], or [d] for a single branch.
    branch
        Branch of each row, int64 [n]; None if there is only one.
    """
    return values if branch is None else values.index_select(0, branch)


def unpack_exact(buffer: Tensor) -> Tensor:
    """Return the float64 numbers in a buffer made by :func:`pack_exact`."""
    return buffer.view(torch.float64)
