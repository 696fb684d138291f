"""Rows of a target: one for each structure, or one for each of its atoms."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import Target

T = TypeVar("T", bound=np.generic)


def rows_of(values: NDArray[T], n_atoms: NDArray[np.int64], target: Target) -> NDArray[T]:
    """What is known of each structure, for each row of a target.

    Parameters
    ----------
    values, n_atoms
        Of each structure, ``[n]``.
    target
        Its level says what its rows belong to.
    """
    return values if target.level == "graph" else np.repeat(values, n_atoms)
