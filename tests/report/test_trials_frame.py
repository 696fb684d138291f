"""The trials of a run as a table."""

import optuna
import pandas as pd
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial
from search_cases import RADIAL, RATE, RUNGS, TYPE, made_study, segment

from hydragnn_flow.report.trials_frame import ranking, study_frame


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
