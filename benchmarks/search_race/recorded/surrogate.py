"""Predictions from recorded trainings for configurations that were not recorded.

Five small perceptrons, each fitted to four fifths of the trainings, are averaged: a function that
is smooth where trainings are but for their scatter, costs microseconds and is the same on every
machine. That is how YAHPO Gym (Pfisterer et al., AutoML 2022, arXiv:2109.03670) answers too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import Parameter

Array = NDArray[np.float64]


class Surrogate:
    """The networks of one file, made by `search_race.recorded.fit`.

    Parameters
    ----------
    path
        The file.
    space
        Name → domain of the trainings.
    """

    def __init__(self, path: Path, space: Mapping[str, Parameter]) -> None:
        self._space = dict(space)
        with np.load(path) as held:
            self._layers = [
                (held[f"weights{i}"].astype(np.float64), held[f"offsets{i}"].astype(np.float64))
                for i in range(3)
            ]
            self._shift, self._scale = held["shift"], held["scale"]
            self.best = float(held["best"])
            """The smallest final loss of all."""
            self.scatter = float(held["scatter"])
            """Standard deviation of the logarithm of a final loss over seeds."""
            self.median_seconds = float(held["median_seconds"])
            """CPU time [s] of the training of a random configuration, the median."""

    def losses(self, trials: Sequence[Mapping[str, Any]]) -> Array:
        """The smallest validation loss up to each rung, `[n_trials, n_rungs]`."""
        logs = self._answers(trials)[:, :-1]
        return np.asarray(np.exp(np.minimum.accumulate(logs, axis=1)))

    def seconds(self, trials: Sequence[Mapping[str, Any]]) -> Array:
        """CPU time of whole trainings [s], `[n_trials]`."""
        return np.asarray(np.exp(self._answers(trials)[:, -1]))

    def _answers(self, trials: Sequence[Mapping[str, Any]]) -> Array:
        held = encoded(trials, self._space)[None]
        for i, (weights, offsets) in enumerate(self._layers):
            held = held @ weights + offsets[:, None]
            if i < 2:
                held = held / (1 + np.exp(-held))
        return np.asarray(held.mean(0) * self._scale + self._shift)


def encoded(trials: Sequence[Mapping[str, Any]], space: Mapping[str, Parameter]) -> Array:
    """Columns of numbers in -1..1 and of ones for choices; zero what does not exist."""
    columns = []
    for name, domain in space.items():
        values = [trial.get(name) for trial in trials]
        if domain.choices is not None:
            columns += [[float(value == choice) for value in values] for choice in domain.choices]
        else:
            columns.append([0.0 if value is None else _placed(value, domain) for value in values])
    return np.array(columns).T


def _placed(value: float, domain: Parameter) -> float:
    assert domain.bounds is not None
    low, high = domain.bounds
    share = math.log(value / low) / math.log(high / low) if domain.log else 0.0
    return 2 * (share if domain.log else (value - low) / (high - low)) - 1
