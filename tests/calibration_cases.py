"""Calibrations made up for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.uncertainty.calibration import calibrate, folds
from hydragnn_flow.ensemble.uncertainty.deviation import Deviation, Scores
from hydragnn_flow.ensemble.uncertainty.distribution import Calibration, Rows, Sizes

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
    n = len(residuals)
    sizes = Sizes.of(per_atom, Rows(atoms), noise, residuals.shape)
    found = calibrate(
        residuals, np.zeros(residuals.shape), spread, sizes, np.arange(n), folds(n), coverage
    )
    assert found is not None
    return replace(found, per_atom=per_atom, by_noise=noise is not None)


def ones(values: Floats) -> Sizes:
    """Sizes of rows without noise, of a target that is no sum over atoms."""
    return Sizes.of(False, Rows(), None, values.shape)
