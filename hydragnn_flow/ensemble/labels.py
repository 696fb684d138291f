"""Labels in the components that models predict."""

from __future__ import annotations

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.models.stress import STRESS, VOIGT_PLACES


def labels_of(split: GraphSplit, target: str, dim: int) -> Floats:
    """True values of a target for a split, [n, dim].

    A potential predicts the six components of a stress that a store may hold as nine.
    """
    values = split.target(target)
    if target == STRESS and (values.shape[1], dim) == (9, 6):
        return np.asarray(values[:, VOIGT_PLACES])
    return values
