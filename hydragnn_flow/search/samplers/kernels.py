"""Kernels of TPE's densities, with one class for each kind of parameter.

The logarithm of a product kernel is a sum over parameters. Its terms are bilinear in features of
the point and weights of the kernel: the features of a truncated normal are `u^2`, `u` and 1, those
of a category or a coarse step are one-hot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.special import ndtr, ndtri

from hydragnn_flow.search.samplers.boxes import Array, Boxes, Index

Single = NDArray[np.float32]

NARROWEST = 30.0
"""Largest ratio of a parameter's range to the width of a kernel.

Optuna's is 100. On smooth mixed functions with 64 trials in flight 30 finds better points, and
arXiv:2304.11127 finds a least width of 3 % effective.
"""
COARSE = 0.25
"""Fraction of the narrowest kernel above which a bin is integrated rather than sampled."""
LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


class Categories:
    """Kernels that favour the observed category; the last one is the prior.

    Attributes
    ----------
    width
        Significant difference on the axis, for cutting points into boxes.
    weights
        Weight of each feature of a point in each kernel, `[n_kernels, n_features]`.
    highest
        Largest logarithm of any kernel at any point.
    """

    def __init__(self, observed: Array, count: int, distribution: CategoricalDistribution) -> None:
        self._choices = choices = len(distribution.choices)
        self.width = 1.0 / math.sqrt(2 * math.log(count + 2))
        # One column for each category that a kernel may have observed, and one for the prior.
        shares = np.full((choices, choices + 1), 1.0 / (count + 1))
        shares[np.arange(choices), np.arange(choices)] += 1.0
        self._shares = shares / shares.sum(axis=0)
        self._table = np.log(self._shares).astype(np.float32)
        self.highest = float(self._table.max())
        self._kind = np.append(observed.astype(np.intp), choices)
        self.weights = self._table.T[self._kind]

    def arrange(self, order: Index) -> None:
        """Reorder the kernels; the prior stays last."""
        self._kind, self.weights = self._kind[order], self.weights[order]

    def place(self, values: Array) -> Array:
        """Coordinates of values on the axis on which kernels have a width."""
        return values

    def features(self, values: Array) -> tuple[Single, Array]:
        """Features of points `[n_points, n_features]`, and further terms `[n_points]`."""
        hot = np.eye(self._choices, dtype=np.float32)[values.astype(np.intp)]
        return hot, np.zeros(len(values))

    def bound_of_boxes(self, values: Array, points: Boxes, kernels: Boxes) -> Array:
        """Upper bound of kernels of a box at points of a box, logarithms `[points, kernels]`."""
        there = np.eye(self._choices)
        wanted = points.highest(there[values.astype(np.intp)])
        seen = kernels.highest(there[self._kind[:-1]])
        return np.asarray(
            np.where(wanted @ seen.T > 0, self._table.max(), self._table[:, :-1].min())
        )

    def bound(self, values: Array, kernels: Index) -> Single:
        """Upper bound of the logarithm of each kernel at any of the points, `[n_kernels]`."""
        wanted = np.flatnonzero(np.bincount(values.astype(np.intp)))
        return np.asarray(self._table[wanted].max(axis=0)[self._kind[kernels]])

    def draw(self, kernels: Index, quantiles: Array) -> Array:
        """Values at quantiles of the given kernels."""
        heights = np.cumsum(self._shares[:, self._kind[kernels]], axis=0)
        heights[-1] = 1.0
        return np.asarray((heights < quantiles).sum(axis=0), dtype=np.float64)


class Numbers:
    """Truncated normal kernels, integrated over the bins of a parameter with steps.

    Attributes and methods are those of `Categories`.
    """

    def __init__(
        self,
        observed: Array,
        count: int,
        distribution: FloatDistribution | IntDistribution,
        *,
        narrow: bool = False,
    ) -> None:
        self._low, self._high = float(distribution.low), float(distribution.high)
        self._log, self._step = distribution.log, float(distribution.step or 0.0)
        half = 0.5 * self._step
        low, high = self.place(np.array([self._low - half, self._high + half]))
        seen = self.place(np.clip(observed, self._low, self._high))
        self.width = (high - low) / min(NARROWEST, 2.0 + count)
        sigma = np.full(len(seen), self.width) if narrow else self._widths(seen, low, high)
        self._mu = np.append(seen, 0.5 * (low + high))
        self._sigma = np.append(sigma, high - low)
        self._ends = low, high
        self._mass = _log_mass(low, high, self._mu, self._sigma)
        # Float32 resolves a sharp parabola only around the middle of its range.
        self._centre, self._scale = 0.5 * (low + high), 0.5 * (high - low)
        m, s = (self._mu - self._centre) / self._scale, self._sigma / self._scale
        constant = -np.log(self._sigma) - LOG_ROOT_2PI - self._mass - 0.5 * (m / s) ** 2
        weights = [np.stack([-0.5 / s**2, m / s**2, constant], axis=1)]
        # Upper bounds: of a density; of a bin, its width times the density at its near edge, or 1.
        top = -np.log(self._sigma) - LOG_ROOT_2PI
        if self._step:
            weights.append(self._integrate_coarse_bins())
            top = np.minimum(top + self._widest_bin, 0.0)
        top -= self._mass
        self.highest = float(top.max())
        self.weights = np.hstack(weights).astype(np.float32)
        self._shape = np.stack([m, 1 / s, top], axis=1).astype(np.float32)

    def arrange(self, order: Index) -> None:
        self._mu, self._sigma = self._mu[order], self._sigma[order]
        self.weights, self._shape = self.weights[order], self._shape[order]

    def _widths(self, seen: Array, low: float, high: float) -> Array:
        """Distance from each observation to its farther neighbour, within bounds."""
        order = np.argsort(seen)
        gaps = np.diff(seen[order], prepend=low, append=high)
        widths = np.maximum(gaps[:-1], gaps[1:])
        if len(seen) > 1:  # the ends of the range are not neighbours
            widths[0], widths[-1] = gaps[1], gaps[-2]
        sigma = np.empty(len(seen))
        sigma[order] = np.clip(widths, self.width, high - low)
        return sigma

    def _integrate_coarse_bins(self) -> Array:
        """Logarithms of the kernels' masses in coarse bins, `[n_kernels, n_coarse_bins]`."""
        steps = round((self._high - self._low) / self._step)
        values = self._low + self._step * np.arange(steps + 1, dtype=np.float64)
        left, right = self._edges(values)
        self._widest_bin = float(np.log((right - left).max()))
        is_coarse = right - left > COARSE * self.width
        self._row = np.where(is_coarse, np.cumsum(is_coarse) - 1, -1)
        # Many trials share a value, and thus a kernel.
        kinds, kind = np.unique(self._mu + 1j * self._sigma, return_inverse=True)
        mu, sigma = kinds.real[:, None], kinds.imag[:, None]
        inside = _log_mass(left[is_coarse], right[is_coarse], mu, sigma)
        return np.asarray((inside - _log_mass(*self._ends, mu, sigma))[kind])

    def place(self, values: Array) -> Array:
        return np.asarray(np.log(values)) if self._log else values

    def _edges(self, values: Array) -> tuple[Array, Array]:
        return self.place(values - 0.5 * self._step), self.place(values + 0.5 * self._step)

    def _number(self, values: Array) -> Index:
        """Index of the bin of each value."""
        return np.asarray(np.rint((values - self._low) / self._step), dtype=np.intp)

    def features(self, values: Array) -> tuple[Single, Array]:
        u = self._scaled(self.place(values))
        curve = np.stack([u * u, u, np.ones_like(u)], axis=1).astype(np.float32)
        if not self._step:
            return curve, np.zeros(len(values))
        row = self._row[self._number(values)]
        coarse = np.flatnonzero(row >= 0)
        hot = np.zeros((len(values), self.weights.shape[1] - 3), dtype=np.float32)
        hot[coarse, row[coarse]] = 1.0
        curve[coarse] = 0.0
        left, right = self._edges(values)
        return np.hstack([curve, hot]), np.where(row >= 0, 0.0, np.log(right - left))

    def bound_of_boxes(self, values: Array, points: Boxes, kernels: Boxes) -> Array:
        left, right = (self._scaled(edge) for edge in self._edges(values))
        first, last = points.lowest(left)[:, None], points.highest(right)[:, None]
        middle, sharpness, top = self._shape[:-1].T
        lowest, highest = kernels.lowest(middle), kernels.highest(middle)
        away = np.maximum(np.maximum(first - highest, lowest - last), 0.0)
        return np.asarray(kernels.highest(top) - 0.5 * (away * kernels.lowest(sharpness)) ** 2)

    def bound(self, values: Array, kernels: Index) -> Single:
        left, right = (self._scaled(edge) for edge in self._edges(values))
        middle, sharpness, top = self._shape.take(kernels, axis=0).T
        # Single precision throughout, since there are many kernels.
        first, last = np.float32(left.min()), np.float32(right.max())
        away = np.maximum(first - middle, middle - last)
        np.maximum(away, 0, out=away)
        away *= sharpness
        away *= away
        away *= np.float32(-0.5)
        away += top
        return np.asarray(away)

    def _scaled(self, placed: Array) -> Array:
        return np.asarray((placed - self._centre) / self._scale)

    def draw(self, kernels: Index, quantiles: Array) -> Array:
        mu, sigma = self._mu[kernels], self._sigma[kernels]
        a, b = (ndtr((end - mu) / sigma) for end in self._ends)
        line = np.clip(mu + sigma * ndtri(a + quantiles * (b - a)), *self._ends)
        values = np.exp(line) if self._log else line
        if self._step:
            values = self._low + self._number(values) * self._step
        return np.asarray(np.clip(values, self._low, self._high))


Axis = Categories | Numbers


def axes_of(
    observed: Array, count: int, space: Mapping[str, BaseDistribution], *, narrow: bool = False
) -> list[Axis]:
    """Make the kernels of each parameter, with its prior.

    Parameters
    ----------
    observed
        Observed values at the centres of the kernels, `[n_observed, n_parameters]`.
    count
        Number of observations in the density, which decides how narrow the kernels are.
    space
        Distribution of each parameter.
    narrow
        True to give all kernels the least width.
    """
    axes: list[Axis] = []
    for column, distribution in zip(observed.T, space.values(), strict=True):
        if isinstance(distribution, CategoricalDistribution):
            axes.append(Categories(column, count, distribution))
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            axes.append(Numbers(column, count, distribution, narrow=narrow))
    return axes


def _log_mass(low: Array | float, high: Array | float, mu: Array, sigma: Array) -> Array:
    """Logarithm of the mass of normal distributions between two bounds."""
    a, b = (low - mu) / sigma, (high - mu) / sigma
    is_right = a > 0  # the left tail is the accurate one
    mass = np.abs(ndtr(np.where(is_right, -a, b)) - ndtr(np.where(is_right, -b, a)))
    return np.asarray(np.log(np.maximum(mass, 1e-300)))
