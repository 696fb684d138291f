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
from collections.abc import Sequence

import numpy as np
from scipy.optimize import fminbound
from scipy.special import erfcx, log_ndtr, ndtr
from scipy.stats import qmc, yeojohnson

from hydragnn_flow.config import Parameter
from hydragnn_flow.processes import end_with_parent, keep_stdout
from hydragnn_flow.search.samplers.encoding import (
    Bools,
    Branch,
    Floats,
    Integers,
    Known,
    KnownTrial,
    Running,
    Space,
    UnitCube,
    Values,
)
from hydragnn_flow.search.samplers.gaussian_process import GaussianProcess, Rows

_BEST = 10
"""Number of best trials that are perturbed to find points to start from."""
_CHILDREN = 32
"""Number of perturbations of a point in each round of the search for the best point."""
_STEPS = np.geomspace(0.1, 0.003, 8)
"""Standard deviation of the perturbations in each round of that search, in units of a range."""
MOST_FITTED, MOST_KNOWN = 250, 1000
"""Largest number of values for the fit of the hyper-parameters, and for predictions."""


class Proposer:
    """Proposer of trials: a Gaussian-process model of the losses of finished and running trials.

    A proposal has the largest expected improvement over the smallest expected loss of a known
    trial, so a branch of the space (one choice of a parameter) with nothing left to gain is
    abandoned. Running trials count with their expected loss at the end (the Kriging believer of
    Ginsbourger et al., 2010).

    Each objective has a Gaussian process of its own. With several, the improvement is the volume
    that a trial adds to that between the Pareto front and a corner beyond the front and nine tenths
    of the trials (Emmerich, Deutz and Klinkenberg, IEEE Congr. Evol. Comput. 2011, 2147). Each
    limit has a process, too, and the improvement counts with the probability that the limits hold
    (Gardner et al., ICML 2014).

    The process of the first objective knows the losses at all rungs, of trials that run or were
    stopped early, too, and predicts losses at the last one.

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
    epochs
        Epochs at which trials are judged, the end of a training last.
    """

    def __init__(self, space: Space, objectives: int = 1, epochs: Sequence[int] = (1,)) -> None:
        self._cube = UnitCube(space)
        self._branches = self._cube.branches()
        self._objectives, self._epochs = objectives, epochs
        self._processes = [GaussianProcess(self._cube.parameters, len(epochs))]
        self._limits, self._corner = np.empty(0), np.empty(objectives)
        self._fitted = self._proposed = 0
        self.fits = 0
        """Number of times that the hyper-parameters were fitted."""

    def propose(self, known: Known, running: Running, count: int, seed: int) -> list[Values]:
        """Return the parameters of the next ``count`` trials, by dotted path.

        Each proposal counts as a running trial for the later ones.

        Parameters
        ----------
        known
            Trials with a loss known at the end or at a rung, at least one.
        running
            Parameters of each trial that runs.
        count
            Number of trials to propose.
        seed
            Seed of the points at which the search for proposals starts.
        """
        random = np.random.default_rng(seed)
        points, pending = self._encode(known), self._cube.encode(running)
        losses = self._learn(points, known, self._cube.features(pending))
        taken, ordered = np.concatenate([points, pending]), points[_ranked(losses)]
        for _ in range(count):
            branch = self._branch()
            chosen = self._start(taken, branch, random)
            if chosen is None:
                chosen = self._choose(ordered, taken, branch, random)
            for process in self._processes:
                process.believe(self._cube.features(chosen[None])[0])
            taken = np.concatenate([taken, chosen[None]])
        return self._cube.decode(taken[len(taken) - count :])

    def continues(self, known: Known, running: Running, row: int, wanted: int, seed: int) -> bool:
        """Return True if training a trial on promises as much gain per epoch as starting a new one.

        The gain is the expected improvement, at the end of the training, over the loss of the trial
        with rank ``wanted``. The trial's gain is divided by the epochs that it has left, and the
        gain of the best new trial by all epochs of a training, as if it were never stopped early.
        There must be a single objective.

        Parameters
        ----------
        known, running, seed
            Trials, running trials and seed, as for `propose`.
        row
            Position of the trial in ``known``.
        wanted
            Number of good trials that the search has to find. If fewer complete trials are within
            all limits, the trial continues.
        """
        points, pending = self._encode(known), self._cube.encode(running)
        losses = self._learn(points, known, self._cube.features(pending), row)
        # A failed trial has a loss, too, but it is not known whether it keeps the limits.
        whole = np.isfinite([trial.numbers for trial in known]).all(axis=1)
        reached = np.sort(losses[whole, 0])  # infinite beyond a limit
        if len(reached) < wanted or not math.isfinite(reached[wanted - 1]):
            return True
        target, process, one = reached[wanted - 1], self._processes[0], points[row : row + 1]
        random = np.random.default_rng(seed)
        taken = np.concatenate([points, pending])
        new = self._choose(points[np.argsort(losses[:, 0])], taken, None, random)[None]
        other_mean, other_deviation, other_held = self._expected(new)
        other_deviation = np.sqrt(other_deviation**2 + process.noise)
        other = _log_improvement(target, other_mean[:, 0], other_deviation[:, 0]) + other_held
        mean, deviation = process.predict(self._cube.features(one), np.array([row]))
        gain = _log_improvement(target, mean, deviation) + self._expected(one)[2]
        left = self._epochs[-1] - self._epochs[known[row].reports[-1][0]]
        return bool(gain[0] - math.log(left) >= other[0] - math.log(self._epochs[-1]))

    def _encode(self, known: Known) -> Floats:
        return self._cube.encode([trial.values for trial in known])

    def _learn(self, points: Floats, known: Known, pending: Floats, row: int = -1) -> Floats:
        """Condition all processes on the numbers of known trials [n], and on pending ones.

        Returns the standardised losses [n, n_objectives] of these trials. Those that are not known
        are as expected, and those of trials beyond a limit infinite. What is known of the trial
        at ``row`` is never left out.
        """
        n, features = self._objectives, self._cube.features(points)
        numbers = np.array([trial.numbers for trial in known])
        # Hyper-parameters are fitted again when there are a twentieth more results.
        size = sum(len(trial.reports) for trial in known) + len(known)
        fits = not self._fitted or size >= max(self._fitted + 2, 1.05 * self._fitted)
        if fits:
            self._fitted, self.fits = size, self.fits + 1
        losses, limits = np.empty((len(points), n)), []
        for i, values in enumerate(numbers.T):
            if i == len(self._processes):
                self._processes.append(GaussianProcess(self._cube.parameters))
            process = self._processes[i]
            rungs, trials, found = _flat(values, known if i == 0 else (), len(self._epochs))
            last = np.append(np.diff(trials) > 0, True)[: len(trials)]
            if i < n:
                scaled = near = _standardised(_without_tail(found), last)
            else:  # a zero at the end shows where the limit is, and near it excesses matter most
                scaled = _standardised(np.append(found, 0.0), np.append(last, True))
                limits.append(scaled[-1])
                scaled = scaled[:-1]
                near = np.abs(scaled - limits[-1])
            rows = Rows(features[trials], scaled, rungs, trials)
            if fits and len(trials):
                process.fit(_subset(rows, scaled, MOST_FITTED))
            near = np.where(trials == row, -np.inf, near)
            process.condition(_subset(rows, near, MOST_KNOWN), pending)
            if i < n:
                losses[:, i] = process.predict(features)[0]
                whole = rungs == process.rungs - 1
                losses[trials[whole], i] = scaled[whole]
        self._limits, self._corner = np.array(limits), np.quantile(losses, 0.9, axis=0)
        losses[(numbers[:, n:] > 0).any(axis=1)] = np.inf
        return losses

    def _expected(self, points: Floats) -> tuple[Floats, Floats, Floats]:
        """Predict the losses at points [n, n_parameters].

        Returns their means and standard deviations [n, n_objectives], and the logarithm of the
        probability that all limits hold [n].
        """
        features, n = self._cube.features(points), self._objectives
        found = [process.predict(features) for process in self._processes]
        mean, deviation = (np.stack(of, axis=-1) for of in zip(*found, strict=True))
        held = log_ndtr((self._limits - mean[:, n:]) / deviation[:, n:]).sum(axis=1)
        return mean[:, :n], deviation[:, :n], held

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

        ``known`` points have losses, and are sorted by `_ranked`. ``taken`` has the known points
        first, in any order, and then the points of trials without a loss.
        """
        best = known[: _BEST if self._objectives == 1 else MOST_FITTED]
        expected, _, held = self._expected(np.concatenate([best, taken[len(known) :]]))
        front = _front(expected[held > math.log(0.5)])
        good = known[_inside(known, branch)][:_BEST]
        spread = qmc.Sobol(len(self._cube), seed=random).random(2048)
        around = self._children(np.repeat(good, _CHILDREN, axis=0), _STEPS[0], random, branch)
        points = np.concatenate([self._snapped(spread, branch), around])
        scores = self._score(points, front, branch)
        top = np.argsort(-scores)[:8]
        parents, reached = points[top], scores[top]
        rows = np.arange(len(parents))
        for step in _STEPS:
            children = self._children(np.repeat(parents, _CHILDREN, axis=0), step, random, branch)
            scored = self._score(children, front, branch).reshape(len(parents), _CHILDREN)
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

    def _score(self, points: Floats, front: Floats, branch: Branch | None) -> Floats:
        """Return the logarithm of each point's expected improvement over a Pareto front [n].

        It counts with the probability that all limits hold, which alone decides if ``front``
        [n_front, n_objectives] is empty.
        """
        mean, deviation, gain = self._expected(points)
        if len(front) and self._objectives == 1:
            gain += _log_improvement(front[0, 0], mean[:, 0], deviation[:, 0])
        elif len(front):
            # Beyond the front, so that its ends are improved, too.
            corner = np.maximum(self._corner, front.max(axis=0) + 0.5)
            volume = _added(front, corner, mean, deviation)
            gain += np.log(np.maximum(volume, np.finfo(float).tiny))
        return np.where(_inside(points, branch), gain, -np.inf)


def _ranked(losses: Floats) -> Integers:
    """Return the order of trials by how many others are better in all losses [n, n_losses]."""
    if losses.shape[1] == 1:
        return np.argsort(losses[:, 0])
    better = (losses[:, None] > losses).all(axis=-1).sum(axis=1)
    newest = -np.arange(len(better))  # of equal ones first
    order: Integers = np.lexsort((newest, better))
    return order


def _front(losses: Floats) -> Floats:
    """Return at most 100 of the losses [n, n_losses] that no others dominate."""
    losses = np.unique(losses, axis=0)
    dominated: Bools = (losses[:, None] >= losses).all(axis=-1).sum(axis=1) > 1
    front = losses[~dominated]
    kept: Floats = front[np.linspace(0, len(front) - 1, min(len(front), 100)).astype(int)]
    return kept


def _added(front: Floats, corner: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Compute the volume that points are expected to add between a Pareto front and a corner [n].

    The volume is cut into slabs at the last loss of each point of the front, because in a slab only
    those with a smaller last loss matter.

    Parameters
    ----------
    front, corner
        Losses [n_front, n_losses] on the front, and those of the corner [n_losses] beyond it.
    mean, deviation
        Means and standard deviations [n, n_losses] of the points' losses: normal, independent.
    """
    edges = np.concatenate([front, corner[None]])
    below = np.exp(_log_improvement(edges[:, None], mean, deviation))

    def added(rows: Integers, axis: int) -> Floats:
        """Return the volume [n] in the first losses, up to ``axis``, that some rows leave."""
        rows = rows[np.argsort(edges[rows, axis])]
        if axis == 0:
            return below[rows[0], :, 0]
        volume = np.zeros(len(mean))
        for i, row in enumerate(rows):
            reached = below[row, :, axis] - (below[rows[i - 1], :, axis] if i else 0.0)
            volume += reached * added(np.append(rows[:i], len(front)), axis - 1)
        return volume

    return added(np.arange(len(edges)), len(corner) - 1)


def _log_improvement(least: float | Floats, mean: Floats, deviation: Floats) -> Floats:
    """Return the logarithm of the expected improvement over a loss."""
    gain: Floats = np.log(deviation) + log_gain((least - mean) / deviation)
    return gain


def log_gain(z: Floats) -> Floats:
    """Return the logarithm of the expected improvement at each standardised distance ``z`` [n].

    The improvement is the mean of max(z - x, 0) for standard normal x. The logarithm stays exact
    where the mean itself would underflow.
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


def _flat(values: Floats, known: Known, rungs: int) -> tuple[Integers, Integers, Floats]:
    """Return rung, trial and value of all that is known, sorted by trial and rung.

    ``values`` are those at the last rung [n_trials], NaN if they are not known; ``known`` has those
    at earlier ones.
    """
    last = rungs - 1 if known else 0
    flat = [(trial, last, value) for trial, value in enumerate(values) if math.isfinite(value)]
    flat += [(row, *report) for row, trial in enumerate(known) for report in trial.reports]
    found = np.array(sorted(flat), dtype=float).reshape(-1, 3)
    return found[:, 1].astype(np.intp), found[:, 0].astype(np.intp), found[:, 2]


def _subset(rows: Rows, losses: Floats, most: int) -> Rows:
    """Return all values of some trials, at most ``most``: half of the best, half drawn from others.

    ``losses`` tell how good each value is.
    """
    if len(losses) <= most:
        return rows
    of = np.unique(rows.trials, return_inverse=True)[1]
    sizes, least = np.bincount(of), np.full(of.max() + 1, np.inf)
    np.minimum.at(least, of, losses)
    order = np.argsort(least, kind="stable")
    best = order[np.cumsum(sizes[order]) <= most // 2]
    rest = np.random.default_rng(len(losses)).permutation(order[len(best) :])
    rest = rest[np.cumsum(sizes[rest]) <= most - sizes[best].sum()]
    kept = np.isin(of, np.append(best, rest))
    return Rows(rows.features[kept], rows.values[kept], rows.rungs[kept], rows.trials[kept])


def _without_tail(losses: Floats) -> Floats:
    """Move losses [n] that are far above all others near them: no transform would tell those apart.

    Far is beyond the median by more than thirty interquartile ranges.
    """
    low, middle, high = np.quantile(losses, [0.25, 0.5, 0.75])
    return np.minimum(losses, middle + 30 * (high - low)) if high > low else losses


def _standardised(losses: Floats, last: Bools) -> Floats:
    """Transform losses [n] so that those marked are nearly normal, of mean 0 and deviation 1.

    Losses usually have a long tail of poor ones, which would otherwise dominate the model. Others
    far beyond those marked are moved near them.
    """
    for warp in (False, True):
        if warp and np.count_nonzero(last) >= 8:
            low, high = losses[last].min() - 1, losses[last].max() + 1
            losses = yeojohnson(np.clip(losses, low, high), _power(losses[last]))
        deviation = max(float(losses[last].std()), 0.1 * float(losses.std()))
        losses = (losses - losses[last].mean()) / (deviation if deviation > 0 else 1.0)
    return losses


def _power(losses: Floats) -> float:
    """Return the power of Yeo and Johnson's transform that makes losses [n] most nearly normal.

    `scipy.stats.yeojohnson` finds the same, but takes a tenth of the time of a proposal for checks.
    """
    if not losses.any():
        return 1.0
    logs = float((np.sign(losses) * np.log1p(np.abs(losses))).sum())

    def loss(power: float) -> float:
        spread = np.var(yeojohnson(losses, power))
        return float(0.5 * len(losses) * np.log(spread) - (power - 1) * logs)

    return float(fminbound(loss, -20, 20, xtol=1e-8))


def _serve() -> None:
    """Read the space from standard input, then answer requests until the driver closes the pipe."""
    end_with_parent(int(sys.argv[1]))
    os.nice(10)  # the driver and its other children have precedence
    send = keep_stdout()
    first = json.loads(sys.stdin.readline())
    space = {name: Parameter.model_validate(of) for name, of in first["space"].items()}
    proposer = Proposer(space, first["objectives"], first["epochs"])
    for line in sys.stdin:
        start, request = time.monotonic(), json.loads(line)
        request["known"] = [KnownTrial(*trial) for trial in request["known"]]
        if "row" in request:
            send({"continues": proposer.continues(**request)})
        else:
            values = proposer.propose(**request)
            send({"values": values, "seconds": time.monotonic() - start})


if __name__ == "__main__":
    _serve()
