"""Parzen estimator of TPE, evaluated at thousands of points by matrix products.

Except for the least kernel width, the density is that of Optuna's multivariate TPE: a mixture of
one product kernel per observation and a broad prior (Falkner et al., ICML 2018, arXiv:1807.01774;
Watanabe, arXiv:2304.11127). The terms of many points and kernels are one product in float32.

Kernels of a long history are narrow, and most are far from a given point. So points are grouped in
small boxes, and kernels are skipped that even at the nearest corner of the box are negligible
against the prior alone: first boxes of kernels, then single ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from optuna.distributions import BaseDistribution

from hydragnn_flow.search.samplers.boxes import Array, Boxes, Index, cut
from hydragnn_flow.search.samplers.kernels import Axis, Categories, Single, axes_of

FLAT = 25
"""Number of newest observations, which all have weight 1."""
POINTS, KERNELS = 256, 128
"""Largest numbers of points evaluated together, and of kernels tested together."""
NEGLIGIBLE = 4.0
"""Distance below the prior, in ln, at which the sum of skipped kernels is negligible (2 %)."""
_LARGEST = 80.0
"""Largest exponent, in ln; float32 ends at 88."""


def ramp(count: int) -> Array:
    """Weights of observations from the oldest to the newest, as in Optuna's `default_weights`."""
    if count < FLAT:
        return np.ones(count)
    return np.concatenate([np.linspace(1.0 / count, 1.0, count - FLAT), np.ones(FLAT)])


class Parzen:
    """Mixture of product kernels around observations, and a prior.

    Parameters
    ----------
    observations
        Values `[n_observations, n_parameters]` in Optuna's internal representation, the oldest
        first, in the order of the space.
    space
        Distribution of each parameter.
    weights
        Weights `[n_observations]`; by default those of :func:`ramp`. The prior has weight 1.
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
        self._axes = axes_of(observations, count, space)
        self._boxes: Boxes | None = None
        if count >= 2 * KERNELS:  # with fewer, boxes cost more than they save
            boxes = cut(_placed(observations, self._axes), KERNELS)
            # Kernels of a box must be contiguous.
            order = np.append(boxes.order, count)
            self._weights = self._weights[order]
            for axis in self._axes:
                axis.arrange(order)
            self._boxes = boxes.in_order()
        logs = np.log(self._weights).astype(np.float32)
        self._log_weights = logs[:-1]
        self._terms = np.hstack([axis.weights for axis in self._axes] + [logs[:, None]])
        self._highest = sum(axis.highest for axis in self._axes)

    def sample(self, rng: np.random.RandomState, size: int) -> Array:
        """Draw `[size, n_parameters]` with the same random numbers as Optuna."""
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
        features = np.hstack([features, np.ones((len(points), 1), dtype=np.float32)])
        prior = len(self._weights) - 1
        alone = features @ self._terms[prior]
        # Sums are in units of the prior, or of what keeps them finite in many dimensions.
        shift = np.maximum(alone, self._highest - _LARGEST)
        if self._boxes is None:
            return np.asarray(self._sum(features, shift, self._terms) + added)
        point_boxes = cut(_placed(points, self._axes), POINTS)
        over = self._boxes.highest(self._log_weights) + sum(
            axis.bound_of_boxes(points[:, j], point_boxes, self._boxes)
            for j, axis in enumerate(self._axes)
        )
        floor = point_boxes.lowest(alone + added) - NEGLIGIBLE - math.log(prior)
        near = over > floor[:, None]
        found = np.empty(len(points))
        for box, is_near, least in zip(point_boxes.groups, near, floor, strict=True):
            kernels = np.flatnonzero(np.repeat(is_near, self._boxes.sizes))
            kernels = np.append(self._near(points[box], kernels, least), prior)
            found[box] = self._sum(features[box], shift[box], self._terms.take(kernels, axis=0))
        return np.asarray(found + added)

    def _near(self, points: Array, kernels: Index, least: float) -> Index:
        """Filter kernels whose logarithm may exceed ``least`` at any of the points."""
        # Upper bound of the terms of the remaining parameters, to drop kernels early.
        to_come = self._highest
        reached = self._log_weights[kernels]
        for j, axis in enumerate(self._axes):
            to_come -= axis.highest
            reached = reached + axis.bound(points[:, j], kernels)
            stays = reached > least - to_come
            kernels, reached = kernels[stays], reached[stays]
        return kernels

    def _sum(self, features: Single, shift: Array, terms: Single) -> Array:
        """Logarithms of the sums of kernels, `[n_points]`."""
        logs = features @ terms.T
        logs -= shift[:, None].astype(np.float32)
        np.exp(logs, out=logs)
        return np.asarray(shift + np.log(logs.sum(axis=1)))


class LiarKernels:
    """Kernels that suggested points add to the density as running trials (constant liar).

    Parameters
    ----------
    points
        Candidates of one batch `[n_points, n_parameters]`.
    space
        Distribution of each parameter.
    count
        Number of observations in the density, which decides how narrow a kernel is.
    """

    def __init__(self, points: Array, space: Mapping[str, BaseDistribution], count: int) -> None:
        axes = axes_of(points, count, space, narrow=True)
        self._features, self._added = _features(axes, points)
        self._terms = np.hstack([axis.weights for axis in axes])
        self._log_weight = -math.log(ramp(count).sum() + 1.0)

    def log_pdf(self, first: int, point: int) -> Array:
        """Logarithm of one point's kernel at the points from ``first`` on, `[n_points - first]`."""
        terms = self._features[first:] @ self._terms[point]
        return np.asarray(terms + self._added[first:] + self._log_weight, dtype=np.float64)


def _placed(points: Array, axes: Sequence[Axis]) -> Array:
    placed = [axis.place(points[:, j]) / axis.width for j, axis in enumerate(axes)]
    return np.stack(placed, axis=1)


def _features(axes: Sequence[Axis], points: Array) -> tuple[Single, Array]:
    parts = [axis.features(points[:, j]) for j, axis in enumerate(axes)]
    return np.hstack([part[0] for part in parts]), np.sum([part[1] for part in parts], axis=0)
