"""A real task: four kinds of regressors on scikit-learn's diabetes set, every configuration known.

    python -m search_race.diabetes          (in the folder benchmarks; needs scikit-learn)

makes the table again, which takes two minutes of CPU. A search looks a configuration up, so that
it costs nothing and every engine finds the same value on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import Parameter

_FILE = Path(__file__).with_name("diabetes.npz")
_FOLDS = 5
# Of each kind, a regressor's arguments and their levels; a search chooses the level's place.
_LEVELS: dict[str, dict[str, tuple[Any, ...]]] = {
    "boosting": {
        "learning_rate": tuple(float(x) for x in np.geomspace(0.01, 0.5, 10).round(4)),
        "max_leaf_nodes": (2, 3, 4, 6, 8, 12, 16, 24),
        "min_samples_leaf": (1, 3, 8, 20, 40),
        # Last, since one fit gives them all.
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
}
_CHOSEN = ("kernel", "weights", "p")
"""Arguments whose levels have no order."""


def _domain(kind: str, argument: str, levels: tuple[Any, ...]) -> Parameter:
    when = {"kind": (kind,)}
    if argument in _CHOSEN:
        return Parameter(choices=levels, when=when)
    return Parameter(int=(0, len(levels) - 1), when=when)


SPACE: dict[str, Parameter] = {
    "kind": Parameter(choices=tuple(_LEVELS)),
    **{
        f"{kind}.{argument}": _domain(kind, argument, levels)
        for kind, arguments in _LEVELS.items()
        for argument, levels in arguments.items()
    },
}


def _read() -> dict[str, NDArray[np.float32]]:
    with np.load(_FILE) as table:
        return {kind: table[kind] for kind in _LEVELS}


def error(params: Mapping[str, Any]) -> float:
    """Root of the mean squared error in five folds, of the regressor that ``params`` ask for."""
    kind = params["kind"]
    place = tuple(
        levels.index(params[f"{kind}.{argument}"])
        if argument in _CHOSEN
        else params[f"{kind}.{argument}"]
        for argument, levels in _LEVELS[kind].items()
    )
    return float(_TABLE[kind][place])


def make_table() -> dict[str, NDArray[np.float32]]:
    """Fit every configuration; of shape [levels of the first argument, of the second, ...]."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    x, y = load_diabetes(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    fold = np.random.default_rng(0).permutation(len(y)) % _FOLDS

    def squares(kind: str, arguments: dict[str, Any]) -> NDArray[np.float64]:
        """Summed over the folds; boosting's for each number of iterations."""
        total = np.zeros(())
        for number in range(_FOLDS):
            train, test = fold != number, fold == number
            if kind == "boosting":
                rounds = _LEVELS[kind]["max_iter"]
                model = HistGradientBoostingRegressor(
                    **arguments, max_iter=max(rounds), early_stopping=False, random_state=0
                ).fit(x[train], y[train])
                staged = np.stack(list(model.staged_predict(x[test])))[np.array(rounds) - 1]
                total = total + np.sum((staged - y[test]) ** 2, axis=1)
                continue
            if kind == "support_vectors":
                model = SVR(**arguments)
            elif kind == "neighbours":
                model = KNeighborsRegressor(**arguments)
            else:
                model = KernelRidge(**arguments, degree=2)
            mean = y[train].mean()
            model.fit(x[train], y[train] - mean)
            total = total + np.sum((model.predict(x[test]) + mean - y[test]) ** 2)
        return total

    table = {}
    for kind, arguments in _LEVELS.items():
        fitted = {name: levels for name, levels in arguments.items() if name != "max_iter"}
        rows = [
            squares(kind, dict(zip(fitted, values, strict=True)))
            for values in itertools.product(*fitted.values())
        ]
        errors = np.sqrt(np.stack(rows) / len(y))
        table[kind] = errors.reshape([len(levels) for levels in arguments.values()]).astype("f4")
    return table


if __name__ == "__main__":
    np.savez_compressed(_FILE, allow_pickle=False, **make_table())
else:
    _TABLE = _read()
    BEST = min(float(errors.min()) for errors in _TABLE.values())
