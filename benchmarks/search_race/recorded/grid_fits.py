"""Makes the tables of `search_race.recorded.grids` again.

    python -m search_race.recorded.grid_fits digits --data DIR      (in the folder benchmarks)

Each takes minutes of CPU and needs scikit-learn; `molecule` needs the directory that holds `acac`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.cross_decomposition import PLSRegression
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import PowerTransformer, QuantileTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from search_race.recorded.grids import GRIDS, Grid

Array = NDArray[np.float64]
Arguments = dict[str, Any]
Fold = tuple[Array, Array, Array, Array]
"""Inputs and targets to learn from, then those to judge by."""
Fit = Callable[[str, Arguments], Any]
"""Loss of a kind and its arguments; of all values of the last argument where it is left out."""
_CERTAIN = 1e-3
"""No classifier is believed to be surer than this."""


def main(
    grid: Annotated[str, typer.Argument(help=f"One of {', '.join(GRIDS)}.")],
    data: Annotated[Path | None, typer.Option(help="Directory that holds acac.")] = None,
) -> None:
    """Fit every configuration and write the table."""
    warnings.simplefilter("ignore")
    chosen = GRIDS[grid]
    makers: dict[str, Callable[[Grid, Path | None], Fit]] = {
        "diabetes": _diabetes,
        "digits": _digits,
        "molecule": _molecule,
        "tumours": _tumours,
    }
    fit = makers[grid](chosen, data)
    table = {}
    for kind, levels in chosen.levels.items():
        shape = [len(values) for values in levels.values()]
        # One fit gives the losses of every number of trees.
        staged = [name for name in levels if name in ("max_iter", "n_estimators")]
        fitted = [name for name in levels if name not in staged]
        rows = [
            fit(kind, dict(zip(fitted, values, strict=True)))
            for values in itertools.product(*(levels[name] for name in fitted))
        ]
        table[kind] = np.array(rows).reshape(shape).astype(np.float32)
        print(kind, shape, float(table[kind].min()), flush=True)
    np.savez_compressed(chosen.file, allow_pickle=False, **table)


def _folds(x: Array, y: Array, count: int, seed: int = 0) -> Iterator[Fold]:
    fold = np.random.default_rng(seed).permutation(len(y)) % count
    for number in range(count):
        train, test = fold != number, fold == number
        yield x[train], y[train], x[test], y[test]


def _diabetes(grid: Grid, data: Path | None) -> Fit:
    x, y = load_diabetes(return_X_y=True)
    folds = list(_folds(StandardScaler().fit_transform(x), y, 5))

    def fit(kind: str, arguments: Arguments) -> Any:
        total: Any = 0.0
        for x_train, y_train, x_test, y_test in folds:
            predicted = _regressed(grid, kind, arguments, x_train, y_train, x_test)
            total = total + np.sum((predicted - y_test) ** 2, axis=-1)
        return np.sqrt(total / len(y))

    return fit


def _regressed(
    grid: Grid, kind: str, arguments: Arguments, x_train: Array, y_train: Array, x_test: Array
) -> Array:
    """Predictions; [n_stages, n_samples] where boosted."""
    if kind == "boosting":
        rounds = grid.levels[kind]["max_iter"]
        model: Any = HistGradientBoostingRegressor(
            **arguments, max_iter=max(rounds), early_stopping=False, random_state=0
        ).fit(x_train, y_train)
        return np.asarray(np.stack(list(model.staged_predict(x_test)))[np.array(rounds) - 1])
    if kind == "support_vectors":
        model = SVR(**arguments)
    elif kind == "neighbours":
        model = KNeighborsRegressor(**arguments)
    elif kind == "components":
        model = PLSRegression(**arguments, scale=False)
    else:
        model = KernelRidge(**arguments, degree=2)
    mean = y_train.mean()
    model.fit(x_train, y_train - mean)
    return np.asarray(np.ravel(model.predict(x_test)) + mean)


def _molecule(grid: Grid, data: Path | None) -> Fit:
    import ase.io

    if data is None:
        raise SystemExit("molecule needs --data, the directory that holds acac")
    frames: Any = ase.io.read(data / "acac" / "train_300K.xyz", index=":")
    upper = np.triu_indices(len(frames[0]), k=1)
    distances = np.stack([frame.get_all_distances()[upper] for frame in frames])
    charges = frames[0].numbers
    product = (charges[:, None] * charges)[upper]
    raw = {
        "inverse": 1 / distances,
        "squares": distances**-2,
        "logarithms": np.log(distances),
        "coulomb": product / distances,
    }
    # Coulomb's weights are its point; the others get one scale in common.
    inputs = {
        name: (x - x.mean(0)) / (x.std(0) if name != "coulomb" else x.std())
        for name, x in raw.items()
    }
    energies = 1e3 * np.array([_energy(frame) for frame in frames])
    spread = energies.std()

    def fit(kind: str, arguments: Arguments) -> Any:
        arguments = dict(arguments)
        x = inputs[arguments.pop("representation")]
        total: Any = 0.0
        for x_train, y_train, x_test, y_test in _folds(x, energies / spread, 5):
            predicted = _regressed(grid, kind, arguments, x_train, y_train, x_test)
            total = total + np.sum(np.abs(predicted - y_test), axis=-1)
        return total * spread / len(energies)

    return fit


def _energy(frame: Any) -> float:
    return float(frame.info["energy"] if "energy" in frame.info else frame.get_potential_energy())


def _digits(grid: Grid, data: Path | None) -> Fit:
    x, y = load_digits(return_X_y=True)
    # The other way round: a third to learn from, two to be judged by.
    folds = [
        (x_test / 16, y_test, x_train / 16, y_train)
        for x_train, y_train, x_test, y_test in _folds(x, y, 3)
    ]

    def fit(kind: str, arguments: Arguments) -> Any:
        wrong: Any = 0.0
        for x_train, y_train, x_test, y_test in folds:
            chances = _classified(grid, kind, arguments, x_train, y_train, x_test)
            wrong = wrong + np.sum(chances.argmax(axis=-1) != y_test, axis=-1)
        return wrong / (2 * len(y))

    return fit


def _tumours(grid: Grid, data: Path | None) -> Fit:
    x, y = load_breast_cancer(return_X_y=True)
    folds = list(_folds(x, y, 5))

    def fit(kind: str, arguments: Arguments) -> Any:
        total: Any = 0.0
        for x_train, y_train, x_test, y_test in folds:
            chances = _classified(grid, kind, arguments, x_train, y_train, x_test)
            chances = np.clip(chances, _CERTAIN, 1 - _CERTAIN)
            total = total - np.sum(np.log(chances[..., np.arange(len(y_test)), y_test]), axis=-1)
        return total / len(y)

    return fit


def _classified(
    grid: Grid, kind: str, arguments: Arguments, x_train: Array, y_train: Array, x_test: Array
) -> Array:
    """Probabilities [n_samples, n_classes]; with the stages first where there are any."""
    arguments = dict(arguments)
    scaled = _scaled(arguments.pop("scaling", "none"), x_train, x_test)
    x_train, x_test = _projected(arguments.pop("n_components", None), *scaled)
    if kind == "forest":
        return _forest(grid, arguments, x_train, y_train, x_test)
    if kind == "boosting":
        rounds = grid.levels[kind]["max_iter"]
        boosted = HistGradientBoostingClassifier(
            **arguments, max_iter=max(rounds), early_stopping=False, random_state=0
        ).fit(x_train, y_train)
        stages = list(boosted.staged_predict_proba(x_test))
        return np.asarray(np.stack(stages)[np.array(rounds) - 1])
    if kind == "support_vectors":
        # Its margins, as chances without a calibration of their own.
        machine = SVC(**arguments, degree=3, decision_function_shape="ovr", max_iter=20_000)
        margins = machine.fit(x_train, y_train).decision_function(x_test)
        if margins.ndim == 1:  # of two classes
            margins = np.stack([-margins, margins], axis=1)
        odds = np.exp(margins - margins.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))
    model: Any
    if kind == "neighbours":
        model = KNeighborsClassifier(**arguments)
    elif kind == "logistic":
        l1_ratio = 1.0 if arguments["penalty"] == "l1" else 0.0
        model = OneVsRestClassifier(
            LogisticRegression(
                C=arguments["C"], l1_ratio=l1_ratio, solver="liblinear", max_iter=200
            )
        )
    elif arguments["shape"] == "linear":
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=arguments["shrinkage"])
    else:
        model = QuadraticDiscriminantAnalysis(solver="eigen", shrinkage=arguments["shrinkage"])
    return np.asarray(model.fit(x_train, y_train).predict_proba(x_test))


def _scaled(how: str, x_train: Array, x_test: Array) -> tuple[Array, Array]:
    scalers: Mapping[str, Callable[[], Any]] = {
        "standard": StandardScaler,
        "power": PowerTransformer,
        "ranks": lambda: QuantileTransformer(n_quantiles=200, random_state=0),
    }
    if how == "none":
        return x_train, x_test
    scaler = scalers[how]().fit(x_train)
    return scaler.transform(x_train), scaler.transform(x_test)


def _projected(components: int | None, x_train: Array, x_test: Array) -> tuple[Array, Array]:
    if components is None:
        return x_train, x_test
    projection = PCA(components, svd_solver="full").fit(x_train)
    return projection.transform(x_train), projection.transform(x_test)


def _forest(
    grid: Grid, arguments: Arguments, x_train: Array, y_train: Array, x_test: Array
) -> Array:
    """Mean probabilities of the first trees, for every number of trees."""
    kinds = {"random": RandomForestClassifier, "extra": ExtraTreesClassifier}
    counts = grid.levels["forest"]["n_estimators"]
    forest = kinds[arguments.pop("trees")](
        **arguments, n_estimators=max(counts), random_state=0
    ).fit(x_train, y_train)
    each = np.stack([tree.predict_proba(x_test) for tree in forest.estimators_])
    sums = np.cumsum(each, axis=0)
    return np.stack([sums[count - 1] / count for count in counts])


if __name__ == "__main__":
    typer.run(main)
