"""Structures that weigh and calibrate an ensemble, and the folds that keep fit and score apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.data.splits import CALIBRATION, VALIDATION

_FOLDS = 10


def calibration_split(store: GraphStore) -> GraphSplit:
    """The split that weighs and calibrates: its own where the store has one, or validation."""
    if CALIBRATION in store.splits and len(store[CALIBRATION]):
        return store[CALIBRATION]
    return store[VALIDATION]


def folds(n_structures: int) -> NDArray[np.int64]:
    """Fold of each structure, ``[n_structures]``: ten of them, or as many as there are structures.

    What is fitted on all folds but one has not seen the structures of that one, so its errors there
    are like those on new structures (cross-fitting, Chernozhukov et al., Econom. J. 21, C1 (2018)).
    The division is always the same for a number of structures.
    """
    numbers = np.arange(n_structures, dtype=np.int64) % min(_FOLDS, max(n_structures, 1))
    return np.random.default_rng(0).permutation(numbers)
