"""Gaussian process of the values of trials at their rungs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dpotri, dtrtri
from scipy.optimize import minimize

from hydragnn_flow.search.samplers.encoding import Floats, Integers

_PRIORS = {
    "length": (-4.0, 0.0, 6.0, 1.0),
    "variance": (-3.0, 0.0, 3.0, 0.5),
    "gain": (-6.0, 0.0, 2.0, 1.0),
    "gap": (-9.0, -2.0, 3.0, 1.0),
    "noise": (-13.8, -4.0, 1.0, 1.0),
}
"""Smallest, expected and largest logarithm of each kind of hyper-parameter, and the standard
deviation of its normal prior."""
_SMALLEST_VARIANCE = 1e-10
_MEAN_VARIANCE = 10.0
"""Variance of the mean value at each rung, which is hardly known before any value is."""
_SEED_CORRELATION = 0.6
"""Correlation of the noise of one trial at two rungs. With equal parameters and other seeds it was
0.47 to 0.85 in three tables of recorded trainings."""


class Rows(NamedTuple):
    """Values that trials have reached at rungs, one in each row: the data of a Gaussian process."""

    features: Floats
    """Features of the trial [n, n_features], each in 0..1."""
    values: Floats
    """Standardised values [n]."""
    rungs: Integers
    """Rung of each value [n], counted from 0. The last one is the end of a training."""
    trials: Integers
    """Number of the trial of each value [n], 0 or more."""


class GaussianProcess:
    """Gaussian-process model of the values that trials reach at rungs and at their end.

    The hyper-parameters are the most probable ones. Values at the last rung have a Matérn 5/2
    kernel and noise. The value at an earlier rung is the value at the end times a gain, plus the
    gaps from each rung to the next. Gaps depend on the parameters by a Matérn kernel with other
    lengths (after Kennedy and O'Hagan, Biometrika 87, 1 (2000)). So a rung teaches little if the
    trials that are good there differ from those that are good at the end. The noise of one trial is
    correlated over its rungs. Each rung has a mean of its own.

    The logarithms of the hyper-parameters have normal priors: of a length for each parameter of the
    space, another one for gaps, the variance, the gain and the relative variance of the gap of each
    rung but the last, and the noise of each rung. Lengths that grow with the number of dimensions
    (Hvarfner et al., ICML 2024, arXiv:2402.02229) made the model too sure of choices that were
    hardly tried.

    Parameters
    ----------
    lengths
        Index of the length that scales each feature [n_features]; features of one parameter have
        the same index.
    rungs
        Number of rungs.
    """

    def __init__(self, lengths: Integers, rungs: int = 1) -> None:
        self._lengths = lengths
        self._d, self.rungs = int(lengths.max()) + 1, rungs
        earlier = rungs - 1
        self._at = self._d * (2 if earlier else 1)
        sizes = (self._at, 1, earlier, earlier, rungs)
        priors = np.repeat(np.array([*_PRIORS.values()]), sizes, axis=0)
        self._range, self._expected, self._spread = priors[:, [0, 2]], priors[:, 1], priors[:, 3]
        self._logs = self._expected
        self._mean = _MEAN_VARIANCE if rungs > 1 else 0.0
        self._later = np.maximum.outer(np.arange(rungs), np.arange(rungs))
        self._rows = Rows(
            np.empty((0, len(lengths))), np.empty(0), np.empty(0, np.intp), np.empty(0, np.intp)
        )
        self._root, self._weights = np.empty((0, 0)), np.empty(0)

    def fit(self, rows: Rows) -> None:
        """Fit the hyper-parameters of the process to known values, by largest posterior density."""
        # Started from the last fit as well, since the posterior has several maxima.
        found = [
            minimize(
                self._loss,
                start,
                (rows,),
                jac=True,
                method="L-BFGS-B",
                bounds=self._range.tolist(),
                options={"maxiter": 60},
            )
            for start in (self._logs, self._expected)
        ]
        self._logs = min(found, key=lambda result: float(result.fun)).x

    def condition(self, rows: Rows, pending: Floats) -> None:
        """Condition the process on known values, and on points whose values are not known yet.

        Pending points are assumed to have their expected values at the last rung (the Kriging
        believer of Ginsbourger et al., 2010). That keeps the predicted mean and removes the
        variance there.

        Parameters
        ----------
        rows
            Known values.
        pending
            Features [n_pending, n_features] of points whose values are not known yet.
        """
        n = len(rows.values)
        self._rows = rows
        self._add(pending)
        lower = np.linalg.cholesky(self._covariance(self._logs, self._rows)[0])
        self._root = dtrtri(lower.T)[0].T
        known = self._root[:n, :n]
        self._weights = known.T @ (known @ rows.values)

    def believe(self, point: Floats) -> None:
        """Condition the process on one more pending point [n_features], without a known value."""
        row = self._root @ self._cross(point[None])[:, 0]
        rest = math.sqrt(max(self._variance() + self.noise - float(row @ row), _SMALLEST_VARIANCE))
        self._root = np.block(
            [
                [self._root, np.zeros((len(row), 1))],
                [-(row @ self._root)[None] / rest, np.array([[1 / rest]])],
            ]
        )
        self._add(point[None])

    def predict(self, points: Floats, trials: Integers | None = None) -> tuple[Floats, Floats]:
        """Predict the values of points at the last rung: mean [n] and standard deviation [n].

        Parameters
        ----------
        points
            Features [n, n_features].
        trials
            Number of the known trial at each point, to predict its own value with its noise. By
            default the values are without noise.
        """
        cross, variance = self._cross(points), self._variance()
        if trials is not None:
            noise = self._covariances(self._logs)[1][self._rows.rungs, -1]
            cross = cross + noise[:, None] * (self._rows.trials[:, None] == trials)
            variance += self.noise
        mean: Floats = self._weights @ cross[: len(self._weights)]
        # BLAS multiplies a triangle in half the time; it reads rows as columns.
        known = dtrmm(1.0, self._root.T, cross.T, side=1, overwrite_b=1)
        left = variance - np.einsum("ij,ij->i", known, known)
        return mean, np.sqrt(np.maximum(left, _SMALLEST_VARIANCE))

    @property
    def noise(self) -> float:
        """Variance of the noise of a trial's standardised value at the last rung."""
        return float(np.exp(self._logs[-1]))

    def _variance(self) -> float:
        return float(np.exp(self._logs[self._at])) + self._mean

    def _add(self, pending: Floats) -> None:
        rows, n = self._rows, len(pending)
        self._rows = Rows(
            np.concatenate([rows.features, pending]),
            rows.values,
            np.append(rows.rungs, np.full(n, self.rungs - 1)),
            np.append(rows.trials, -1 - len(rows.trials) - np.arange(n)),
        )

    def _covariances(self, logs: Floats) -> tuple[Floats, Floats]:
        """Return covariances between rungs: of values, and of noise [n_rungs, n_rungs].

        Those of values [n_kernels, n_rungs, n_rungs] are for the kernel of the end, and of gaps.
        """
        n = self.rungs
        variance, gains, gaps, noises = np.split(np.exp(logs[self._at :]), [1, n, 2 * n - 1])
        ahead = np.append(np.cumsum(gaps[::-1])[::-1], 0.0)[self._later]
        gains = np.append(gains, 1.0)
        shared = np.full((n, n), _SEED_CORRELATION)
        np.fill_diagonal(shared, 1.0)
        values = variance * np.stack([np.outer(gains, gains), ahead])
        return values[: self._at // self._d], np.sqrt(np.outer(noises, noises)) * shared

    def _covariance(
        self, logs: Floats, rows: Rows
    ) -> tuple[Floats, list[tuple[Floats, Floats, Floats]]]:
        """Return the covariance of values [n, n], and `_decay` of each kernel."""
        between, noise = self._covariances(logs)
        covariance = (rows.trials[:, None] == rows.trials) * _at(noise, rows.rungs)
        covariance += self._mean * (rows.rungs[:, None] == rows.rungs)
        decays = []
        for kernel, values in enumerate(between):
            decays.append(self._decay(logs, kernel, rows.features, rows.features))
            covariance += decays[-1][2] * _at(values, rows.rungs)
        return covariance, decays

    def _cross(self, points: Floats) -> Floats:
        """Return the covariances [n_known, n] of known values with those at the last rung."""
        kernel = self._decay(self._logs, 0, self._rows.features, points)[2]
        between = self._covariances(self._logs)[0][0][self._rows.rungs, -1][:, None]
        last = (self._rows.rungs == self.rungs - 1)[:, None]
        kernel *= between
        kernel += self._mean * last
        return kernel

    def _decay(
        self, logs: Floats, kernel: int, first: Floats, second: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return exp(-r), r and the kernel at scaled distances r, each [n_first, n_second]."""
        scale = math.sqrt(5) * np.exp(-logs[self._d * kernel + self._lengths])
        squares = _squares(first * scale, second * scale)
        r = np.sqrt(squares)
        decay = np.exp(-r)
        # In place: new arrays of this size would take as long as the arithmetic.
        squares /= 3
        squares += r
        squares += 1
        squares *= decay
        return decay, r, squares

    def _loss(self, logs: Floats, rows: Rows) -> tuple[float, Floats]:
        """Return the negative logarithm of the posterior density and its gradient [n_logs]."""
        n, d, at = self.rungs, self._d, self._at
        covariance, decays = self._covariance(logs, rows)
        lower = np.linalg.cholesky(covariance)
        inverse = dpotri(lower.T)[0]  # only its upper half
        inverse += np.triu(inverse, 1).T
        weights = inverse @ rows.values
        off = (logs - self._expected) / self._spread
        loss = 0.5 * (rows.values @ weights + off @ off) + np.log(np.diag(lower)).sum()
        # Derivative of the likelihood by the covariance. That of the kernel by the square of a
        # scaled distance is -5/6 decay (1 + r).
        slope = 0.5 * (np.outer(weights, weights) - inverse)
        between, noise = self._covariances(logs)
        gradient = off / self._spread
        # Sums over all pairs of values of two rungs [n_rungs, n_rungs].
        of = np.eye(n)[rows.rungs]
        by_value = []
        for kernel, (decay, r, value) in enumerate(decays):
            pull = slope * _at(between[kernel], rows.rungs) * decay * (1 + r) * (5 / 3)
            scaled = rows.features * np.exp(-logs[d * kernel + self._lengths])
            by_feature = 2 * ((scaled**2).T @ pull.sum(1) - (scaled * (pull @ scaled)).sum(0))
            gradient[d * kernel : d * (kernel + 1)] -= np.bincount(self._lengths, by_feature)
            by_value.append(of.T @ (slope * value) @ of)
        gradient[at] -= (np.stack(by_value) * between).sum()
        gradient[at + 1 : at + n] -= 2 * (by_value[0] * between[0]).sum(1)[:-1]
        for rung, gap in enumerate(np.exp(logs[at] + logs[at + n : at + 2 * n - 1])):
            gradient[at + n + rung] -= gap * by_value[1][self._later <= rung].sum()
        same = rows.trials[:, None] == rows.trials
        gradient[at + 2 * n - 1 :] -= (of.T @ (slope * same) @ of * noise).sum(1)
        return float(loss), gradient


def _at(between: Floats, rungs: Integers) -> Floats:
    """Return the elements [n, n] of ``between`` [n_rungs, n_rungs] for all pairs of values [n]."""
    return between.take(rungs, 0).take(rungs, 1)


def _squares(first: Floats, second: Floats) -> Floats:
    """Return the squared distances [n_first, n_second] between all pairs of points."""
    squares: Floats = (-2 * first) @ second.T
    squares += (first**2).sum(1)[:, None]
    squares += (second**2).sum(1)
    return np.maximum(squares, 0.0, out=squares)
