"""Labels in the components that models predict."""

from __future__ import annotations

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.models import STRESS

# Of a tensor row by row, the places of Voigt's xx, yy, zz, yz, xz, xy.
_VOIGT = (0, 4, 8, 5, 2, 1)


def labels_of(split: GraphSplit, target: str, dim: int) -> Floats:
    """True values of a target for a split, [n, dim].

    A potential predicts the six components of a stress that a store may hold as nine.
    """
    values = split.target(target)
    if target == STRESS and (values.shape[1], dim) == (9, 6):
        return np.asarray(values[:, _VOIGT])
    return values
