"""Encoding of a search space as a unit cube, for quasi-random points and Gaussian processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hydragnn_flow.config import Parameter
from hydragnn_flow.config.domain import alike
from hydragnn_flow.search.records import distributions

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Space = Mapping[str, Parameter]
Integers = NDArray[np.intp]
Values = dict[str, Any]
Running = Sequence[Mapping[str, Any]]
"""Parameters of each trial that runs, by dotted path."""


class KnownTrial(NamedTuple):
    """Trial whose loss is known at the end or at a rung, with its parameters."""

    values: Mapping[str, Any]
    """Parameters by dotted path."""
    numbers: Sequence[float]
    """Losses at the end, one for each objective, then its excesses, one for each limit. An excess
    is a value minus its limit. A number is NaN if it is not known."""
    reports: Sequence[tuple[int, float]] = ()
    """Rung, counted from 0, and first loss, at each rung reached before the last, ascending."""


Known = Sequence[KnownTrial]
_FROM_ABSENT = math.sqrt(0.5)
"""Distance in the features of any value of a conditional parameter from its absence. Both ends of a
range, and any two choices, are at distance 1 from each other."""


class Branch(NamedTuple):
    """Subspace of the search space in which one parameter has one of its choices."""

    column: int
    """Position of the parameter in the space."""
    unit: float
    """Coordinate of the choice in the unit cube, 0 to 1."""


class UnitCube:
    """Encoding of a search space: trials are points [n_parameters] of the unit cube.

    Each value of an integer or a choice has an interval, and lies at its middle. The coordinate of
    a parameter that does not exist in a trial is NaN.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path. A parameter comes after those that its condition
        names.
    """

    def __init__(self, space: Space) -> None:
        self.domains = distributions(space)
        self.choices = np.array([_n_choices(domain) for domain in self.domains.values()])
        """Number of choices of each parameter [n_parameters]; 0 for a numerical parameter."""
        self._axes = {name: _axis(domain) for name, domain in self.domains.items()}
        self._column = {name: column for column, name in enumerate(space)}
        self._when = {name: parameter.when for name, parameter in space.items() if parameter.when}
        self.parameters = np.repeat(np.arange(len(space)), [self._width(name) for name in space])
        """Position of the parameter that each feature encodes [n_features]."""

    def __len__(self) -> int:
        return len(self.domains)

    def branches(self) -> list[Branch]:
        """Return one branch (subspace) for each choice of a parameter that a condition names."""
        asked = {other for when in self._when.values() for other in when}
        return [
            Branch(self._column[name], (value + 0.5) / count)
            for name, count in zip(self.domains, self.choices.tolist(), strict=True)
            if name in asked
            for value in range(count)
        ]

    def encode(self, trials: Sequence[Mapping[str, Any]]) -> Floats:
        """Encode the parameters of trials as points [n, n_parameters]; absent ones are NaN."""
        points = np.full((len(trials), len(self)), np.nan)
        for column, (name, domain) in enumerate(self.domains.items()):
            rows = [row for row, values in enumerate(trials) if name in values]
            numbers = [domain.to_internal_repr(trials[row][name]) for row in rows]
            points[rows, column] = self._axes[name].unit(np.array(numbers, dtype=float))
        return points

    def decode(self, points: Floats) -> list[Values]:
        """Decode points [n, n_parameters] into parameter values by path; NaN is left out."""
        decoded: list[Values] = [{} for _ in points]
        for name, units in zip(self.domains, points.T, strict=True):
            for values, number in zip(decoded, self._numbers(name, units), strict=True):
                if not math.isnan(number):
                    values[name] = self.domains[name].to_external_repr(number)
        return decoded

    def features(self, points: Floats) -> Floats:
        """Return the features of points [n, n_parameters] for a Gaussian process: [n, n_features].

        A numerical parameter has one column, a categorical one has a column for each choice. A
        conditional numerical parameter has two columns: a point on a quarter of a circle. Its
        absence is the centre of the circle, from which all values have the same distance (Hutter
        and Osborne, 2013, arXiv:1310.5738).
        """
        columns = []
        for name, units, count in zip(self.domains, points.T, self.choices.tolist(), strict=True):
            if count:
                chosen = np.floor(units * count)[:, None] == np.arange(count)
                columns.append(_FROM_ABSENT * chosen)
            elif name in self._when:
                angle = np.pi / 2 * (units[:, None] - 0.5)
                on_circle = _FROM_ABSENT * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
                columns.append(np.nan_to_num(on_circle, nan=0.0))
            else:
                columns.append(units[:, None])
        return np.concatenate(columns, axis=1)

    def _width(self, name: str) -> int:
        return int(self.choices[self._column[name]]) or (2 if name in self._when else 1)

    def snap(self, points: Floats) -> Floats:
        """Return points moved to the nearest values of the space; absent parameters become NaN.

        Parameters
        ----------
        points
            Points [n, n_parameters] of the unit cube; no parameter that may exist is NaN.
        """
        snapped = np.empty_like(points)
        for column, (name, axis) in enumerate(self._axes.items()):
            snapped[:, column] = axis.unit(axis.number(points[:, column]))
            for other, allowed in self._when.get(name, {}).items():
                holds = self._holds(other, snapped[:, self._column[other]], allowed)
                snapped[~holds, column] = np.nan
        return snapped

    def _holds(self, name: str, units: Floats, allowed: Sequence[Any]) -> Bools:
        found, where = np.unique(units, return_inverse=True)
        value = self.domains[name].to_external_repr
        numbers = self._numbers(name, found)
        holds = [math.isfinite(n) and any(alike(value(n), one) for one in allowed) for n in numbers]
        return np.array(holds, dtype=bool)[where]

    def _numbers(self, name: str, units: Floats) -> list[float]:
        """Return a parameter's numbers [n] in Optuna's terms."""
        numbers: list[float] = self._axes[name].number(units).tolist()
        return numbers


class _Axis:
    """Axis of the unit cube: converts values of one parameter, linearly or logarithmically."""

    def __init__(self, low: float, high: float, step: float, log: bool) -> None:
        self._low, self._high, self._step, self._log = low, high, step, log
        edges = np.array([low - step / 2, high + step / 2])
        self._start, end = np.log(edges) if log else edges
        self._width = (end - self._start) or 1.0  # for a range of one value

    def unit(self, numbers: Floats) -> Floats:
        """Return the relative positions of numbers [n] in their range, 0 to 1."""
        placed: Floats = ((np.log(numbers) if self._log else numbers) - self._start) / self._width
        return placed

    def number(self, units: Floats) -> Floats:
        """Return the numbers at relative positions [n] in their range, rounded to the grid."""
        placed = self._start + self._width * units
        numbers = np.exp(placed) if self._log else placed
        if self._step:
            numbers = self._low + self._step * np.round((numbers - self._low) / self._step)
        clipped: Floats = np.clip(numbers, self._low, self._high)
        return clipped


def _n_choices(domain: BaseDistribution) -> int:
    return len(domain.choices) if isinstance(domain, CategoricalDistribution) else 0


def _axis(domain: BaseDistribution) -> _Axis:
    if isinstance(domain, CategoricalDistribution):
        return _Axis(0, len(domain.choices) - 1, 1, log=False)
    assert isinstance(domain, FloatDistribution | IntDistribution)
    return _Axis(domain.low, domain.high, domain.step or 0, domain.log)
