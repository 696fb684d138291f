"""Calibration split of a store, and folds that separate fitting from scoring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.data.splits import CALIBRATION, VALIDATION

_FOLDS = 10


def calibration_split(store: GraphStore) -> GraphSplit:
    """Return the split for weights and calibration; validation if a store has none of its own."""
    if CALIBRATION in store.splits and len(store[CALIBRATION]):
        return store[CALIBRATION]
    return store[VALIDATION]


def folds(n_structures: int) -> NDArray[np.int64]:
    """Return the fold of each structure, ``[n_structures]``: ten folds, or one per structure.

    A fit on all folds but one has not seen the structures of that one, so its errors there are like
    those on new structures (cross-fitting, Chernozhukov et al., Econom. J. 21, C1 (2018)). The
    division depends only on the number of structures.
    """
    numbers = np.arange(n_structures, dtype=np.int64) % min(_FOLDS, max(n_structures, 1))
    return np.random.default_rng(0).permutation(numbers)
