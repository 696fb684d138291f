"""What mattered is found, among all trials that can tell."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from search_cases import DROPOUT, RADIAL, RATE, TYPE, WIDTH, made_study

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.figures import parameter_importance
from hydragnn_flow.report.trials_frame import study_frame
from hydragnn_flow.search.records import REASON


def importance_of(made, objective=0, **how):
    study, segments = made
    found = parameter_importance(study, study_frame(study, segments), objective, **how)
    return found.set_index("parameter")


def test_what_decides_comes_first_and_what_does_nothing_last():
    study, segments = made_study(600)
    found = importance_of((study, segments))
    percent = found["importance"]
    assert percent.index[0] == RATE and percent.sum() == pytest.approx(100)
    assert min(percent[TYPE], percent[RADIAL]) > 5 * percent[DROPOUT] and percent[WIDTH] < 5
    assert found.loc[RADIAL, "trials"] == sum(RADIAL in trial.params for trial in study.trials)
    assert found.loc[RATE, "trials"] == 600


def test_pruned_trials_count_in_the_order_tpe_gives_them():
    pruned = made_study(300)
    assert sum(trial.state.name == "COMPLETE" for trial in pruned[0].trials) < 150
    everything = importance_of(made_study(300, all_complete=True))
    pd.testing.assert_frame_equal(importance_of(pruned), everything)


def test_each_objective_has_its_own():
    made = made_study(600, 2)
    assert [importance_of(made, i).index[0] for i in (0, 1)] == [RATE, WIDTH]


def test_too_few_trials_are_refused_and_one_value_has_no_importance():
    with pytest.raises(InputError, match="9 trials have a value of value, and at least 10"):
        importance_of(made_study(9))
    assert len(importance_of(made_study(10))) == 5
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 1.0, 1.0), n_trials=10)
    assert list(importance_of((study, []))["importance"]) == [0.0]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="fANOVA needs scikit-learn")
@pytest.mark.parametrize("objective", ["throughput", "seconds"])
def test_what_a_sampler_settled_early_still_matters_and_lack_of_memory_is_the_worst(objective):
    """Nine of ten trials have the value that halves the cost; large batches find no memory."""
    random = np.random.default_rng(0)
    maximised = objective == "throughput"
    study = optuna.create_study(direction="maximize" if maximised else "minimize")
    domains: dict[str, Any] = {n: CategoricalDistribution([0, 1]) for n in ("settled", "open")}
    domains |= {"large": CategoricalDistribution([0, 1]), "rare": IntDistribution(1, 100)}
    for number in range(60):
        chosen = {"settled": int(number % 10 == 0), "open": int(random.integers(2))}
        chosen["large"] = int(random.integers(3) == 0)
        if chosen["open"]:
            chosen["rare"] = int(random.integers(1, 101))
        cost = 2.0 ** chosen["settled"] * 1.3 ** chosen["open"] * np.exp(0.02 * random.normal())
        failed = {"state": TrialState.FAIL, "user_attrs": {REASON: "out_of_memory: 9 GiB"}}
        value = {"value": float(100.0 / cost if maximised else cost)}
        used = {name: domains[name] for name in chosen}
        how = failed if chosen["large"] else value
        study.add_trial(create_trial(params=chosen, distributions=used, **how))
    frame = study_frame(study, [], [objective])
    found = parameter_importance(study, frame, fanova=True).set_index("parameter")
    assert found.loc["settled", "trials"] == 60
    assert found.loc["settled", "variance"] > 2 * found.loc["open", "variance"]
    assert np.isnan(found.loc["rare", "variance"]), "some trials lack it"
    complete = frame[frame["state"] == "complete"]
    complete.attrs = frame.attrs
    without = parameter_importance(study, complete).set_index("parameter")
    assert found.loc["large", "importance"] > without.loc["large", "importance"]
