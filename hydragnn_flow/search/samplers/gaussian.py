"""Gaussian process with a length scale for each parameter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize

from hydragnn_flow.search.samplers.encoding import Floats

# Smallest, expected and largest logarithm of a length, of the variance of the standardised values,
# and of the variance of their noise.
_LENGTH = (-4.0, 0.0, 6.0)
_VARIANCE = (-3.0, 0.0, 3.0)
_NOISE = (-13.8, -4.0, 1.0)
_SMALLEST_VARIANCE = 1e-10


class GaussianProcess:
    """Gaussian process with a Matérn 5/2 kernel and the most probable hyper-parameters.

    The prior of a length is lognormal(0, 1), that of the variance lognormal(0, 0.5), that of the
    noise lognormal(-4, 1). Lengths that grow with the number of dimensions (Hvarfner et al., ICML
    2024, arXiv:2402.02229) made it too sure of choices that were hardly tried.

    Parameters
    ----------
    lengths
        Index of the length of each feature [n_features]; features of one parameter share one.
    """

    def __init__(self, lengths: NDArray[np.intp]) -> None:
        self._lengths = lengths
        d = int(lengths.max()) + 1
        self._range = np.array([*[_LENGTH] * d, _VARIANCE, _NOISE])
        self._expected = self._range[:, 1]
        self._spread = np.array([*[1.0] * d, 0.5, 1.0])
        self._logs = self._expected
        self._points = np.empty((0, len(lengths)))
        self._root = np.empty((0, 0))
        self._weights = np.empty(0)

    def fit(self, points: Floats, values: Floats) -> None:
        """Fit the hyper-parameters.

        Parameters
        ----------
        points
            Features [n, n_features], each in 0..1.
        values
            Standardised values to fit, [n].
        """
        # Started from the last fit as well, since the posterior has several maxima.
        found = [
            minimize(
                self._loss,
                start,
                (points, values),
                jac=True,
                method="L-BFGS-B",
                bounds=self._range[:, [0, 2]].tolist(),
                options={"maxiter": 60},
            )
            for start in (self._logs, self._expected)
        ]
        self._logs = min(found, key=lambda result: float(result.fun)).x

    def condition(self, points: Floats, values: Floats, pending: Floats) -> None:
        """Condition the process on values, and on points whose values are not known yet.

        The latter are assumed to have their expected values (the Kriging believer of Ginsbourger et
        al., 2010), which keeps the mean and removes the variance around them.

        Parameters
        ----------
        points, values
            Features [n, n_features], and standardised values [n].
        pending
            Features of points without a value [n_pending, n_features].
        """
        self._points = np.concatenate([points, pending])
        covariance = self._kernel(self._points, self._points)
        covariance[np.diag_indices_from(covariance)] += np.exp(self._logs[-1])
        lower = np.linalg.cholesky(covariance)
        self._root = solve_triangular(lower, np.eye(len(lower)), lower=True)
        known = self._root[: len(values), : len(values)]
        self._weights = known.T @ (known @ values)

    def believe(self, point: Floats) -> None:
        """Add one more point [n_features] whose value is not known yet."""
        variance, noise = np.exp(self._logs[-2:])
        row = self._root @ self._kernel(self._points, point[None])[:, 0]
        rest = np.sqrt(max(variance + noise - row @ row, _SMALLEST_VARIANCE))
        self._root = np.block(
            [
                [self._root, np.zeros((len(row), 1))],
                [-(row @ self._root)[None] / rest, np.array([[1 / rest]])],
            ]
        )
        self._points = np.concatenate([self._points, point[None]])

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, without noise, [n] each, at points [n, n_features]."""
        kernel = self._kernel(self._points, points)
        mean: Floats = self._weights @ kernel[: len(self._weights)]
        known = self._root @ kernel
        variance = np.exp(self._logs[-2]) - np.einsum("ij,ij->j", known, known)
        return mean, np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))

    def _kernel(self, first: Floats, second: Floats) -> Floats:
        scale = np.exp(-self._logs[self._lengths])
        r = np.sqrt(5 * _squares(first * scale, second * scale))
        kernel: Floats = np.exp(self._logs[-2] - r) * (1 + r + r * r / 3)
        return kernel

    def _loss(self, logs: Floats, points: Floats, values: Floats) -> tuple[float, Floats]:
        """Negative logarithm of the posterior density, and its gradient."""
        scaled = points * np.exp(-logs[self._lengths])
        noise = np.exp(logs[-1])
        r = np.sqrt(5 * _squares(scaled, scaled))
        decay = np.exp(logs[-2] - r)
        kernel = decay * (1 + r + r * r / 3)
        covariance = kernel + noise * np.eye(len(values))
        lower = np.linalg.cholesky(covariance)
        inverse = cho_solve((lower, True), np.eye(len(values)))
        weights = inverse @ values
        off = (logs - self._expected) / self._spread
        loss = 0.5 * (values @ weights + off @ off) + np.log(np.diag(lower)).sum()
        # Derivative of the likelihood by the covariance. That of the kernel by the square of a
        # scaled distance is -5/6 decay (1 + r).
        slope = 0.5 * (np.outer(weights, weights) - inverse)
        pull = slope * decay * (1 + r) * (5 / 3)
        by_feature = 2 * ((scaled**2).T @ pull.sum(1) - (scaled * (pull @ scaled)).sum(0))
        gradient = off / self._spread
        gradient[:-2] -= np.bincount(self._lengths, by_feature)
        gradient[-2] -= (slope * kernel).sum()
        gradient[-1] -= noise * np.trace(slope)
        return float(loss), gradient


def _squares(first: Floats, second: Floats) -> Floats:
    """Squared distances [n_first, n_second] between points."""
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * (first @ second.T)
    distances: Floats = np.maximum(squares, 0.0)
    return distances
