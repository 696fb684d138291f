"""Tables in which every configuration of a space has been trained.

A search looks a configuration up, so that it costs nothing and every engine finds the same value on
every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import Parameter

Levels = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Grid:
    """Kinds of models, each with arguments of its own, on one data set."""

    name: str
    levels: Mapping[str, Levels]
    """Kind → argument → its values; a search chooses the place of a value."""
    chosen: tuple[str, ...]
    """Arguments whose values have no order: a search chooses the value itself."""

    @property
    def file(self) -> Path:
        """The table: an array for each kind, an axis for each argument."""
        return Path(__file__).with_name(f"{self.name}.npz")

    @cached_property
    def space(self) -> dict[str, Parameter]:
        """Name → domain."""
        return {
            "kind": Parameter(choices=tuple(self.levels)),
            **{
                f"{kind}.{argument}": self._domain(kind, argument, values)
                for kind, arguments in self.levels.items()
                for argument, values in arguments.items()
            },
        }

    def _domain(self, kind: str, argument: str, values: tuple[Any, ...]) -> Parameter:
        when = {"kind": (kind,)}
        if argument in self.chosen:
            return Parameter(choices=values, when=when)
        return Parameter(int=(0, len(values) - 1), when=when)

    @cached_property
    def _table(self) -> dict[str, NDArray[np.float32]]:
        with np.load(self.file) as table:
            return {kind: table[kind] for kind in self.levels}

    @cached_property
    def best(self) -> float:
        """The smallest loss of all."""
        return min(float(losses.min()) for losses in self._table.values())

    def loss(self, params: Mapping[str, Any]) -> float:
        """Result of a configuration."""
        kind = params["kind"]
        place = tuple(
            values.index(params[f"{kind}.{argument}"])
            if argument in self.chosen
            else params[f"{kind}.{argument}"]
            for argument, values in self.levels[kind].items()
        )
        return float(self._table[kind][place])


def _even(low: float, high: float, count: int) -> tuple[float, ...]:
    """Values at equal ratios, to four digits."""
    return tuple(float(f"{x:.4g}") for x in np.geomspace(low, high, count))


_HALVES = tuple(2**i for i in range(2, 8))

DIABETES = Grid(
    "diabetes",
    {
        "boosting": {
            "learning_rate": tuple(float(x) for x in np.geomspace(0.01, 0.5, 10).round(4)),
            "max_leaf_nodes": (2, 3, 4, 6, 8, 12, 16, 24),
            "min_samples_leaf": (1, 3, 8, 20, 40),
            "max_iter": (10, 15, 20, 30, 45, 70, 100, 150),
        },
        "support_vectors": {
            "C": tuple(float(x) for x in np.geomspace(0.3, 3000, 17).round(3)),
            "gamma": tuple(float(x) for x in np.geomspace(1e-4, 1, 17).round(6)),
            "epsilon": (0.1, 1.0, 5.0, 10.0, 20.0, 40.0),
        },
        "kernel_ridge": {
            "kernel": ("rbf", "laplacian", "polynomial"),
            "alpha": tuple(float(x) for x in np.geomspace(1e-4, 1e2, 19).round(7)),
            "gamma": tuple(float(x) for x in np.geomspace(1e-5, 1, 16).round(7)),
        },
        "neighbours": {
            "n_neighbors": tuple(range(1, 61)),
            "weights": ("uniform", "distance"),
            "p": (1, 2),
        },
    },
    chosen=("kernel", "weights", "p"),
)
"""Root of the mean squared error of regressors on scikit-learn's diabetes set, in five folds."""

DIGITS = Grid(
    "digits",
    {
        "support_vectors": {
            "kernel": ("rbf", "poly", "sigmoid"),
            "C": _even(1e-2, 1e3, 16),
            "gamma": _even(1e-5, 1.0, 16),
        },
        "neighbours": {
            "n_components": (4, 6, 8, 12, 16, 24, 32, 64),
            "n_neighbors": tuple(range(1, 41)),
            "weights": ("uniform", "distance"),
            "p": (1, 2, 4),
        },
        "forest": {
            "trees": ("random", "extra"),
            "max_features": (1, 2, 4, 8, 16, 32),
            "min_samples_leaf": (1, 2, 4, 8, 16),
            "max_depth": (2, 4, 6, 8, 12, 20),
            "n_estimators": _HALVES,
        },
        "logistic": {
            "scaling": ("none", "standard", "power"),
            "penalty": ("l1", "l2"),
            "C": _even(1e-4, 1e2, 19),
        },
        "discriminant": {
            "shape": ("linear", "quadratic"),
            "n_components": (4, 6, 8, 12, 16, 24, 32, 64),
            "shrinkage": tuple(round(0.05 * i, 2) for i in range(1, 20)),
        },
    },
    chosen=("kernel", "weights", "p", "trees", "scaling", "penalty", "shape"),
)
"""Share of handwritten digits that classifiers take for others, after 599 to learn from."""

TUMOURS = Grid(
    "tumours",
    {
        "logistic": {
            "scaling": ("none", "standard", "power", "ranks"),
            "penalty": ("l1", "l2"),
            "C": _even(1e-4, 1e3, 29),
        },
        "forest": {
            "trees": ("random", "extra"),
            "max_features": (1, 2, 4, 8, 16, 30),
            "min_samples_leaf": (1, 2, 4, 8, 16, 32),
            "n_estimators": _HALVES,
        },
        "boosting": {
            "learning_rate": _even(0.02, 0.7, 7),
            "max_leaf_nodes": (2, 4, 8),
            "min_samples_leaf": (3, 10, 30),
            "l2_regularization": (0.0, 10.0),
            "max_iter": (10, 15, 20, 30, 45, 70, 100, 150),
        },
        "neighbours": {
            "scaling": ("none", "standard", "power", "ranks"),
            "n_neighbors": tuple(range(1, 41, 2)),
            "weights": ("uniform", "distance"),
            "p": (1, 2),
        },
        "support_vectors": {
            "scaling": ("standard", "power", "ranks"),
            "kernel": ("rbf", "poly", "sigmoid"),
            "C": _even(1e-2, 1e3, 6),
            "gamma": _even(1e-5, 1.0, 6),
        },
    },
    chosen=("scaling", "penalty", "trees", "weights", "p", "kernel"),
)
"""Cross-entropy of classifiers of breast tumours, in five folds."""

MOLECULE = Grid(
    "molecule",
    {
        "kernel_ridge": {
            "representation": ("inverse", "squares", "logarithms", "coulomb"),
            "kernel": ("rbf", "laplacian", "polynomial"),
            "alpha": _even(1e-9, 1.0, 13),
            "gamma": _even(1e-6, 1.0, 16),
        },
        "support_vectors": {
            "representation": ("inverse", "squares", "logarithms", "coulomb"),
            "C": _even(0.1, 1e3, 9),
            "gamma": _even(1e-5, 1.0, 11),
            "epsilon": (0.001, 0.01, 0.05, 0.2),
        },
        "neighbours": {
            "representation": ("inverse", "squares", "logarithms", "coulomb"),
            "n_neighbors": tuple(range(1, 41)),
            "weights": ("uniform", "distance"),
            "p": (1, 2),
        },
        "components": {
            "representation": ("inverse", "squares", "logarithms", "coulomb"),
            "n_components": tuple(range(1, 61)),
        },
        "boosting": {
            "representation": ("inverse", "squares", "logarithms", "coulomb"),
            "learning_rate": _even(0.05, 0.4, 4),
            "max_leaf_nodes": (2, 4, 8),
            "max_iter": (10, 15, 20, 30, 45, 70, 100, 150),
        },
    },
    chosen=("representation", "kernel", "weights", "p"),
)
"""Mean absolute error [meV] of regressors of a molecule's energy, in five folds."""

GRIDS = {grid.name: grid for grid in (DIABETES, DIGITS, MOLECULE, TUMOURS)}
