"""Sampler whose proposals keep the rules of a search, around any other sampler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache, partial
from itertools import islice
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.domain import satisfying
from hydragnn_flow.config.optuna_classes import build_sampler
from hydragnn_flow.search.records import FIXED, active
from hydragnn_flow.search.samplers.encoding import UnitCube, Values

_logger = logging.getLogger(__name__)
Foreseen = Callable[[Values], Mapping[str, float]]
"""Function of a trial's values: least amount of limited quantities, known before it trains."""


class RuledSampler(BaseSampler):
    """Optuna sampler that wraps another one and changes its proposals to meet the search's rules.

    Rules are the conditions of `search.where`, such as ``hidden_dim <= 4 * num_radial``. A proposal
    that breaks one is moved to the nearest point found that meets all. Only parameters of broken
    rules move, and those of rules linked to them by a common parameter. Values that a trial has
    already, such as enqueued ones, are kept.

    Parameters
    ----------
    sampler
        Sampler whose proposals are changed.
    config
        Space and rules of the search.
    seed
        Seed of the random moves of proposals.
    admits
        Function that returns True if the values of a trial keep the limits that are known before
        training; a proposal that exceeds one is moved like one that breaks a rule.
    """

    def __init__(
        self,
        sampler: BaseSampler,
        config: SearchConfig,
        seed: int,
        admits: Callable[[Values], bool] = lambda values: True,
    ) -> None:
        self._sampler, self._space, self._rules = sampler, config.space, config.rules
        self.close = getattr(sampler, "close", lambda: None)
        for method in ("before_trial", "after_trial", "continues"):
            if hasattr(sampler, method):
                setattr(self, method, getattr(sampler, method))
        self._admits, self._cube, self._seed = admits, UnitCube(config.space), seed
        self._proposed: set[tuple[Any, ...]] = set()
        some = partial(satisfying, config.space, config.rules)
        # The same for every trial, and up to a second of work if few configurations meet the rules.
        self._drawn = cache(lambda fixed: [*islice(some(dict(fixed)), 300)])

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of every parameter of the search space, by dotted path."""
        return self._cube.domains

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Values:
        """Return the wrapped sampler's proposal for a trial, changed so that it meets the rules.

        The proposal has a value, by dotted path, of every parameter that exists in the trial.
        """
        sampler = self._sampler
        trial = copy(study._storage.get_trial(trial._trial_id))  # with what it has by now
        fixed = {**trial.params, **trial.system_attrs.get(FIXED, {})}
        joint = sampler.infer_relative_search_space(study, trial)
        proposed = sampler.sample_relative(study, trial, joint) | fixed
        values: Values = {}
        for name, domain in self._cube.domains.items():
            if not self._space[name].exists(values):
                continue
            if domain.single():
                proposed[name] = self._space[name].at(0.0)
            elif name not in proposed:
                proposed[name] = sampler.sample_independent(study, trial, name, domain)
            values[name] = proposed[name]
            trial.params = {**trial.params, name: values[name]}
            trial.distributions = {**trial.distributions, name: domain}
        random = np.random.default_rng([self._seed, trial.number])
        if not self._proposed:  # by an earlier driver, perhaps
            every = study.get_trials(deepcopy=False)
            self._proposed = {tuple(other.params.items()) for other in every}
        if self._broken(values):
            values = self._nearest(values, fixed, random)
        if not self._admits(values):
            values = self._within(values, fixed, random)
        self._proposed.add(tuple(values.items()))
        return values

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return the wrapped sampler's value of one parameter of a trial."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def _broken(self, values: Mapping[str, Any]) -> int:
        """Return the number of broken rules."""
        return sum(not rule.holds(values) for rule in self._rules)

    def _nearest(
        self, values: Values, fixed: Mapping[str, Any], random: np.random.Generator
    ) -> Values:
        """Return the nearest values found that meet the rules, if possible of no other trial.

        Candidates are copies of the proposal, and then of the best candidates, with some of the
        parameters moved. A word that changes counts as far as a number that crosses its range.
        """
        moving = {path for rule in self._rules if not rule.holds(values) for path in rule.paths}
        for _ in self._rules:
            moving |= {p for rule in self._rules if moving & {*rule.paths} for p in rule.paths}
        moving -= fixed.keys()
        # The very values, which a way through the cube would round.
        kept = {name: value for name, value in values.items() if name not in moving} | dict(fixed)
        origin, words = self._cube.encode([values])[0], self._cube.choices > 0
        may_move = np.array([name in moving for name in self._space])
        starts = origin[None]
        for _ in range(8):
            parents = np.repeat(starts, 384 // len(starts), axis=0)
            parents = np.where(np.isnan(parents), random.random(parents.shape), parents)
            deviation = random.choice([0.02, 0.1, 0.5], len(parents))[:, None]
            moved = parents + deviation * random.standard_normal(parents.shape)
            moved = np.clip(1 - np.abs(1 - np.abs(moved)), 0, 1)  # reflected at both ends
            moved = np.where(words, random.random(parents.shape), moved)
            changes = may_move & (random.random(parents.shape) < random.random((len(parents), 1)))
            points = self._cube.snap(np.where(changes, moved, parents))
            steps = np.abs(points - origin)
            steps[np.isnan(steps) & (np.isnan(points) != np.isnan(origin))] = 1.0
            steps[:, words] = np.where(steps[:, words] > 0, 1.0, steps[:, words])
            repeated, decoded = None, self._cube.decode(points)
            broken: dict[int, int] = {}
            for place in np.nansum(steps, axis=1).argsort(kind="stable").tolist():
                found = {name: kept.get(name, value) for name, value in decoded[place].items()}
                broken[place] = self._broken(found)
                if not broken[place] and tuple(found.items()) not in self._proposed:
                    return found
                if not broken[place]:
                    repeated = repeated or found
            if repeated is not None:
                return repeated
            starts = points[sorted(broken, key=broken.__getitem__)[:16]]
        # Some are known since the configuration was read, unless a trial was cut short.
        return next(satisfying(self._space, self._rules, fixed), values)

    def _within(
        self, values: Values, fixed: Mapping[str, Any], random: np.random.Generator
    ) -> Values:
        """Return values that keep the limits and the rules, near those of a proposal.

        They begin as the nearest of some random ones that do. One parameter after the other then
        gets its proposed value, unless limits or rules do not hold with it, and numbers at last
        move towards it, by halves. If another trial has these values, the next nearest is taken.
        """
        # To count the work of a network takes a hundredth of a second, so few are tried.
        drawn = random.permutation(np.array(self._drawn(tuple(fixed.items())), object))[:200]
        known = [*islice(filter(self._admits, drawn), 8)]
        if not known and not fixed:
            _logger.warning("a trial exceeds search.constraints: no other values found; raise them")
        points, origin = self._cube.encode(known), self._cube.encode([values])[0]
        far = np.where(np.isnan(points - origin), 1.0, np.abs(points - origin)).sum(axis=1)
        best = values
        for place in np.argsort(far).tolist():
            best = known[place]
            for name in random.permutation([*values]).tolist():
                moved = {**best, name: values[name]}
                moved = {key: moved.get(key, values.get(key)) for key in active(self._space, moved)}
                if None not in moved.values() and not self._broken(moved) and self._admits(moved):
                    best = moved
            best = self._nearer(best, values)
            if tuple(best.items()) not in self._proposed:
                break
        return best

    def _nearer(self, kept: Values, wanted: Values, halvings: int = 4) -> Values:
        """Move numbers of values that keep the limits towards those of a proposal, by halves."""
        low, high = self._cube.encode([kept])[0], self._cube.encode([wanted])[0]
        numbers = ~(self._cube.choices > 0) & ~np.isnan(low) & ~np.isnan(high)
        for _ in range(halvings):
            middle = self._cube.snap(np.where(numbers, (low + high) / 2, low)[None])[0]
            (moved,) = self._cube.decode(middle[None])
            found = {
                n: kept[n] if kept[n] == wanted.get(n) else moved.get(n, kept[n]) for n in kept
            }
            exist = {*active(self._space, found)} == found.keys()
            if exist and not self._broken(found) and self._admits(found):
                kept, low = found, middle
            else:
                high = middle
        return kept


def sampler_of(
    config: SearchConfig,
    seed: int,
    chosen: str | Mapping[str, Any] | None = None,
    rung_epochs: Sequence[int] = (1,),
    foreseen: Foreseen | None = None,
) -> BaseSampler:
    """Build the sampler of a search, so that its proposals meet the search's rules and limits.

    ``chosen`` names another sampler than ``config`` does. ``rung_epochs`` are the epochs at which
    trials are judged, the end of a training last. ``foreseen`` returns what is known of quantities
    in ``search.constraints`` before a trial with some values trains, infinite if it cannot.

    Raises
    ------
    ValueError
        If there is no such sampler, or it does not take its options.
    """
    sampler = build_sampler(chosen or config.sampler, config.space, seed, rung_epochs)
    if foreseen is None or not (limits := config.constraints):
        return RuledSampler(sampler, config, seed) if config.where else sampler

    def admits(values: Values) -> bool:
        return all(needed <= limits[name] for name, needed in foreseen(values).items())

    return RuledSampler(sampler, config, seed, admits)
