"""What mattered is found, among all trials that can tell."""

import sys
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from search_cases import DROPOUT, RADIAL, RATE, TYPE, WIDTH, made_study

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.importance import parameter_importance
from hydragnn_flow.report.space_points import even_points
from hydragnn_flow.report.tables import shapley_sentences
from hydragnn_flow.report.trials_frame import study_frame
from hydragnn_flow.search.records import REASON


def importance_of(made, objective=0, **how):
    study, segments = made
    return parameter_importance(study, study_frame(study, segments), objective, **how)


def test_what_decides_comes_first_and_what_does_nothing_last():
    found = importance_of(made_study(600))
    fractions = dict(zip(found["parameter"], found["importance"], strict=True))
    assert found["parameter"].iloc[0] == RATE
    assert sum(fractions.values()) == pytest.approx(1)
    assert fractions[TYPE] > 5 * fractions[DROPOUT]
    assert fractions[RADIAL] > 5 * fractions[DROPOUT]
    assert fractions[WIDTH] < 0.05


def test_a_condition_is_counted_where_it_holds():
    study, segments = made_study(200)
    found = importance_of((study, segments)).set_index("parameter")
    assert found.loc[RADIAL, "trials"] == sum(RADIAL in trial.params for trial in study.trials)
    assert found.loc[RATE, "trials"] == 200


def test_pruned_trials_count_in_the_order_tpe_gives_them():
    pruned = made_study(300)
    assert sum(trial.state.name == "COMPLETE" for trial in pruned[0].trials) < 150
    pd.testing.assert_frame_equal(
        importance_of(pruned), importance_of(made_study(300, all_complete=True))
    )


def test_each_objective_has_its_own():
    made = made_study(600, 2)
    assert importance_of(made, 0)["parameter"].iloc[0] == RATE
    assert importance_of(made, 1)["parameter"].iloc[0] == WIDTH


def test_too_few_trials_are_refused():
    with pytest.raises(InputError, match="9 trials have a value of value, and at least 10"):
        importance_of(made_study(9))
    assert len(importance_of(made_study(10))) == 5


def test_a_parameter_with_one_value_has_no_importance():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 1.0, 1.0), n_trials=10)
    assert list(importance_of((study, []))["importance"]) == [0.0]


def test_shapley_values_agree(recwarn):
    pytest.importorskip("shap")
    found = importance_of(made_study(400), shap=True).set_index("parameter")
    assert found["shap"].idxmax() == RATE
    assert found["shap"].nsmallest(2).index.isin([DROPOUT, WIDTH]).all()
    assert (found["shap"] < 0.5).all()  # the middle place is half the ranking from its ends
    assert found.attrs["r2"] > 0.8


@pytest.mark.parametrize("has_condition", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_sampler_has_settled_early_still_matters_most(seed, has_condition):
    """Nine of ten trials have the good value of the parameter that doubles the cost."""
    pytest.importorskip("shap")
    random = np.random.default_rng(seed)
    study = optuna.create_study(direction="minimize")
    both: dict[str, Any] = {n: CategoricalDistribution([False, True]) for n in ("settled", "open")}
    bucket = IntDistribution(1, 100, log=True)
    for number in range(40):
        chosen: dict[str, Any] = {"settled": number % 10 == 0, "open": bool(random.integers(2))}
        domains = dict(both)
        if has_condition and chosen["open"]:
            chosen["bucket"], domains["bucket"] = int(random.integers(1, 101)), bucket
        cost = (2.0 if chosen["settled"] else 1.0) * (1.3 if chosen["open"] else 1.0)
        cost *= float(np.exp(0.02 * random.normal()))
        study.add_trial(create_trial(params=chosen, distributions=domains, value=cost))
    frame = study_frame(study, [], ["seconds"])
    found = parameter_importance(study, frame, shap=True).set_index("parameter")["shap"]
    # Of two values alike often each is half of the logarithm of their ratio from the middle.
    assert found["settled"] == pytest.approx(np.sqrt(2.0) - 1, rel=0.15)
    # What comes and goes with a choice shares its effect.
    of_open = found["open"] + found.get("bucket", 0.0)
    assert of_open == pytest.approx(np.sqrt(1.3) - 1, rel=0.3)


def drawn_space(random):
    """Trials of a space in which `inner` goes with a choice of `outer`, and `deep` with `inner`."""
    rows = []
    for number in range(30):
        row: dict[str, Any] = {"outer": "aaaaaabbbc"[number % 10]}
        row |= {"width": int(random.integers(1, 4)), "rate": float(random.uniform(1e-4, 2e-4))}
        row["inner"] = None if row["outer"] == "a" else bool(random.integers(2))
        row["deep"] = float(random.uniform(0, 1)) if row["inner"] else None
        rows.append(row)
    trials = pd.DataFrame(rows)
    trials.attrs["parameters"] = {
        "outer": {"choices": ["a", "b", "c"]},
        "width": {"low": 1, "high": 3, "log": False},
        "rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "inner": {"choices": [False, True]},
        "deep": {"low": 0.0, "high": 1.0, "log": False},
    }
    return trials


def test_points_of_a_space_are_even_and_keep_its_conditions():
    random = np.random.default_rng(1)
    trials = drawn_space(random)
    names = ["deep", "inner", "outer", "width", "rate"]
    points = even_points(trials, names, 120, random)
    assert points is not None and list(points.columns) == names and len(points) == 120
    assert set(points["outer"].value_counts()) == {40}
    assert dict(points["width"].value_counts()) == {1: 40, 2: 40, 3: 40}
    assert np.log10(points["rate"]).mean() == pytest.approx(-3, abs=0.01)
    assert (points["inner"].notna() == (points["outer"] != "a")).all()
    assert (points["deep"].notna() == points["inner"].eq(True)).all()
    trials.loc[0, "rate"] = np.nan  # whatever else is chosen
    assert even_points(trials, names, 120, random) is None


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(InputError, match=r"pip install 'hydragnn_flow\[shap\]'"):
        importance_of(made_study(20), shap=True)


def timed_study(objective, seed=0):
    """Strategies: the precision doubles what a step takes, and large batches find no memory."""
    random = np.random.default_rng(seed)
    maximised = objective == "throughput"
    study = optuna.create_study(direction="maximize" if maximised else "minimize")
    domains = {
        "Training.precision": CategoricalDistribution(["fp32", "fp64"]),
        "Training.conv_checkpointing": CategoricalDistribution([False, True]),
        "Training.batch_size": CategoricalDistribution([8, 16, 512]),
    }
    for _ in range(60):
        chosen = {
            name: domain.choices[int(random.integers(len(domain.choices)))]
            for name, domain in domains.items()
        }
        cost = 2.0 if chosen["Training.precision"] == "fp64" else 1.0
        cost *= 1.2 if chosen["Training.conv_checkpointing"] else 1.0
        cost *= float(np.exp(0.02 * random.normal()))
        lacks = chosen["Training.batch_size"] == 512
        study.add_trial(
            create_trial(
                state=TrialState.FAIL if lacks else TrialState.COMPLETE,
                params=chosen,
                distributions=domains,
                value=None if lacks else 100.0 / cost if maximised else cost,
                user_attrs={REASON: "out_of_memory: 9 GiB"} if lacks else {},
            )
        )
    return study, study_frame(study, [], [objective])


@pytest.mark.parametrize("objective", ["throughput", "seconds"])
def test_what_makes_a_strategy_fast_is_found(objective):
    pytest.importorskip("shap")
    study, frame = timed_study(objective)
    found = parameter_importance(study, frame, shap=True)
    moved = dict(zip(found["parameter"], found["shap"], strict=True))
    assert found.attrs["of"] == objective
    assert max(moved, key=moved.__getitem__) == "Training.precision"
    # Half of the trials at twice the cost: each is √2 from the middle, less what failed.
    assert 0.15 < moved["Training.precision"] < 0.45
    assert moved["Training.conv_checkpointing"] < 0.15
    (first, second) = shapley_sentences(found)
    assert f"precision matters most: it moves {objective} by" in first
    assert f"of the {objective} (R²)" in second


def test_a_strategy_without_memory_is_the_worst():
    """Otherwise nobody would learn that the batch decides whether anything runs at all."""
    study, frame = timed_study("throughput")
    found = parameter_importance(study, frame).set_index("parameter")
    assert (found["trials"] == 60).all()
    complete = frame[frame["state"] == "complete"]
    complete.attrs = frame.attrs
    without = parameter_importance(study, complete).set_index("parameter")
    batch = "Training.batch_size"
    assert found.loc[batch, "importance"] > without.loc[batch, "importance"]
