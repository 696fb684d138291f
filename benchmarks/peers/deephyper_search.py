"""DeepHyper's CBO as HydraGNN uses it, in a process of its own that is spoken to in lines of JSON.

    PYTHON-WITH-DEEPHYPER deephyper_search.py

The first line is ``{"space": {name: domain}, "seed": 0, "quick": false}``. To each further one,
``{"learn": [[params, value]], "tell": [[key, value]], "ask": n}``, the answer is ``{"asked":
[[key, params]], "seconds": s}``: what was suggested, and the CPU time of it all. The smaller a
value the better.
This file imports nothing of ours, since DeepHyper's requirements are not ours.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
import warnings
from typing import Any

import ConfigSpace
import numpy as np
from ConfigSpace.hyperparameters import FloatHyperparameter
from ConfigSpace.hyperparameters.hp_components import ROUND_PLACES
from deephyper.hpo import CBO, HpProblem
from deephyper.skopt.optimizer.acq_optimizer import pymoo_mixedga


def problem(space: dict[str, dict[str, Any]], seed: int) -> Any:
    """The space in DeepHyper's terms; a domain is a :class:`hydragnn_flow.config.Parameter`."""
    made = HpProblem(seed=seed)
    parameters = {}
    for name, domain in space.items():
        if domain["choices"] is not None:
            value: Any = domain["choices"]
        else:
            value = tuple(domain["int"] or [float(bound) for bound in domain["float"]])
            value = (*value, "log-uniform") if domain["log"] else value
        parameters[name] = made.add_hyperparameter(value, name)
    for name, domain in space.items():
        for other, values in domain["when"].items():
            made.add_condition(
                ConfigSpace.InCondition(parameters[name], parameters[other], list(values))
            )
    return made


def spare_time(space: Any) -> None:
    """Replace the two functions in which DeepHyper spends most of a search by equal, faster ones.

    ConfigSpace builds an object for every configuration that DeepHyper's genetic algorithm meets,
    and another for every parameter that is inactive in it, hundreds of thousands a search; and
    values of ten thousand samples are computed one by one. Some of the answers of both are compared
    with ConfigSpace's own.
    """
    take_inactive = pymoo_mixedga.deactivate_inactive_hyperparameters
    sample = ConfigSpace.ConfigurationSpace.sample_configuration
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
        if next(calls) % 500 == 0:
            check_equal(kept, dict(take_inactive(values, space)))
        return kept

    def sampled(space: Any, size: int | None = None) -> Any:
        found = sample(space, size)
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
        for checked in range(0, size, 500):
            check_equal(values[checked], dict(found[checked]))
        return values

    pymoo_mixedga.deactivate_inactive_hyperparameters = without_inactive
    ConfigSpace.ConfigurationSpace.sample_configuration = sampled


def check_equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise an error unless a configuration has ConfigSpace's values, types and order."""
    shown = [[(name, value, type(value)) for name, value in c.items()] for c in (ours, theirs)]
    if shown[0] != shown[1]:
        raise RuntimeError(f"{ours} is not ConfigSpace's {theirs}")


def active(params: dict[str, Any], space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Without the parameters whose conditions do not hold, and in Python's own types."""
    kept: dict[str, Any] = {}
    for name, domain in space.items():
        if all(kept.get(other) in values for other, values in domain["when"].items()):
            value = params[name]
            kept[name] = value.item() if isinstance(value, np.generic) else value
    return kept


def serve() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    answers = sys.stdout
    # What DeepHyper prints must not stand among the answers.
    sys.stdout = sys.stderr
    first = json.loads(sys.stdin.readline())
    made = problem(first["space"], first["seed"])
    if first["quick"]:
        spare_time(made.space)
    with tempfile.TemporaryDirectory() as folder:
        search = CBO(
            made,
            random_state=first["seed"],
            log_dir=folder,
            acq_func="UCB",
            multi_point_strategy="cl_min",
            checkpoint_history_to_csv=False,
        )
        asked: list[dict[str, Any]] = []
        for line in sys.stdin:
            order = json.loads(line)
            start = time.process_time()
            # DeepHyper maximises.
            told = [(params, -value) for params, value in order["learn"]]
            told += [(asked[key], -value) for key, value in order["tell"]]
            if told:
                search.tell(told)
            new = search.ask(order["ask"]) if order["ask"] else []
            seconds = time.process_time() - start
            shown = [
                [len(asked) + i, active(params, first["space"])] for i, params in enumerate(new)
            ]
            asked += new
            print(json.dumps({"asked": shown, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    serve()
