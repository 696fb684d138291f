"""Parzen estimator of TPE whose density at thousands of points is matrix products.

The density is that of Optuna's multivariate TPE, but for the least width of a kernel: a mixture of
one product kernel per observation and a broad prior (Falkner et al., ICML 2018, arXiv:1807.01774;
Watanabe, arXiv:2304.11127). The logarithm of a product kernel is a sum over parameters of terms
that are bilinear in features of the point and in features of the kernel: a truncated normal gives
`u^2`, `u` and 1, a category or a coarse step gives a one-hot. So the terms of many points and
kernels are one product in float32.

Kernels of a long history are narrow, and most of them are nowhere near a given point. Points are
therefore taken in small boxes, and kernels are left out that even at the nearest corner of the box
add nothing to speak of to the prior alone: first boxes of kernels, then single ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Index = NDArray[np.intp]

NARROWEST = 30.0
"""Kernels are no narrower than the range divided by this.

Optuna divides by 100. On smooth mixed functions with 64 trials in flight 30 finds better points,
and arXiv:2304.11127 finds a least width of 3 % effective.
"""
FLAT = 25
"""The newest observations, which all weigh 1."""
COARSE = 0.25
"""A bin wider than this share of the narrowest kernel is integrated, else taken at its centre."""
POINTS, KERNELS = 256, 64
"""Points evaluated together, and kernels looked at together: as many or fewer."""
NEGLIGIBLE = 7.0
"""Kernels that all together stay further below the prior than this, in ln, are left out: 1e-3."""
LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)


def ramp(count: int) -> Array:
    """Weights of observations from the oldest to the newest, as Optuna's `default_weights`."""
    if count < FLAT:
        return np.ones(count)
    return np.concatenate([np.linspace(1.0 / count, 1.0, count - FLAT), np.ones(FLAT)])


class Axis(Protocol):
    """Kernels of one parameter; the last one is the prior."""

    width: float
    """A difference on the axis that matters, for cutting points into boxes."""

    n_rows: int
    """Features of a point on this axis."""
    highest: float
    """No kernel has a larger logarithm anywhere."""

    def place(self, values: Array) -> Array:
        """Where values lie on the axis on which kernels have a width."""
        ...

    def features(self, values: Array) -> tuple[Single, Array]:
        """Features of points, `[n_points, n_rows]`, and what the rows leave out, `[n_points]`."""
        ...

    def rows(self, rows: Index, kernels: Index) -> Single:
        """Weights that some of the features have for some kernels, `[n_rows, n_kernels]`."""
        ...

    def bound(self, values: Array, points: Boxes, kernels: Boxes | Each) -> Array:
        """Largest logarithm of any kernel of a box at any point of a box, `[points, kernels]`."""
        ...


class Categories:
    """Kernels that favour the category they saw."""

    def __init__(self, observed: Array, count: int, distribution: CategoricalDistribution) -> None:
        self.n_rows = choices = len(distribution.choices)
        self.width = 1.0 / math.sqrt(2 * math.log(count + 2))
        # One column for each category that a kernel may have seen, one for the prior.
        shares = np.full((choices, choices + 1), 1.0 / (count + 1))
        shares[np.arange(choices), np.arange(choices)] += 1.0
        self._shares = shares / shares.sum(axis=0)
        self._table = np.log(self._shares).astype(np.float32)
        self.highest = float(self._table.max())
        self._kind = np.append(observed.astype(np.intp), choices)
        self._seen = np.eye(choices + 1)[self._kind]

    def place(self, values: Array) -> Array:
        return values

    def features(self, values: Array) -> tuple[Single, Array]:
        hot = np.eye(self.n_rows, dtype=np.float32)[values.astype(np.intp)]
        return hot, np.zeros(len(values))

    def rows(self, rows: Index, kernels: Index) -> Single:
        return np.asarray(self._table[rows][:, self._kind[kernels]])

    def bound(self, values: Array, points: Boxes, kernels: Boxes | Each) -> Array:
        wanted = points.highest(np.eye(self.n_rows + 1)[values.astype(np.intp)])
        seen = kernels.highest(self._seen)
        is_seen = wanted @ seen.T > 0
        return np.asarray(np.where(is_seen, self._table.max(), self._table[:, :-1].min()))

    def draw(self, kernels: Index, quantiles: Array) -> Array:
        """Values at quantiles of the given kernels."""
        heights = np.cumsum(self._shares[:, self._kind[kernels]], axis=0)
        heights[-1] = 1.0
        return np.asarray((heights < quantiles).sum(axis=0), dtype=np.float64)


class Numbers:
    """Truncated normal kernels, integrated over the bins of a parameter that has steps."""

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
        self._parabola = np.stack([-0.5 / s**2, m / s**2, constant]).astype(np.float32)
        self.n_rows = 3
        # Of a density, and of a bin: its width times the density at its near edge, or all there is.
        self._top = -np.log(self._sigma) - LOG_ROOT_2PI
        if self._step:
            self._integrate_coarse_bins()
            self.n_rows += len(self._table)
            self._top = np.minimum(self._top + self._widest_bin, 0.0)
        self._top -= self._mass
        self.highest = float(self._top.max())

    def _widths(self, seen: Array, low: float, high: float) -> Array:
        """Distance to the further neighbour, within bounds."""
        order = np.argsort(seen)
        gaps = np.diff(seen[order], prepend=low, append=high)
        widths = np.maximum(gaps[:-1], gaps[1:])
        if len(seen) > 1:  # the ends of the range are no neighbours
            widths[0], widths[-1] = gaps[1], gaps[-2]
        sigma = np.empty(len(seen))
        sigma[order] = np.clip(widths, self.width, high - low)
        return sigma

    def _integrate_coarse_bins(self) -> None:
        steps = round((self._high - self._low) / self._step)
        values = self._low + self._step * np.arange(steps + 1, dtype=np.float64)
        left, right = self._edges(values)
        self._widest_bin = float(np.log((right - left).max()))
        is_coarse = right - left > COARSE * self.width
        self._row = np.where(is_coarse, np.cumsum(is_coarse) - 1, -1)
        # Many trials share a value, and so a kernel.
        kinds, self._kind = np.unique(self._mu + 1j * self._sigma, return_inverse=True)
        mu, sigma = kinds.real, kinds.imag
        inside = _log_mass(left[is_coarse, None], right[is_coarse, None], mu, sigma)
        self._table = (inside - _log_mass(*self._ends, mu, sigma)).astype(np.float32)

    def place(self, values: Array) -> Array:
        return np.asarray(np.log(values)) if self._log else values

    def _edges(self, values: Array) -> tuple[Array, Array]:
        return self.place(values - 0.5 * self._step), self.place(values + 0.5 * self._step)

    def _number(self, values: Array) -> Index:
        """Number of the bin of each value."""
        return np.asarray(np.rint((values - self._low) / self._step), dtype=np.intp)

    def features(self, values: Array) -> tuple[Single, Array]:
        u = (self.place(values) - self._centre) / self._scale
        curve = np.stack([u * u, u, np.ones_like(u)], axis=1).astype(np.float32)
        if not self._step:
            return curve, np.zeros(len(values))
        row = self._row[self._number(values)]
        coarse = np.flatnonzero(row >= 0)
        hot = np.zeros((len(values), len(self._table)), dtype=np.float32)
        hot[coarse, row[coarse]] = 1.0
        curve[coarse] = 0.0
        left, right = self._edges(values)
        return np.hstack([curve, hot]), np.where(row >= 0, 0.0, np.log(right - left))

    def rows(self, rows: Index, kernels: Index) -> Single:
        if len(rows) and rows[-1] < 3:
            return np.asarray(self._parabola[np.ix_(rows, kernels)])
        coarse = self._table[rows[rows >= 3] - 3][:, self._kind[kernels]]
        return np.vstack([self._parabola[np.ix_(rows[rows < 3], kernels)], coarse])

    def bound(self, values: Array, points: Boxes, kernels: Boxes | Each) -> Array:
        left, right = self._edges(values)
        first, last = points.lowest(left)[:, None], points.highest(right)[:, None]
        lowest, highest = kernels.lowest(self._mu), kernels.highest(self._mu)
        widest = kernels.highest(self._sigma)
        away = np.maximum(np.maximum(first - highest, lowest - last), 0.0) / widest
        return np.asarray(kernels.highest(self._top) - 0.5 * away * away)

    def draw(self, kernels: Index, quantiles: Array) -> Array:
        """Values at quantiles of the given kernels."""
        mu, sigma = self._mu[kernels], self._sigma[kernels]
        a, b = (ndtr((end - mu) / sigma) for end in self._ends)
        line = np.clip(mu + sigma * ndtri(a + quantiles * (b - a)), *self._ends)
        values = np.exp(line) if self._log else line
        if self._step:
            values = self._low + self._number(values) * self._step
        return np.asarray(np.clip(values, self._low, self._high))


class Parzen:
    """Mixture of product kernels around observations, and a prior.

    Parameters
    ----------
    observations
        `[n_observations, n_parameters]` in Optuna's internal representation, the oldest first, in
        the order of the space.
    space
        Distribution of each parameter.
    weights
        `[n_observations]`; :func:`ramp` unless given. The prior weighs 1.
    """

    def __init__(
        self,
        observations: Array,
        space: Mapping[str, BaseDistribution],
        weights: Array | None = None,
    ) -> None:
        count = len(observations)
        self._weights = np.append(ramp(count) if weights is None else weights, 1.0)
        self._weights /= self._weights.sum()
        self._log_weights = np.log(self._weights).astype(np.float32)
        self._observations = observations
        self._axes = _axes(observations, count, space)

    def sample(self, rng: np.random.RandomState, size: int) -> Array:
        """Draw `[size, n_parameters]`, with the random numbers that Optuna would use."""
        kernels = rng.choice(len(self._weights), p=self._weights, size=size)
        drawn = np.empty((size, len(self._axes)))
        numbers = []
        for j, axis in enumerate(self._axes):
            if isinstance(axis, Categories):
                drawn[:, j] = axis.draw(kernels, rng.rand(size))
            else:
                numbers.append(j)
        quantiles = rng.uniform(size=(len(numbers), size))
        for j, row in zip(numbers, quantiles, strict=True):
            drawn[:, j] = self._axes[j].draw(kernels, row)
        return drawn

    def log_pdf(self, points: Array) -> Array:
        """Logarithm of the density at points `[n_points, n_parameters]`."""
        features, added = _features(self._axes, points)
        prior = len(self._weights) - 1
        if prior < 2 * KERNELS:  # too few kernels to be worth a search
            return added + self._evaluate(features, np.arange(prior + 1))
        alone = self._evaluate(features, np.array([prior]))
        point_boxes = _cut(self._place(points), POINTS)
        kernel_boxes = _cut(self._place(self._observations), KERNELS)
        over = kernel_boxes.highest(self._log_weights) + sum(
            axis.bound(points[:, j], point_boxes, kernel_boxes) for j, axis in enumerate(self._axes)
        )
        floor = point_boxes.lowest(alone + added) - NEGLIGIBLE - math.log(prior)
        near = over > floor[:, None]
        found = np.empty(len(points))
        for box, is_near, least in zip(point_boxes.groups, near, floor, strict=True):
            kernels = kernel_boxes.order[np.repeat(is_near, kernel_boxes.sizes)]
            kernels = self._noticed(points[box], kernels, least)
            found[box] = self._evaluate(features[box], np.append(kernels, prior))
        return found + added

    def _place(self, points: Array) -> Array:
        placed = [axis.place(points[:, j]) / axis.width for j, axis in enumerate(self._axes)]
        return np.stack(placed, axis=1)

    def _noticed(self, points: Array, kernels: Index, least: float) -> Index:
        """Kernels that may come up to that at any of the points."""
        box = Boxes([np.arange(len(points))])
        # What the other parameters can add at most, to drop kernels early.
        to_come = sum(axis.highest for axis in self._axes)
        reached = self._log_weights[kernels].astype(np.float64)
        for j, axis in enumerate(self._axes):
            to_come -= axis.highest
            reached = reached + axis.bound(points[:, j], box, Each(kernels))[0]
            stays = reached > least - to_come
            kernels, reached = kernels[stays], reached[stays]
        return kernels

    def _evaluate(self, features: Single, kernels: Index) -> Single:
        used = np.flatnonzero(features.any(axis=0))
        terms = features[:, used] @ _rows(self._axes, used, kernels)
        terms += self._log_weights[kernels]
        highest = terms.max(axis=1)
        terms -= highest[:, None]
        np.exp(terms, out=terms)
        return np.asarray(highest + np.log(terms.sum(axis=1)))


class Lies:
    """What a point adds to the density of the others once it is a trial that runs.

    Parameters
    ----------
    points
        `[n_points, n_parameters]`, candidates of one batch.
    space
        Distribution of each parameter.
    count
        Observations in the density, which decide how narrow a kernel is.
    """

    def __init__(self, points: Array, space: Mapping[str, BaseDistribution], count: int) -> None:
        axes = _axes(points, count, space, narrow=True)
        features, self._added = _features(axes, points)
        used = np.flatnonzero(features.any(axis=0))
        self._features = features[:, used]
        self._weights = _rows(axes, used, np.arange(len(points)))
        self._log_weight = -math.log(ramp(count).sum() + 1.0)

    def log_pdf(self, first: int, lie: int) -> Array:
        """Of one point's kernel, at the points from the first on, `[n_points - first]`."""
        terms = self._features[first:] @ self._weights[:, lie]
        return np.asarray(terms + self._added[first:] + self._log_weight, dtype=np.float64)


class Boxes:
    """Indices in groups, with the smallest and the largest of what a group has."""

    def __init__(self, groups: list[Index]) -> None:
        self.groups = groups
        self.order = np.concatenate(groups)
        self.sizes = np.array([len(group) for group in groups])
        self._starts = np.cumsum(self.sizes) - self.sizes

    def lowest(self, values: Array) -> Array:
        return np.asarray(np.minimum.reduceat(values[self.order], self._starts))

    def highest(self, values: Array) -> Array:
        return np.asarray(np.maximum.reduceat(values[self.order], self._starts))


class Each:
    """Indices, each a group of its own."""

    def __init__(self, order: Index) -> None:
        self._order = order

    def lowest(self, values: Array) -> Array:
        return values.take(self._order, axis=0)

    highest = lowest


def _cut(placed: Array, size: int) -> Boxes:
    """Boxes of at most so many points, or narrower than a kernel, in whose widths points are."""
    whole, waiting = [], [np.arange(len(placed))]
    while waiting:
        box = waiting.pop()
        if len(box) > size:
            inside = placed[box]
            low, high = inside.min(axis=0), inside.max(axis=0)
            widest = int(np.argmax(high - low))
            if high[widest] - low[widest] > 1.0:
                is_low = inside[:, widest] < 0.5 * (low[widest] + high[widest])
                waiting += [box[is_low], box[~is_low]]
                continue
        whole.append(box)
    return Boxes(whole)


def _axes(
    observed: Array, count: int, space: Mapping[str, BaseDistribution], *, narrow: bool = False
) -> list[Categories | Numbers]:
    axes: list[Categories | Numbers] = []
    for column, distribution in zip(observed.T, space.values(), strict=True):
        if isinstance(distribution, CategoricalDistribution):
            axes.append(Categories(column, count, distribution))
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            axes.append(Numbers(column, count, distribution, narrow=narrow))
    return axes


def _features(axes: Sequence[Axis], points: Array) -> tuple[Single, Array]:
    parts = [axis.features(points[:, j]) for j, axis in enumerate(axes)]
    return np.hstack([part[0] for part in parts]), np.sum([part[1] for part in parts], axis=0)


def _rows(axes: Sequence[Axis], used: Index, kernels: Index) -> Single:
    """Weights of the features that are used, counted through all axes."""
    ends = np.cumsum([axis.n_rows for axis in axes])
    parts = np.split(used, np.searchsorted(used, ends[:-1]))
    starts = [0, *ends[:-1]]
    return np.vstack(
        [
            axis.rows(part - start, kernels)
            for axis, part, start in zip(axes, parts, starts, strict=True)
            if len(part)
        ]
    )


def _log_mass(low: Array | float, high: Array | float, mu: Array, sigma: Array) -> Array:
    """Logarithm of what normal distributions hold between two bounds."""
    a, b = (low - mu) / sigma, (high - mu) / sigma
    is_right = a > 0  # the left tail is the accurate one
    mass = np.abs(ndtr(np.where(is_right, -a, b)) - ndtr(np.where(is_right, -b, a)))
    return np.asarray(np.log(np.maximum(mass, 1e-300)))
