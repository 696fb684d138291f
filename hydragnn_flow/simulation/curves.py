"""Learning curves of simulated trials: smooth in the hyper-parameters, so that a search can learn.

Errors fall by a power of the epochs towards a floor, as those of many networks do (Hestness et al.,
arXiv:1712.00409). The floor is a bowl over the search space, with its minimum drawn by a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.config.domain import Parameter
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.simulation.truth import draws


class Curves(Protocol):
    """Validation errors of trials and members."""

    def errors(self, spec: SegmentSpec) -> list[float]:
        """Criterion after each epoch, from the first to the last of the segment."""
        ...


class DrawnCurves:
    """Errors that fall towards a floor, which is a bowl over the search space.

    Parameters
    ----------
    space
        Domain of each hyper-parameter by its dotted path.
    seed
        Seed of the random numbers.
    """

    def __init__(self, space: Mapping[str, Parameter], seed: int) -> None:
        self._space, self._seed = space, seed
        drawn = draws(seed, "bowl")
        self._best = {name: drawn.uniform(0.2, 0.8) for name in space}
        weights = drawn.dirichlet(np.ones(len(space)))
        self._weights = dict(zip(space, weights.tolist(), strict=True))

    def errors(self, spec: SegmentSpec) -> list[float]:
        drawn = draws(self._seed, "curve", spec.seed)
        floor = self._floor(spec.network) * math.exp(0.1 * drawn.standard_normal())
        epochs = np.arange(1, spec.until_epoch + 1)
        falling = floor + (1 - floor) * (1 + epochs / 0.5) ** -0.8
        noise = np.exp(0.03 * drawn.standard_normal(len(epochs)))
        errors: list[float] = (falling * noise).tolist()
        return errors

    def _floor(self, network: NetworkConfig) -> float:
        bowl = sum(
            self._weights[name] * ((place - self._best[name]) / 0.8) ** 2
            for name, domain in self._space.items()
            if (place := _place(domain, value_at(network, name))) is not None
        )
        return 0.05 * math.exp(3 * bowl)


def value_at(network: NetworkConfig, path: str) -> Any:
    """Value at a dotted path of a network; None if there is none."""
    found: Any = network
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
    # A single width may be given for all layers.
    return found[0] if isinstance(found, list | tuple) and found else found


def _place(domain: Parameter, value: Any) -> float | None:
    """Relative position of a value in its domain, 0 to 1; None if it is outside."""
    if domain.choices is not None:
        if value not in domain.choices:
            return None
        return (domain.choices.index(value) + 0.5) / len(domain.choices)
    if domain.bounds is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = domain.bounds
    if high <= low:
        return None
    if domain.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)
