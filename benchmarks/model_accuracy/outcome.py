"""How a training went, and its errors on the test split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.training.predict import split_batches
from model_accuracy.sets import Measure, Set


@dataclass(frozen=True)
class Outcome:
    """How a training went."""

    seconds: float
    """CPU time from the first step to the end of training [s], validation included."""
    epochs: int
    best_epoch: int
    errors: tuple[float, ...] | None
    """One for each measure of the set; None where training was NaN before its first epoch."""
    remark: str = ""


def errors(
    chosen: Set, split: GraphSplit, predictions: Mapping[str, NDArray[np.float64]]
) -> tuple[float, ...]:
    """Of predictions of a split, by target, one for each measure."""
    return tuple(
        _error(measure, predictions[measure.target] - labels(split, measure.target), split.n_atoms)
        for measure in chosen.measures
    )


def labels(split: GraphSplit, target: str) -> NDArray[np.float64]:
    """What a target is, [n_graphs, d] or [n_atoms, d]."""
    parts = [batch[target].double().numpy() for batch in split_batches(split)]
    values = np.concatenate(parts)
    return values if values.ndim == 2 else values[:, None]


def _error(measure: Measure, residuals: NDArray[np.float64], atoms: NDArray[np.int64]) -> float:
    if measure.per_atom:
        residuals = residuals / atoms[:, None]
    if measure.how == "rmse":
        return measure.factor * float(np.sqrt(np.mean(residuals**2)))
    return measure.factor * float(np.mean(np.abs(residuals)))
