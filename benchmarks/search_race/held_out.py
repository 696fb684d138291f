"""Functions samplers are judged by: five tables of real trainings, and one that was made up.

They were chosen before any sampler that they measure was changed, and are frozen: no sampler
may be tuned on them: `search_race.development` is for that. Whoever needs to look at one more
closely adds another in its place.
"""

from __future__ import annotations

import math

import numpy as np

from hydragnn_flow.config import Parameter
from search_race.function import Curves, Function, Params
from search_race.recorded.grids import DIGITS, TUMOURS, Grid
from search_race.recorded.surrogate import Surrogate
from search_race.recorded.tasks import TASKS, Task


def _recorded(task: Task) -> Function:
    """Trainings of which thousands were recorded, the others foreseen from them."""
    surrogate = Surrogate(task.file, task.space)

    def losses(params: Params) -> tuple[float, ...]:
        return tuple(surrogate.losses([params])[0].tolist())

    def length(params: Params) -> float:
        return float(surrogate.seconds([params])[0]) / surrogate.median_seconds

    return Function(
        task.name,
        task.what,
        task.space,
        lambda params: losses(params)[-1],
        best=surrogate.best,
        scatter=surrogate.scatter,
        curves=Curves(task.rungs, losses, length),
    )


def _known(grid: Grid, what: str) -> Function:
    """Trainings all of which are known."""
    return Function(grid.name, what, grid.space, grid.loss, best=grid.best)


# Hartmann's function of six variables, as Dixon and Szegö (Towards Global Optimization 2, 1978)
# have it.
_HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_STEEP = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_CENTRES = np.array(
    [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
)
_DEEPEST = 3.322368011
_MATTER = tuple(f"rate.{i}" for i in range(3)), tuple(f"share.{i}" for i in range(3))


def _hartmann(params: Params) -> float:
    """Six parameters matter, three of them logarithmically; fourteen do nothing."""
    rates, shares = _MATTER
    x = [math.log10(params[name]) / 5 + 1 for name in rates] + [params[name] for name in shares]
    squares = (_STEEP * (np.array(x) - _CENTRES) ** 2).sum(axis=1)
    return _DEEPEST - float(_HEIGHTS @ np.exp(-squares))


HELD_OUT = {
    function.name: function
    for function in (
        *(_recorded(task) for task in TASKS.values()),
        _known(DIGITS, "digits, five kinds of classifiers"),
        _known(TUMOURS, "tumours, five kinds of classifiers"),
        Function(
            "hartmann",
            "six of twenty parameters matter, noisy",
            {name: Parameter(float=(1e-5, 1.0), log=True) for name in _MATTER[0]}
            | {f"idle.int.{i}": Parameter(int=(1, 64), log=True) for i in range(4)}
            | {f"idle.choice.{i}": Parameter(choices=("a", "b", "c")) for i in range(4)}
            | {name: Parameter(float=(0.0, 1.0)) for name in _MATTER[1]}
            | {f"idle.float.{i}": Parameter(float=(0.0, 1.0)) for i in range(6)},
            _hartmann,
            best=0.0,
            noise=0.02,
        ),
    )
}
