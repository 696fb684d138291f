"""What mattered is found, among all trials that can tell."""

from __future__ import annotations

import sys

import optuna
import pandas as pd
import pytest
from search_cases import DROPOUT, RADIAL, RATE, TYPE, WIDTH, made_study

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.importance import parameter_importance
from hydragnn_flow.report.trials_frame import study_frame


def importance_of(made: tuple[optuna.Study, list], objective: int = 0, **how: bool) -> pd.DataFrame:
    study, segments = made
    return parameter_importance(study, study_frame(study, segments), objective, **how)


def test_what_decides_comes_first_and_what_does_nothing_last() -> None:
    found = importance_of(made_study(600))
    fractions = dict(zip(found["parameter"], found["importance"], strict=True))
    assert found["parameter"].iloc[0] == RATE
    assert sum(fractions.values()) == pytest.approx(1)
    assert fractions[TYPE] > 5 * fractions[DROPOUT]
    assert fractions[RADIAL] > 5 * fractions[DROPOUT]
    assert fractions[WIDTH] < 0.05


def test_a_condition_is_counted_where_it_holds() -> None:
    study, segments = made_study(200)
    found = importance_of((study, segments)).set_index("parameter")
    assert found.loc[RADIAL, "trials"] == sum(RADIAL in trial.params for trial in study.trials)
    assert found.loc[RATE, "trials"] == 200


def test_pruned_trials_count_in_the_order_tpe_gives_them() -> None:
    pruned = made_study(300)
    assert sum(trial.state.name == "COMPLETE" for trial in pruned[0].trials) < 150
    pd.testing.assert_frame_equal(
        importance_of(pruned), importance_of(made_study(300, all_complete=True))
    )


def test_each_objective_has_its_own() -> None:
    made = made_study(600, 2)
    assert importance_of(made, 0)["parameter"].iloc[0] == RATE
    assert importance_of(made, 1)["parameter"].iloc[0] == WIDTH


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(InputError, match="9 trials have a value of value, and at least 10"):
        importance_of(made_study(9))
    assert len(importance_of(made_study(10))) == 5


def test_a_parameter_with_one_value_has_no_importance() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("x", 1.0, 1.0), n_trials=10)
    assert list(importance_of((study, []))["importance"]) == [0.0]


def test_shapley_values_agree(recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("shap")
    found = importance_of(made_study(400), shap=True).set_index("parameter")
    assert found["shap"].idxmax() == RATE
    assert found["shap"].nsmallest(2).index.isin([DROPOUT, WIDTH]).all()
    assert (found["shap"] < 0.5).all()  # the middle place is half the ranking from its ends
    assert found.attrs["r2"] > 0.8


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(InputError, match=r"pip install 'hydragnn_flow\[shap\]'"):
        importance_of(made_study(20), shap=True)
