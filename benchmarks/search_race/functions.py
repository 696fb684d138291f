"""Functions that samplers are compared on: tables of recorded trainings, and one that was made up.

Those held out were chosen before what they measure was changed, and are frozen: nothing may be
tuned on them; those for development are for that. The rules at rungs have sets of their own. Beside
each table a file says where it comes from. A search looks losses up, so every engine finds the same
value on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from hydragnn_flow.config import Parameter
from hydragnn_flow.config.domain import satisfying

Params = Mapping[str, Any]
Table = dict[str, NDArray[Any]]
_TABLES = Path(__file__).with_name("tables")


@dataclass(frozen=True)
class Function:
    """Something to minimise."""

    name: str
    space: dict[str, Parameter]
    """Name → domain; names that `when` mentions come first."""
    losses: Callable[[Params], NDArray[np.float64]]
    """The true loss of a configuration at each rung; the last is that of a whole training."""
    best: float
    """The smallest loss there is."""
    noise: float = 0.0
    """Standard deviation of the noise that is added to an observed loss."""
    scatter: NDArray[np.float64] | None = None
    """Root of the covariance [n_rungs, n_rungs] of the noise of the losses' logarithms."""
    length: Callable[[Params], float] | None = None
    """CPU time of a training, over the median of random configurations."""
    epochs: tuple[int, ...] = (1,)
    """Epochs of the rungs."""

    def both(self, params: Params) -> tuple[float, float]:
        """True loss and time of a whole training."""
        assert self.length is not None
        return float(self.losses(params)[-1]), self.length(params)

    @cached_property
    def front(self) -> tuple[NDArray[np.float64], float]:
        """Corner that 90 % of 10,000 random configurations are below in loss or time, and the area
        that they dominate, in logarithms."""
        drawn = [self.both(params) for params in satisfying(self.space, (), {})]
        corner = np.quantile(np.log(drawn), 0.9, axis=0)
        return corner, dominated(drawn, corner)

    def observed(self, params: Params, seed: int, number: int) -> NDArray[np.float64]:
        """Losses at the rungs as trial ``number`` of a search sees them, equal for all engines."""
        losses = self.losses(params)
        drawn = np.random.default_rng([seed, number]).normal(size=len(losses))
        if self.scatter is not None:
            losses = losses * np.exp(self.scatter @ drawn)
        # The smallest losses so far do not rise, and noise is that of the end.
        return np.maximum.accumulate((losses + self.noise * drawn)[::-1])[::-1]


def dominated(points: Sequence[tuple[float, float]], corner: NDArray[np.float64]) -> float:
    """Area between points and a corner: their hypervolume, in logarithms."""
    x, y = np.minimum(np.log(sorted(points)), corner).T
    return float(np.diff(x, append=corner[0]) @ (corner[1] - np.minimum.accumulate(y)))


def _surrogate(name: str, about: dict[str, Any], table: Table) -> Function:
    """Losses and times that small perceptrons, fitted to recorded trainings, foresee."""
    space = {key: Parameter.model_validate(value) for key, value in about["space"].items()}
    layers = [
        (table[f"weights{i}"].astype(np.float64), table[f"offsets{i}"].astype(np.float64))
        for i in range(3)
    ]
    median, best = float(table["median_seconds"]), float(table["best"])
    epochs = tuple(about["rungs"])

    def answers(params: Params) -> NDArray[np.float64]:
        """Logarithms of the losses at the rungs and of the time [s]."""
        held: NDArray[np.float64] = np.array([[_encoded(params, space)]])
        for i, (weights, offsets) in enumerate(layers):
            held = held @ weights + offsets[:, None]
            if i < 2:
                held = held / (1 + np.exp(-held))
        return np.asarray(held.mean(0)[0] * table["scale"] + table["shift"], np.float64)

    def losses(params: Params) -> NDArray[np.float64]:
        return np.exp(np.minimum.accumulate(answers(params)[:-1]))

    def length(params: Params) -> float:
        return math.exp(answers(params)[-1]) / median

    scatter = _scatter(table, epochs)
    return Function(name, space, losses, best, scatter=scatter, length=length, epochs=epochs)


def _scatter(table: Table, epochs: Sequence[int]) -> NDArray[np.float64]:
    """Root of the covariance of a training's logarithms over seeds, from those trained again."""
    every = epochs[-1] // table["log_losses"].shape[1]
    curves = np.fmin.accumulate(table["log_losses"].astype(np.float64), axis=1)
    rungs = curves[:, [epoch // every - 1 for epoch in epochs]]
    _, groups = np.unique(np.nan_to_num(table["params"], nan=-1), axis=0, return_inverse=True)
    again = [rungs[groups == i] for i in np.flatnonzero(np.bincount(groups.ravel()) > 1)]
    off = np.concatenate([one - one.mean(0) for one in again])
    covariance = off.T @ off / (len(off) - len(again))
    return np.linalg.cholesky(covariance + 1e-9 * np.eye(len(epochs)))


def _encoded(params: Params, space: Mapping[str, Parameter]) -> list[float]:
    """Numbers in -1..1 and ones for choices; zero what does not exist."""
    row: list[float] = []
    for name, domain in space.items():
        value = params.get(name)
        if domain.choices is not None:
            row += [float(value == choice) for choice in domain.choices]
        else:
            row.append(0.0 if value is None else _placed(value, domain))
    return row


def _placed(value: float, domain: Parameter) -> float:
    assert domain.bounds is not None
    low, high = domain.bounds
    linear = (value - low) / (high - low)
    return 2 * (math.log(value / low) / math.log(high / low) if domain.log else linear) - 1


def _grid(name: str, about: dict[str, Any], table: Table) -> Function:
    """Trainings all of which are known: kinds of models, each with arguments of its own."""
    levels, chosen = about["levels"], about["chosen"]
    space = {"kind": Parameter(choices=tuple(levels))}
    for kind, arguments in levels.items():
        for argument, values in arguments.items():
            when = {"kind": (kind,)}
            space[f"{kind}.{argument}"] = (
                Parameter(choices=tuple(values), when=when)
                if argument in chosen
                else Parameter(int=(0, len(values) - 1), when=when)
            )

    def losses(params: Params) -> NDArray[np.float64]:
        kind = params["kind"]
        given = {argument: params[f"{kind}.{argument}"] for argument in levels[kind]}
        place = tuple(
            levels[kind][argument].index(value) if argument in chosen else value
            for argument, value in given.items()
        )
        return np.array([table[kind][place]], np.float64)

    return Function(name, space, losses, min(float(table[kind].min()) for kind in levels))


# Hartmann's function of six variables, as Dixon and Szegö (Towards Global Optimization 2, 1978)
# have it.
_HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_STEEP = np.array([[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14]])
_STEEP = np.vstack([_STEEP, [[3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]])
_CENTRES = np.array(
    [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
)
_DEEPEST = 3.322368011
_RATES, _SHARES = tuple(f"rate.{i}" for i in range(3)), tuple(f"share.{i}" for i in range(3))


def _hartmann(params: Params) -> NDArray[np.float64]:
    """Six parameters matter, three of them logarithmically; fourteen do nothing."""
    x = [math.log10(params[n]) / 5 + 1 for n in _RATES] + [params[n] for n in _SHARES]
    squares = (_STEEP * (np.array(x) - _CENTRES) ** 2).sum(axis=1)
    return np.array([_DEEPEST - float(_HEIGHTS @ np.exp(-squares))])


_HARTMANN = Function(
    "hartmann",
    {name: Parameter(float=(1e-5, 1.0), log=True) for name in _RATES}
    | {f"idle.int.{i}": Parameter(int=(1, 64), log=True) for i in range(4)}
    | {f"idle.choice.{i}": Parameter(choices=("a", "b", "c")) for i in range(4)}
    | {name: Parameter(float=(0.0, 1.0)) for name in _SHARES}
    | {f"idle.float.{i}": Parameter(float=(0.0, 1.0)) for i in range(6)},
    _hartmann,
    best=0.0,
    noise=0.02,
)


_TABLES_WITH_RUNGS = ("alloys", "perovskites", "boosting")
FUNCTIONS = {
    False: ((*_TABLES_WITH_RUNGS, "digits", "tumours", "hartmann"), ("diabetes", "molecule")),
    True: (("silicon", "acetylacetone", "germanium"), _TABLES_WITH_RUNGS),
}
"""Without rungs and with them → functions held out, and functions for development."""


def load(name: str) -> Function:
    """The function of a name."""
    if name == "hartmann":
        return _HARTMANN
    about = yaml.safe_load((_TABLES / f"{name}.yaml").read_text(encoding="utf-8"))
    with np.load(_TABLES / f"{name}.npz") as held:
        table = dict(held)
    return _surrogate(name, about, table) if "space" in about else _grid(name, about, table)
