"""Equal but faster versions of the functions in which DeepHyper spends most of a search.

A search of two hundred evaluations in a conditional space takes one to ten minutes of a core with
them, and could take over twenty without. Some of the answers of each are compared with those of the
function that it replaces, so that it cannot silently become another search.
"""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import ConfigSpace
import numpy as np
from ConfigSpace.hyperparameters import FloatHyperparameter
from ConfigSpace.hyperparameters.hp_components import ROUND_PLACES
from deephyper.skopt.learning import forest
from deephyper.skopt.optimizer.acq_optimizer import pymoo_mixedga
from pymoo.core.mixed import MixedVariableDuplicateElimination, MixedVariableMating
from pymoo.core.population import Population
from pymoo.core.problem import Problem
from pymoo.core.variable import Choice

_CHECKED = 500
"""Number of calls of which one is compared."""


def spare_time(space: Any) -> None:
    """Put the faster versions in place, for a search of this space."""
    _deactivate(space)
    _sample()
    _eliminate_duplicates()
    _mate()
    _predict()


def _deactivate(space: Any) -> None:
    """ConfigSpace builds an object for every configuration that DeepHyper's genetic algorithm
    meets, and another for every parameter that is inactive in it.
    """
    theirs = pymoo_mixedga.deactivate_inactive_hyperparameters
    plan = [
        (
            name,
            isinstance(domain, FloatHyperparameter),
            [(c.parent.name, {*c.values}) for c in space.parent_conditions_of[name]],
        )
        for name, domain in space.items()  # parents before their children
    ]
    calls = itertools.count()

    def without_inactive(values: dict[str, Any], space: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, rounds, conditions in plan:
            if all(kept.get(parent) in allowed for parent, allowed in conditions):
                value = values[name]
                kept[name] = float(np.float64(value).round(ROUND_PLACES)) if rounds else value
        if next(calls) % _CHECKED == 0:
            _check_equal(_shown(kept), _shown(dict(theirs(values, space))))
        return kept

    pymoo_mixedga.deactivate_inactive_hyperparameters = without_inactive


def _sample() -> None:
    """ConfigSpace computes the values of ten thousand samples one by one."""
    theirs = ConfigSpace.ConfigurationSpace.sample_configuration

    def sampled(space: Any, size: int | None = None) -> Any:
        found = theirs(space, size)
        if size is None or size == 1:
            return found
        vectors = np.array([configuration.get_array() for configuration in found])
        values: list[dict[str, Any]] = [{} for _ in found]
        for (name, domain), column in zip(space.items(), vectors.T, strict=True):
            rows = np.flatnonzero(~np.isnan(column))
            held = domain.to_value(column[rows])
            if isinstance(domain, FloatHyperparameter):
                held = [float(value) for value in np.round(held, ROUND_PLACES)]
            elif domain._value_cast is not None:
                held = [domain._value_cast(value) for value in held]
            for row, value in zip(rows, held, strict=True):
                values[row][name] = value
        for checked in range(0, size, _CHECKED):
            _check_equal(_shown(values[checked]), _shown(dict(found[checked])))
        return values

    ConfigSpace.ConfigurationSpace.sample_configuration = sampled


def _eliminate_duplicates() -> None:
    """pymoo compares every individual with every other one."""
    theirs = MixedVariableDuplicateElimination._do
    calls = itertools.count()

    def duplicates(self: Any, pop: Any, other: Any, is_duplicate: Any) -> Any:
        names = sorted(pop[0].X)

        def keys(individuals: Any) -> list[tuple[Any, ...]]:
            return [tuple([individual.X[name] for name in names]) for individual in individuals]

        found = np.zeros_like(is_duplicate)
        if other is None:
            # The last of equal ones stays.
            seen = set()
            for i, key in reversed(list(enumerate(keys(pop)))):
                found[i] = key in seen
                seen.add(key)
        else:
            known = set(keys(other))
            found[:] = [key in known for key in keys(pop)]
        if next(calls) % _CHECKED == 0:
            _check_equal(found.tolist(), theirs(self, pop, other, is_duplicate).tolist())
        return found

    MixedVariableDuplicateElimination._do = duplicates


def _mate() -> None:
    """pymoo makes an object of every parent and every child for every kind of variable."""
    theirs = MixedVariableMating._do
    calls = itertools.count()

    def mated(
        self: Any,
        problem: Any,
        pop: Any,
        n_offsprings: int,
        parents: bool = False,
        random_state: Any = None,
        **options: Any,
    ) -> Any:
        checked = next(calls) % _CHECKED == 0
        if checked:
            other_state = copy.deepcopy(random_state)
            expected = theirs(
                self, problem, pop, n_offsprings, parents, random_state=other_state, **options
            )
        kinds: dict[type, list[str]] = {}
        for name, variable in problem.vars.items():
            kinds.setdefault(type(variable), []).append(name)
        groups = [
            (kind, group)
            for kind, names in kinds.items()
            for group in ([[name] for name in names] if kind is Choice else [names])
        ]
        mates = self.selection(
            problem, pop, math.ceil(n_offsprings / 2), 2, random_state=random_state, **options
        )
        children: list[dict[str, Any]] = [{} for _ in range(n_offsprings)]
        for kind, names in groups:
            variables = [problem.vars[name] for name in names]
            part = Problem(
                vars=dict(zip(names, variables, strict=True)),
                xl=np.array([getattr(variable, "lb", None) for variable in variables]),
                xu=np.array([getattr(variable, "ub", None) for variable in variables]),
            )
            values = np.array(
                [[[mate.X[name] for name in names] for mate in pair] for pair in mates],
                dtype=object if kind is Choice else None,
            ).swapaxes(0, 1)
            values = _rounded(
                self.crossover[kind], _crossed(self.crossover[kind], part, values, random_state)
            )
            values = _rounded(
                self.mutation[kind], _mutated(self.mutation[kind], part, values, random_state)
            )
            for child, row in zip(children, values, strict=False):
                child.update(zip(names, row, strict=True))
        if checked:
            _check_equal(
                [_shown(child) for child in children], [_shown(child.X) for child in expected]
            )
            _check_equal(random_state.bit_generator.state, other_state.bit_generator.state)
        return Population.new(X=children)

    MixedVariableMating._do = mated


def _crossed(crossover: Any, problem: Any, values: Any, random_state: Any) -> Any:
    """As ``pymoo.core.crossover.Crossover.do``, without the objects; values (2, pairs, names)."""
    if crossover.vtype is not None:
        values = values.astype(crossover.vtype)
    cross = random_state.random(values.shape[1]) < crossover.prob.get()
    kept = values.copy()
    if cross.any():
        crossed = crossover._do(problem, values, random_state=random_state)
        kept[:, cross] = crossed[:, cross]
    return kept.reshape(-1, values.shape[-1])


def _mutated(mutation: Any, problem: Any, values: Any, random_state: Any) -> Any:
    """As ``pymoo.core.mutation.Mutation.do``, without the objects; values (children, names)."""
    mutated = mutation._do(problem, values, random_state=random_state)
    chosen = random_state.random(size=len(values)) <= mutation.prob.get()
    return np.where(chosen[:, None], mutated, values)


def _rounded(operator: Any, values: Any) -> Any:
    """As an operator's call does after its work: its type, and its repair."""
    if operator.vtype is not None:
        values = values.astype(operator.vtype)
    return values if operator.repair is None else operator.repair._do(None, values)


def _predict() -> None:
    """DeepHyper sends samples through every tree twice."""
    theirs = forest._return_mean_and_std
    calls = itertools.count()

    def mean_and_std(X: Any, n_outputs: int, trees: Any, min_variance: float, n_jobs: int) -> Any:
        samples = np.ascontiguousarray(X, dtype=np.float32)
        total, squares = np.zeros(len(samples)), np.zeros(len(samples))
        for tree in trees:
            leaves = tree.tree_.apply(samples)
            mean = tree.tree_.value[:, 0, 0][leaves]
            variance = np.maximum(tree.tree_.impurity[leaves], min_variance)
            total += mean
            squares += variance + np.square(mean)
        total /= len(trees)
        squares /= len(trees)
        std = np.sqrt(np.maximum(squares - np.square(total), 0.0))
        if next(calls) % _CHECKED == 0:
            expected = theirs(X, n_outputs, trees, min_variance, n_jobs)
            _check_equal([total.tolist(), std.tolist()], [e.reshape(-1).tolist() for e in expected])
        return total, std

    forest._return_mean_and_std = mean_and_std


def _shown(configuration: dict[str, Any]) -> list[tuple[str, Any, type]]:
    """Its values with their types, in order."""
    return [(name, value, type(value)) for name, value in configuration.items()]


def _check_equal(ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise RuntimeError(f"{ours} is not DeepHyper's {theirs}")
