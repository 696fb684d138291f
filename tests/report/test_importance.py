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

needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="fANOVA needs scikit-learn")


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


@needs_sklearn
@pytest.mark.parametrize("has_condition", [False, True])
def test_what_a_sampler_has_settled_early_still_matters_most(has_condition):
    """Nine of ten trials have the good value of the parameter that doubles the cost."""
    random = np.random.default_rng(0)
    study = optuna.create_study(direction="minimize")
    domains: dict[str, Any] = {
        n: CategoricalDistribution([False, True]) for n in ("settled", "open")
    }
    domains["bucket"] = IntDistribution(1, 100)
    for number in range(40):
        chosen: dict[str, Any] = {"settled": number % 10 == 0, "open": bool(random.integers(2))}
        if has_condition and chosen["open"]:
            chosen["bucket"] = int(random.integers(1, 101))
        cost = (2.0 if chosen["settled"] else 1.0) * (1.3 if chosen["open"] else 1.0)
        cost *= float(np.exp(0.02 * random.normal()))
        used = {name: domains[name] for name in chosen}
        study.add_trial(create_trial(params=chosen, distributions=used, value=cost))
    frame = study_frame(study, [], ["seconds"])
    found = parameter_importance(study, frame, fanova=True).set_index("parameter")
    # Of two values alike often, the variance is the square of half the logarithm of their ratio.
    expected = np.log(2) ** 2 / (np.log(2) ** 2 + np.log(1.3) ** 2)
    assert found.loc["settled", "variance"] == pytest.approx(100 * expected, abs=6)
    assert found["importance"].idxmax() == "open", "PED-ANOVA sees the trials alone"
    assert found["variance"].isna().sum() == has_condition, "of what some trials lack"


@needs_sklearn
@pytest.mark.parametrize("objective", ["throughput", "seconds"])
def test_what_makes_a_strategy_fast_is_found_and_lack_of_memory_is_the_worst(objective):
    """The precision doubles what a step takes, and large batches find no memory."""
    random = np.random.default_rng(0)
    maximised = objective == "throughput"
    study = optuna.create_study(direction="maximize" if maximised else "minimize")
    choices = {"precision": ["fp32", "fp64"], "checkpointing": [False, True], "batch": [8, 16, 512]}
    domains = {name: CategoricalDistribution(of) for name, of in choices.items()}
    for _ in range(60):
        chosen = {name: of[int(random.integers(len(of)))] for name, of in choices.items()}
        cost = 2.0 if chosen["precision"] == "fp64" else 1.0
        cost *= (1.2 if chosen["checkpointing"] else 1.0) * float(np.exp(0.02 * random.normal()))
        lacks = chosen["batch"] == 512
        study.add_trial(
            create_trial(
                state=TrialState.FAIL if lacks else TrialState.COMPLETE,
                params=chosen,
                distributions=domains,
                value=None if lacks else 100.0 / cost if maximised else cost,
                user_attrs={REASON: "out_of_memory: 9 GiB"} if lacks else {},
            )
        )
    frame = study_frame(study, [], [objective])
    found = parameter_importance(study, frame, fanova=True).set_index("parameter")
    assert (found["trials"] == 60).all()
    assert found.loc["precision", "variance"] > 2 * found.loc["checkpointing", "variance"]
    complete = frame[frame["state"] == "complete"]
    complete.attrs = frame.attrs
    without = parameter_importance(study, complete).set_index("parameter")
    assert found.loc["batch", "importance"] > without.loc["batch", "importance"]
