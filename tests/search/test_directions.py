"""An objective of which more is better is searched for as its negative is of which less is."""

from typing import Any

import numpy as np
import pytest
from study_cases import CONFIG, RUNGS, came_to

from hydragnn_flow.config import SearchConfig
from hydragnn_flow.config.search import direction_of
from hydragnn_flow.search import Search
from hydragnn_flow.search.records import best_first

CASES: list[dict[str, Any]] = [
    {"rungs": "stopping", "sampler": {"type": "auto", "wait": True}},
    {"rungs": "stopping"},
    {"pruner": {"type": "MedianPruner", "n_startup_trials": 3}},
]


def configured(*objectives, **changes):
    values = CONFIG.model_dump(exclude_unset=True)
    return SearchConfig.model_validate({**values, "objectives": objectives, **changes})


def searched(path, config, sign):
    """A made-up search that is opened anew on the way; what it asked for and decided."""
    told: list[Any] = []
    drawn = np.random.default_rng(5)
    search = Search(path, config, RUNGS[-1], 1, 2)
    for turn in range(24):
        if turn == 12:
            search.close()
            search = Search(path, config, RUNGS[-1], 1, 2)
        trial = search.ask()
        told.append(trial.parameters)
        for rung in range(len(search.rungs.epochs)):
            cost = -10.0 * trial.parameters["Training.Optimizer.learning_rate"]
            cost += float(drawn.normal()) / (rung + 1)
            told.append(search.report(trial.number, rung, came_to(sign * cost)))
            if told[-1] != "goes_on":
                break
    return told, search


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_more_is_better_as_less_of_the_negative(tmp_path, changes):
    more, upwards = searched(tmp_path / "more", configured("throughput", **changes), -1.0)
    less, downwards = searched(tmp_path / "less", configured("seconds", **changes), 1.0)
    assert more == less
    assert upwards.best == -downwards.best
    ways = [(upwards, "throughput"), (downwards, "seconds")]
    orders = [
        [record.number for record in sorted(search.records, key=best_first(direction_of(name)))]
        for search, name in ways
    ]
    assert orders[0] == orders[1]


def test_the_front_has_the_fastest_and_the_most_exact(tmp_path):
    config = configured("val_error", "throughput", rungs="none")
    values = [(0.1, 5.0), (0.2, 9.0), (0.3, 8.0), (0.05, 1.0)]
    with Search(tmp_path / "study.journal", config, RUNGS[-1], 1) as search:
        for error, speed in values:
            search.report(search.ask().number, 0, came_to(error, speed))
        assert {trial.number for trial in search._study.best_trials} == {0, 1, 3}
