"""Calibrations made up for tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.calibration import calibrate
from hydragnn_flow.ensemble.conformal import Scores
from hydragnn_flow.ensemble.deviation import Deviation
from hydragnn_flow.ensemble.folds import folds
from hydragnn_flow.ensemble.uncertainty import Calibration

Floats = NDArray[np.float64]


def plain(scale: float, floor: float, quantile: float, per_atom: bool = False) -> Calibration:
    """A calibration whose intervals have one quantile at any coverage."""
    scores = Scores((quantile,), (1.0,), 10**9)
    return Calibration((Deviation(scale, floor),), ((scores,),), (), per_atom, 10**9)


def calibrated(
    residuals: Floats,
    spread: Floats,
    coverage: float = 0.9,
    per_atom: bool = False,
    atoms: Floats | None = None,
    noise: Floats | None = None,
) -> Calibration:
    """A calibration on residuals ``[n, d]``, each row a structure of its own."""
    numbers = np.arange(len(residuals))
    found = calibrate(
        residuals,
        np.zeros(residuals.shape),
        spread,
        numbers,
        folds(len(residuals)),
        coverage,
        per_atom,
        atoms,
        noise,
    )
    assert found is not None
    return found
