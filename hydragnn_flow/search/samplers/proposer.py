"""Proposals of a Gaussian process: trials with the largest expected improvement.

`python -m hydragnn_flow.search.samplers.proposer DRIVER_PID` proposes in a separate process, which
ends when the driver does. Requests and answers are single lines of JSON through pipes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.optimize import minimize
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import norm, qmc, yeojohnson

from hydragnn_flow.config import Parameter
from hydragnn_flow.processes import end_with_parent, keep_stdout
from hydragnn_flow.search.samplers.encoding import (
    Bools,
    Branch,
    Finished,
    Floats,
    Running,
    Space,
    UnitCube,
    Values,
)

# Smallest, expected and largest logarithm of a length, of the variance of the standardised values,
# and of the variance of their noise.
_LENGTH = (-4.0, 0.0, 6.0)
_VARIANCE = (-3.0, 0.0, 3.0)
_NOISE = (-13.8, -4.0, 1.0)
_SMALLEST_VARIANCE = 1e-10


class GaussianProcess:
    """Gaussian process with a Matérn 5/2 kernel and the most probable hyper-parameters.

    The hyper-parameters are a length for each parameter of the space, with the prior
    lognormal(0, 1), the variance, lognormal(0, 0.5), and the noise, lognormal(-4, 1). Lengths that
    grow with the number of dimensions (Hvarfner et al., ICML 2024, arXiv:2402.02229) made the model
    too sure of choices that were hardly tried.

    Parameters
    ----------
    lengths
        Index of the length that scales each feature [n_features]; features of one parameter have
        the same index.
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
        """Fit the hyper-parameters to known values, by maximising their posterior density.

        Parameters
        ----------
        points
            Features [n, n_features], each in 0..1.
        values
            Known standardised values at these points [n].
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
        """Condition the process on known values, and on points whose values are not known yet.

        Pending points are assumed to have their expected values (the Kriging believer of
        Ginsbourger et al., 2010). That keeps the predicted mean and removes the variance there.

        Parameters
        ----------
        points, values
            Features [n, n_features], and their known standardised values [n].
        pending
            Features [n_pending, n_features] of points whose values are not known yet.
        """
        self._points = np.concatenate([points, pending])
        covariance = self._kernel(self._points, self._points)
        covariance[np.diag_indices_from(covariance)] += np.exp(self._logs[-1])
        lower = np.linalg.cholesky(covariance)
        self._root = solve_triangular(lower, np.eye(len(lower)), lower=True)
        known = self._root[: len(values), : len(values)]
        self._weights = known.T @ (known @ values)

    def believe(self, point: Floats) -> None:
        """Add one more pending point [n_features], whose value is not known yet."""
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
        """Return mean [n] and standard deviation [n], without noise, at points [n, n_features]."""
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
        """Return the negative logarithm of the posterior density and its gradient [n_logs].

        ``logs`` are the logarithms of the lengths, the variance and the noise.
        """
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
    """Return the squared distances [n_first, n_second] between all pairs of points."""
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1) - 2 * (first @ second.T)
    distances: Floats = np.maximum(squares, 0.0)
    return distances


_BEST = 10
"""Number of best trials that are perturbed to find points to start from."""
_CHILDREN = 32
"""Number of perturbations of a point in each round of the search for the best point."""
_STEPS = np.geomspace(0.1, 0.003, 8)
"""Standard deviation of the perturbations in each round of that search, in units of a range."""
MOST_FITTED, MOST_KNOWN = 250, 1000
"""Largest number of trials for the fit of the hyper-parameters, and for predictions."""


_DRAWN = norm.ppf(qmc.Sobol(3, seed=0).random(64))
"""Standard normal points [n, 3] by which uncertain losses are joined."""


class Proposer:
    """Gaussian-process model of the search that proposes trials from finished and running ones.

    A proposal has the largest expected improvement over the smallest expected loss of a known
    trial, so a branch of the space (one choice of a parameter) with nothing left to gain is
    abandoned. Running trials count with their expected loss (the Kriging believer of Ginsbourger et
    al., 2010).

    Each objective has a process of its own. For every proposal they get other weights, and the loss
    is the largest weighted one plus a twentieth of their sum, so proposals spread along the Pareto
    front (ParEGO: Knowles, IEEE Trans. Evol. Comput. 10, 50 (2006)). The mean and the standard
    deviation of that loss come from draws of all objectives (Daulton et al., NeurIPS 2020,
    arXiv:2006.05078). Each limit has a process, too, and the improvement counts with the
    probability that the limits hold (Gardner et al., ICML 2014).

    The model contains every parameter, whether or not it exists in a trial: an absent parameter has
    the same distance from all its values. So trials of other branches tell equally little of every
    point in a branch that has hardly been tried.

    Parameters
    ----------
    space
        Domain of each parameter by dotted path. A parameter comes after those that its condition
        names.
    objectives
        Number of objectives, at most three.
    """

    def __init__(self, space: Space, objectives: int = 1) -> None:
        self._cube = UnitCube(space)
        self._branches = self._cube.branches()
        self._objectives = objectives
        self._processes: list[GaussianProcess] = []
        self._weights, self._ideal = np.ones(objectives), np.zeros(objectives)
        self._limits = np.empty(0)
        self._fitted = self._proposed = 0
        self.fits = 0
        """Number of times that the hyper-parameters were fitted."""

    def propose(self, finished: Finished, running: Running, count: int, seed: int) -> list[Values]:
        """Return the parameters of the next trials; each proposal counts as running for later ones.

        Parameters
        ----------
        finished
            Parameters and numbers of each ended trial, at least one.
        running
            Parameters of each trial whose loss is not known yet.
        count
            Number of trials to propose.
        seed
            Seed of the points at which the search for proposals starts.
        """
        random = np.random.default_rng(seed)
        points = self._cube.encode([values for values, _ in finished])
        pending = self._cube.encode(running)
        numbers = np.array([numbers for _, numbers in finished])
        losses = self._learn(points, numbers, self._cube.features(pending))
        taken = np.concatenate([points, pending])
        for _ in range(count):
            branch = self._branch()
            chosen = self._start(taken, branch, random)
            if chosen is None:
                if self._objectives > 1:
                    self._weights = random.dirichlet(np.ones(self._objectives))
                ordered = points[np.argsort(self._joined(losses))]
                chosen = self._choose(ordered, taken, branch, random)
            for process in self._processes:
                process.believe(self._cube.features(chosen[None])[0])
            taken = np.concatenate([taken, chosen[None]])
        return [self._cube.decode(point) for point in taken[len(taken) - count :]]

    def _learn(self, points: Floats, numbers: Floats, pending: Floats) -> Floats:
        """Condition all processes on the numbers [n, n_numbers] of ended trials, and on pending.

        Returns the standardised losses [n, n_objectives] of these trials. Those that are not known
        are as expected, and those of trials beyond a limit infinite.
        """
        n, features = self._objectives, self._cube.features(points)
        # Hyper-parameters are fitted again when there are a twentieth more results.
        fits = not self._fitted or len(points) >= max(self._fitted + 2, 1.05 * self._fitted)
        if fits:
            self._fitted, self.fits = len(points), self.fits + 1
        losses, limits = np.empty((len(points), n)), []
        for i, values in enumerate(numbers.T):
            if i == len(self._processes):
                self._processes.append(GaussianProcess(self._cube.parameters))
            process, known = self._processes[i], np.isfinite(values)
            # A zero at the end shows where the limit of an excess is.
            scaled = _standardised(values[known] if i < n else np.append(values[known], 0.0))
            if i >= n:
                limits.append(scaled[-1])
                scaled = scaled[:-1]
            of = features[known]
            if fits and len(of):
                rows = _subset(scaled, MOST_FITTED)
                process.fit(of[rows], scaled[rows])
            # Of limits those near it matter most.
            rows = _subset(scaled if i < n else np.abs(scaled - limits[-1]), MOST_KNOWN)
            process.condition(of[rows], scaled[rows], pending)
            if i < n:
                losses[:, i] = process.predict(features)[0]
                losses[known, i] = scaled
        self._limits, self._ideal = np.array(limits), losses.min(axis=0)
        losses[(numbers[:, n:] > 0).any(axis=1)] = np.inf
        return losses

    def _joined(self, losses: Floats) -> Floats:
        """Join the losses of several objectives by the weights; the last axis is that of them."""
        if self._objectives == 1:
            return losses[..., 0]
        gaps = self._weights * (losses - self._ideal)
        joined: Floats = gaps.max(axis=-1) + 0.05 * gaps.sum(axis=-1)
        return joined

    def _expected(self, points: Floats) -> tuple[Floats, Floats, Floats]:
        """Predict the joined loss at points [n, n_parameters]: mean and standard deviation [n].

        The third is the logarithm of the probability that all limits hold [n].
        """
        features, n = self._cube.features(points), self._objectives
        found = [process.predict(features) for process in self._processes]
        mean, deviation = (np.stack(of, axis=-1) for of in zip(*found, strict=True))
        held = log_ndtr((self._limits - mean[:, n:]) / deviation[:, n:]).sum(axis=1)
        if n == 1:
            return mean[:, 0], deviation[:, 0], held
        drawn = mean[:, None, :n] + deviation[:, None, :n] * _DRAWN[:, :n]
        joined = self._joined(drawn)
        return joined.mean(axis=1), joined.std(axis=1), held

    def _branch(self) -> Branch | None:
        """Choose the branch in which the next trial must lie; None if it may lie anywhere.

        Every fourth proposal is for one of the branches in turn, because a branch in which good
        trials are rare looks poor until it has been tried often. Proposals are counted, not trials,
        since trials that end together would always get the same turns.
        """
        turn, rest = divmod(self._proposed, 4)
        self._proposed += 1
        if not self._branches or rest:
            return None
        return self._branches[turn % len(self._branches)]

    def _start(
        self, taken: Floats, branch: Branch | None, random: np.random.Generator
    ) -> Floats | None:
        """Return a quasi-random point [n_parameters] of a branch with fewer than eight trials.

        None if the branch has more trials or no new point was drawn, or ``branch`` is None.
        """
        # The process is most uncertain in corners, and a branch tried only there looks poor.
        if branch is None or np.count_nonzero(_inside(taken, branch)) >= 8:
            return None
        spread = qmc.Sobol(len(self._cube), seed=random).random(64)
        points = self._snapped(spread, branch)
        return _first_new(points[_inside(points, branch)], taken)

    def _choose(
        self, known: Floats, taken: Floats, branch: Branch | None, random: np.random.Generator
    ) -> Floats:
        """Find the point [n_parameters] with the largest expected improvement that is not taken.

        ``known`` points have a loss, and are sorted by it. ``taken`` has the known points first, in
        any order, and then the points of trials without a loss.
        """
        expected, _, held = self._expected(np.concatenate([known[:_BEST], taken[len(known) :]]))
        least = expected[held > math.log(0.5)].min(initial=np.inf)
        good = known[_inside(known, branch)][:_BEST]
        spread = qmc.Sobol(len(self._cube), seed=random).random(2048)
        around = self._children(np.repeat(good, _CHILDREN, axis=0), _STEPS[0], random, branch)
        points = np.concatenate([self._snapped(spread, branch), around])
        scores = self._score(points, least, branch)
        top = np.argsort(-scores)[:8]
        parents, reached = points[top], scores[top]
        rows = np.arange(len(parents))
        for step in _STEPS:
            children = self._children(np.repeat(parents, _CHILDREN, axis=0), step, random, branch)
            scored = self._score(children, least, branch).reshape(len(parents), _CHILDREN)
            first = scored.argmax(axis=1)
            better = scored[rows, first] > reached
            reached = np.where(better, scored[rows, first], reached)
            parents = np.where(better[:, None], children[rows * _CHILDREN + first], parents)
        # In a small space all points may be taken; only then one is repeated.
        ordered = np.concatenate([parents[np.argsort(-reached)], points[np.argsort(-scores)]])
        chosen = _first_new(ordered, taken)
        return ordered[0] if chosen is None else chosen

    def _children(
        self,
        parents: Floats,
        step: float,
        random: np.random.Generator,
        branch: Branch | None,
    ) -> Floats:
        """Return a point near each parent: some coordinates are moved, some choices drawn anew.

        ``step`` is the standard deviation of the moves.
        """
        shape = parents.shape
        existing = np.where(np.isnan(parents), random.random(shape), parents)
        moved = existing + step * random.standard_normal(shape)
        moved = np.clip(1 - np.abs(1 - np.abs(moved)), 0, 1)  # reflected at both ends
        changed = random.random(shape) < max(0.3, 1.5 / shape[1])
        changed[np.arange(shape[0]), random.integers(shape[1], size=shape[0])] = True
        chosen = self._cube.choices > 0
        moved[:, chosen] = random.random((shape[0], int(chosen.sum())))
        changed[:, chosen] &= random.random((shape[0], int(chosen.sum()))) < 0.5
        return self._snapped(np.where(changed, moved, existing), branch)

    def _snapped(self, points: Floats, branch: Branch | None) -> Floats:
        if branch is not None:
            points[:, branch.column] = branch.unit
        return self._cube.snap(points)

    def _score(self, points: Floats, least: float, branch: Branch | None) -> Floats:
        """Return the logarithm of each point's expected improvement over ``least`` [n].

        It counts with the probability that all limits hold, which alone decides if ``least`` is
        infinite. It is minus infinity outside the branch.
        """
        mean, deviation, held = self._expected(points)
        gain = held
        if math.isfinite(least):
            gain = held + np.log(deviation) + log_gain((least - mean) / deviation)
        return np.where(_inside(points, branch), gain, -np.inf)


def log_gain(z: Floats) -> Floats:
    """Return the logarithm of the mean of max(z - x, 0) for standard normal x, at each z [n].

    It stays exact where the mean itself would underflow.
    """
    near, far = np.maximum(z, -1), np.minimum(z, -1)
    direct = np.log(np.exp(_log_density(near)) + near * ndtr(near))
    tail = np.log1p(far * np.sqrt(np.pi / 2) * erfcx(-far / np.sqrt(2)))
    gain: Floats = np.where(z > -1, direct, _log_density(far) + tail)
    return gain


def _log_density(z: Floats) -> Floats:
    density: Floats = -0.5 * (z**2 + np.log(2 * np.pi))
    return density


def _first_new(points: Floats, taken: Floats) -> Floats | None:
    for point in points:
        if not np.isclose(taken, point, rtol=0, atol=1e-9, equal_nan=True).all(axis=1).any():
            found: Floats = point
            return found
    return None


def _inside(points: Floats, branch: Branch | None) -> Bools:
    """Return a mask [n]: True for each point [n, n_parameters] in ``branch``, or all without it."""
    if branch is None:
        return np.ones(len(points), dtype=bool)
    return np.isclose(points[:, branch.column], branch.unit)


def _subset(losses: Floats, most: int) -> NDArray[np.intp]:
    """Return positions of at most ``most`` trials: half are the best, half drawn from others."""
    order = np.argsort(losses, kind="stable")
    if len(losses) <= most:
        return np.arange(len(losses))
    rest = np.random.default_rng(len(losses)).permutation(order[most // 2 :])
    return np.sort(np.concatenate([order[: most // 2], rest[: most - most // 2]]))


def _standardised(losses: Floats) -> Floats:
    """Transform losses [n] to be nearly normal, with mean 0 and standard deviation 1.

    Losses usually have a long tail of poor ones, which would otherwise dominate the model.
    """
    for warp in (False, True):
        if warp and len(losses) >= 8:
            losses = yeojohnson(losses)[0]
        deviation = float(losses.std())
        losses = (losses - losses.mean()) / (deviation if deviation > 0 else 1.0)
    return losses


def _serve() -> None:
    """Read the space from standard input, then answer requests until the driver closes the pipe."""
    end_with_parent(int(sys.argv[1]))
    os.nice(10)  # the driver and its other children have precedence
    send = keep_stdout()
    first = json.loads(sys.stdin.readline())
    space = {name: Parameter.model_validate(of) for name, of in first["space"].items()}
    proposer = Proposer(space, first["objectives"])
    for line in sys.stdin:
        start = time.monotonic()
        values = proposer.propose(**json.loads(line))
        send({"values": values, "seconds": time.monotonic() - start})


if __name__ == "__main__":
    _serve()
