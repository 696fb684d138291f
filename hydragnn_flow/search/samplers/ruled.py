"""Sampler whose proposals keep the rules of a search, around any other sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.domain import satisfying
from hydragnn_flow.config.optuna_classes import build_sampler
from hydragnn_flow.search.records import FIXED, active
from hydragnn_flow.search.samplers.encoding import UnitCube, Values


class RuledSampler(BaseSampler):
    """Sampler that moves proposals of another one to the nearest that meets the rules of a search.

    Only parameters that broken rules name are moved. Values that a trial has already, as one that
    was enqueued, are kept.

    Parameters
    ----------
    sampler
        Sampler that proposes.
    config
        Space and rules of the search.
    seed
        Seed of the moves.
    """

    def __init__(self, sampler: BaseSampler, config: SearchConfig, seed: int) -> None:
        self._sampler, self._space, self._rules = sampler, config.space, config.rules
        self._cube, self._seed = UnitCube(config.space), seed

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters of the space."""
        return self._cube.domains

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Values:
        """Return the values of all parameters that exist in a trial; they meet the rules."""
        sampler, fixed = self._sampler, {**trial.params, **trial.system_attrs.get(FIXED, {})}
        joint = sampler.infer_relative_search_space(study, trial)
        proposed = sampler.sample_relative(study, trial, joint) | fixed
        for name, domain in self._cube.domains.items():
            if name not in proposed and name in active(self._space, proposed):
                proposed[name] = sampler.sample_independent(study, trial, name, domain)
        values = {name: proposed[name] for name in active(self._space, proposed)}
        if self._holds(values):
            return values
        return self._nearest(values, fixed, np.random.default_rng([self._seed, trial.number]))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return a value of the other sampler."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Tell the other sampler that a trial begins."""
        self._sampler.before_trial(study, trial)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Tell the other sampler that a trial has ended."""
        self._sampler.after_trial(study, trial, state, values)

    def close(self) -> None:
        """End the process of the other sampler, if it has one."""
        getattr(self._sampler, "close", lambda: None)()

    def _holds(self, values: Mapping[str, Any]) -> bool:
        return all(rule.holds(values) for rule in self._rules)

    def _nearest(
        self, values: Values, fixed: Mapping[str, Any], random: np.random.Generator
    ) -> Values:
        """Return the nearest values found that meet the rules and keep the fixed ones."""
        point = self._cube.encode([values])
        broken = {path for rule in self._rules if not rule.holds(values) for path in rule.paths}
        moving = np.array([name in broken - fixed.keys() for name in self._space])
        shape = (128, len(self._cube))
        start = np.where(np.isnan(point), random.random(shape), point)
        for deviation in (0.02, 0.1, 0.5):  # in units of a range
            moves = deviation * random.standard_normal(shape) * (random.random(shape) < 0.7)
            new = np.clip(start + moves, 0, 1)
            chosen = (self._cube.choices > 0) & (random.random(shape) < 0.5)
            new = np.where(chosen, random.random(shape), new)
            points = self._cube.snap(np.where(moving, new, start))
            order = np.argsort(np.nansum(np.abs(points - start) * moving, axis=1), kind="stable")
            for row in order:
                found = self._cube.decode(points[row])
                if self._holds(found):
                    return found
        # Some configurations are known to meet the rules since they were read.
        known = [*satisfying(self._space, self._rules, fixed)]
        assert known, "rules and enqueued values were checked when the configuration was read"
        return known[random.integers(len(known))]


def sampler_of(config: SearchConfig, seed: int) -> BaseSampler:
    """Build the sampler of a search, which keeps its rules if it has any.

    Raises
    ------
    ValueError
        If there is no such sampler, or it does not take its options.
    """
    sampler = build_sampler(config.sampler, config.space, seed)
    return RuledSampler(sampler, config, seed) if config.where else sampler
