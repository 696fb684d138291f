"""Trials that a Gaussian process expects the most of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import qmc, yeojohnson

from hydragnn_flow.search.samplers.encoding import Floats, Space, UnitCube, Values
from hydragnn_flow.search.samplers.gaussian import GaussianProcess, log_improvement

_SPREAD = 2048
"""Points all over the space among which a proposal is sought,"""
_BEST, _AROUND = 10, 32
"""and around so many of the best trials so many each."""
_PARENTS, _CHILDREN = 8, 32
_STEPS = np.geomspace(0.1, 0.003, 8)
"""The best of these points are improved by steps that become smaller."""
_REFIT = 0.05
"""Hyper-parameters are sought again when the number of values has grown by so much."""
_FEWEST_TO_WARP = 8


class Proposer:
    """Proposes trials from those that are finished and those that run.

    Every parameter is part of the model, whether or not it exists in a trial: where it does not,
    a number is taken to be in the middle of its range and a choice to be as far from every value.

    Parameters
    ----------
    space
        Dotted path -> domain, conditions after the parameters they name.
    """

    def __init__(self, space: Space) -> None:
        self._cube = UnitCube(space)
        choices = self._cube.choices
        self._process = GaussianProcess(np.repeat(np.arange(len(choices)), np.maximum(choices, 1)))
        self._fitted = 0

    def propose(
        self,
        finished: Sequence[tuple[Mapping[str, Any], float]],
        running: Sequence[Mapping[str, Any]],
        count: int,
        seed: int,
    ) -> list[Values]:
        """The trials to begin next, each chosen as if those before it were running.

        Parameters
        ----------
        finished
            Parameters and loss of trials, at least one.
        running
            Parameters of trials whose loss is not known yet.
        count
            Number of proposals.
        seed
            Of the points at which the search for them begins.
        """
        random = np.random.default_rng(seed)
        points = self._cube.encode([values for values, _ in finished])
        losses = _standardised(np.array([loss for _, loss in finished]))
        known = self._features(points)
        if not self._fitted or len(losses) >= max(self._fitted + 2, (1 + _REFIT) * self._fitted):
            self._process.fit(known, losses)
            self._fitted = len(losses)
        pending = self._cube.encode(running)
        self._process.condition(known, losses, self._features(pending))
        # Of a noisy loss the smallest value is luck; the mean there is what can be improved on.
        best = float(self._process.predict(known)[0].min())
        good = points[np.argsort(losses)[:_BEST]]
        taken = np.concatenate([points, pending])
        for _ in range(count):
            chosen = self._choose(good, taken, best, random)
            self._process.believe(self._features(chosen[None])[0])
            taken = np.concatenate([taken, chosen[None]])
        return [self._cube.decode(point) for point in taken[len(taken) - count :]]

    def _choose(
        self, good: Floats, taken: Floats, best: float, random: np.random.Generator
    ) -> Floats:
        """The point [n_parameters], not taken, of the largest expected improvement found."""
        spread = qmc.Sobol(len(self._cube), seed=random).random(_SPREAD)
        around = self._children(np.repeat(good, _AROUND, axis=0), _STEPS[0], random)
        points = np.concatenate([self._cube.settle(spread), around])
        scores = self._score(points, best)
        top = np.argsort(-scores)[:_PARENTS]
        parents, reached = points[top], scores[top]
        rows = np.arange(len(parents))
        for step in _STEPS:
            children = self._children(np.repeat(parents, _CHILDREN, axis=0), step, random)
            scored = self._score(children, best).reshape(len(parents), _CHILDREN)
            first = scored.argmax(axis=1)
            better = scored[rows, first] > reached
            reached = np.where(better, scored[rows, first], reached)
            parents = np.where(better[:, None], children[rows * _CHILDREN + first], parents)
        # A small space has only so many points: the same again only if there is no other.
        ordered: list[Floats] = [*parents[np.argsort(-reached)], *points[np.argsort(-scores)]]
        for point in ordered:
            if not np.isclose(taken, point, rtol=0, atol=1e-9, equal_nan=True).all(axis=1).any():
                return point
        return ordered[0]

    def _children(self, parents: Floats, step: float, random: np.random.Generator) -> Floats:
        """A point near each parent: some parameters moved by about ``step``, some chosen anew."""
        shape = parents.shape
        existing = np.where(np.isnan(parents), random.random(shape), parents)
        moved = existing + step * random.standard_normal(shape)
        moved = np.clip(1 - np.abs(1 - np.abs(moved)), 0, 1)  # mirrored at both ends
        changed = random.random(shape) < max(0.3, 1.5 / shape[1])
        changed[np.arange(shape[0]), random.integers(shape[1], size=shape[0])] = True
        chosen = self._cube.choices > 0
        moved[:, chosen] = random.random((shape[0], int(chosen.sum())))
        changed[:, chosen] &= random.random((shape[0], int(chosen.sum()))) < 0.5
        return self._cube.settle(np.where(changed, moved, existing))

    def _score(self, points: Floats, best: float) -> Floats:
        return log_improvement(*self._process.predict(self._features(points)), best)

    def _features(self, points: Floats) -> Floats:
        """What the process sees: a column for a number, one for each value of a choice."""
        columns = []
        for units, n_choices in zip(points.T, self._cube.choices, strict=True):
            if n_choices:
                centres = (np.arange(n_choices) + 0.5) / n_choices
                # Two choices are at distance 1 of each other.
                columns.append(np.isclose(units[:, None], centres) * np.sqrt(0.5))
            else:
                columns.append(np.nan_to_num(units, nan=0.5)[:, None])
        return np.concatenate(columns, axis=1)


def _standardised(losses: Floats) -> Floats:
    """Losses made as normal as a power can, with mean 0 and deviation 1.

    Most losses have a long tail of poor ones, which would otherwise decide the model.
    """
    for warp in (False, True):
        if warp and len(losses) >= _FEWEST_TO_WARP:
            losses = yeojohnson(losses)[0]
        deviation = float(losses.std())
        losses = (losses - losses.mean()) / (deviation if deviation > 0 else 1.0)
    return losses
