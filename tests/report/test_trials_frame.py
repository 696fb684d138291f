"""The trials of a run as a table; what mattered is found among all that can tell."""

from importlib.util import find_spec

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from search_cases import DROPOUT, RADIAL, RATE, RUNGS, TYPE, WIDTH, made_study, segment

from hydragnn_flow.errors import InputError
from hydragnn_flow.report.figures import parameter_importance
from hydragnn_flow.report.trials_frame import ranking, study_frame
from hydragnn_flow.search.records import REASON


def test_a_row_per_trial_with_its_parameters_and_values():
    study, segments = made_study(60)
    frame = study_frame(study, segments, ["val_error"])
    assert list(frame["trial"]) == list(range(60))
    for trial, row in zip(study.trials, frame.to_dict("records"), strict=True):
        assert row["value"] == trial.value
        assert row["state"] == trial.state.name.lower()
        assert row[RATE] == trial.params[RATE]
        assert pd.isna(row[RADIAL]) == (RADIAL not in trial.params)
        assert RUNGS[row["rung"]] == row["epochs"] == max(trial.intermediate_values)
    assert str(frame[RADIAL].dtype) == "Int64"  # a gap does not make integers floats
    assert frame.attrs["objectives"] == ["val_error"]
    assert frame.attrs["units"] == {"seconds": "s", "joules": "J"}
    assert frame.attrs["parameters"][RATE] == {"low": 1e-5, "high": 1e-2, "log": True}
    assert frame.attrs["parameters"][TYPE] == {"choices": ["SchNet", "EGNN", "PNA"]}


def test_costs_are_those_of_all_segments_of_a_trial():
    study = optuna.create_study()
    for state in (TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL):
        values = [1.0] if state == TrialState.COMPLETE else None
        study.add_trial(create_trial(state=state, values=values, user_attrs={"reason": "why"}))
    curve = [[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]]
    ledger = [
        segment(0, curve, joules=5.0, started=1000.0, ended=1004.0),
        segment(0, curve, 1, to_epoch=6, joules=7.0, gcds=["0", "1"], started=1010.0, ended=1020.0),
        segment(1, curve, joules=None),
        segment(1, curve, 1, status="interrupted", to_epoch=4),
        segment(0, curve, 9, kind="member", seconds=1e6),
    ]
    frame = study_frame(study, ledger)
    assert list(frame["seconds"]) == [8.0, 8.0, 0.0]
    assert list(frame["epochs"]) == [6, 4, 0]
    assert list(frame["gcds"]) == [2, 1, 0]
    assert list(frame["rung"].fillna(-1)) == [1, 0, -1]
    assert frame["joules"].iloc[0] == 12.0
    assert frame["joules"].isna().tolist() == [False, True, True]
    assert frame["started"].iloc[0] == pd.Timestamp(1000, unit="s", tz="UTC")
    assert frame["ended"].iloc[0] == pd.Timestamp(1020, unit="s", tz="UTC")
    assert frame["ended"].isna().tolist() == [False, True, True]
    assert list(frame["reason"]) == ["why"] * 3


def test_of_several_objectives_only_the_first_is_known_before_the_end():
    study, segments = made_study(60, 2)
    frame = study_frame(study, segments, ["val_error", "seconds"])
    pruned = frame[frame["state"] == "pruned"]
    assert pruned["value.val_error"].notna().all()  # that of the last rung
    assert pruned["value.seconds"].isna().all()
    assert set(frame["trial"][frame["pareto"]]) == {trial.number for trial in study.best_trials}


def test_ranking_is_that_of_tpe():
    study = optuna.create_study()
    for value, reports, state in (
        (5.0, {3: 1.0, 9: 5.0}, TrialState.PRUNED),
        (2.0, {3: 2.0}, TrialState.PRUNED),
        (9.0, {27: 9.0}, TrialState.COMPLETE),
        (float("inf"), {27: 9.0}, TrialState.COMPLETE),
        (1.0, {3: 1.0}, TrialState.PRUNED),
        (8.0, {27: 8.0}, TrialState.COMPLETE),
    ):
        study.add_trial(create_trial(state=state, values=[value], intermediate_values=reports))
    study.add_trial(create_trial(state=TrialState.FAIL))
    assert list(ranking(study_frame(study, [])).index) == [5, 2, 0, 4, 1]


def test_ranking_has_those_beyond_a_limit_last():
    study = optuna.create_study()
    for value, excess, state in (
        (1.0, {"gcd_hours": 3.0, "seconds": -9.0}, TrialState.COMPLETE),
        (2.0, {"gcd_hours": 0.5, "seconds": 1.5}, TrialState.PRUNED),
        (9.0, {"gcd_hours": 0.0, "seconds": -1.0}, TrialState.COMPLETE),
        (8.0, {"gcd_hours": -2.0, "seconds": -1.0}, TrialState.PRUNED),
        (7.0, {}, TrialState.COMPLETE),
    ):
        known = {"values": [value], "intermediate_values": {3: value}, "constraints": excess}
        study.add_trial(create_trial(state=state, **known))
    frame = study_frame(study, [])
    assert list(frame["violation"]) == [3.0, 2.0, 0.0, 0.0, 0.0]
    assert list(ranking(frame).index) == [4, 2, 3, 1, 0]


def test_odd_parameters_go_into_parquet(tmp_path):
    study = optuna.create_study()
    choices = {"flag": [True, False], "mixed": ["a", 2]}
    domains = {name: CategoricalDistribution(of) for name, of in choices.items()}
    domains["n"] = IntDistribution(1, 5)
    for params in ({"flag": True, "mixed": "a", "n": 1}, {"flag": False, "mixed": 2}):
        used = {name: domains[name] for name in params}
        study.add_trial(create_trial(values=[1.0], params=params, distributions=used))
    frame = study_frame(study, [])
    frame.to_parquet(tmp_path / "t.parquet")
    again = pd.read_parquet(tmp_path / "t.parquet")
    assert again.attrs == frame.attrs
    assert list(again["mixed"]) == ["a", "2"]
    assert list(again["flag"]) == [True, False]
    assert again["n"].iloc[0] == 1
    assert again["n"].isna().tolist() == [False, True]


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
    domains = dict.fromkeys(("settled", "open", "large"), CategoricalDistribution([0, 1]))
    domains["rare"] = IntDistribution(1, 100)
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
