"""Tables say what the run directory says."""

import io
import json

import optuna
import pandas as pd
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial
from rich.console import Console

from hydragnn_flow.report.closing import closing_table
from hydragnn_flow.report.errors import losses, made_of
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.report.tables import best_table, errors_frame, members_table, trials_table
from hydragnn_flow.report.text import cell, number
from hydragnn_flow.report.trials_frame import study_frame
from hydragnn_flow.segment import SegmentResult


def summary_of(made):
    return json.loads((made.directory / "ensemble" / "ensemble.json").read_text())


def printed(table, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_trials_best_first_failed_last(finished):
    table = trials_table(read_run(finished.directory).trials)
    assert list(table.columns)[:4] == ["trial", "state", "validation error", "mpnn_type"]
    assert list(table.columns)[-3:] == ["epochs", "seconds", "reason"]
    assert {"hidden_dim", "num_gaussians", "learning_rate"} <= set(table.columns)
    losses = table["validation error"].dropna()
    assert losses.is_monotonic_increasing and len(losses) == 15
    last = table.iloc[-1]
    assert (last["trial"], last["state"], last["epochs"]) == (5, "failed", 1)
    assert last["reason"] == "training loss is nan in epoch 2"
    spent = sum(s["seconds"] for s in finished.segments if s["kind"] == "trial")
    assert table["seconds"].sum() == pytest.approx(spent)


def frame_of(*trials, objectives=1):
    study = optuna.create_study(directions=["minimize"] * objectives)
    study.add_trials([create_trial(**trial) for trial in trials])
    return study_frame(study, [], ["val.forces", "seconds"][:objectives])


def test_trials_beyond_a_limit_come_after_those_within():
    values = [(0.1, 1.0), (0.3, 0.0), (0.2, 2.0), (0.4, -1.0)]
    trials = [{"value": value, "constraints": {"seconds": above}} for value, above in values]
    table = trials_table(frame_of(*trials, {"state": TrialState.RUNNING}))
    assert list(table["trial"]) == [1, 3, 0, 2, 4]
    assert list(table["val.forces"])[:4] == [0.3, 0.4, 0.1, 0.2]
    assert list(table["state"])[1:3] == ["complete", "complete, beyond a limit"]


def test_the_front_comes_first_and_is_named():
    table = trials_table(frame_of({"values": [0.2, 3.0]}, {"values": [0.3, 1.0]},
                                  {"values": [0.25, 4.0]}, objectives=2))  # fmt: skip
    assert list(table["trial"]) == [0, 1, 2]
    assert list(table["state"]) == ["complete, Pareto front"] * 2 + ["complete"]
    assert list(table["training time [s]"]) == [3.0, 1.0, 4.0]


def test_parameters_of_the_same_last_name_keep_their_paths():
    names = ["Training.rate", "Architecture.rate", "Architecture.hidden_dim", "Own.seconds"]
    domains = {name: IntDistribution(1, 9) for name in names}
    params = dict.fromkeys(names, 3)
    table = trials_table(frame_of({"params": params, "distributions": domains, "value": 1.0}))
    assert list(table.columns) == [
        *("trial", "state", "val.forces"),
        *("Training.rate", "Architecture.rate", "hidden_dim", "Own.seconds"),
        *("epochs", "seconds"),
    ]


def test_what_trials_have_used_stands_beside_their_time():
    study = optuna.create_study(directions=["minimize"])
    domain = {"Architecture.a_key_of_a_long_name": IntDistribution(1, 10**9)}
    found = {"params": dict.fromkeys(domain, 123_456_789), "distributions": domain}
    study.add_trials([create_trial(value=value, **found) for value in (1.0, 2.0)])
    segments = [
        SegmentResult(kind="trial", number=n, rung=0, status="ok", seconds=4.0, joules=joules)
        for n, joules in ((0, 30.0), (0, 12.0), (1, None))
    ]
    frame = study_frame(study, segments)
    table = trials_table(frame)
    assert list(table.columns[-3:]) == ["epochs", "seconds", "joules"]
    assert table["joules"].iloc[0] == 42.0 and table["joules"].isna().tolist() == [False, True]
    for width, words in ((75, "parameters"), (120, "a_key_of_a_long_name")):
        shown = printed(best_table(frame, Console(width=width)), width=width)
        assert "joules" in shown and words in shown


def test_no_trials_give_an_empty_table():
    assert trials_table(frame_of()).empty


def test_every_member_stands_beside_the_ensemble(finished):
    summary = summary_of(finished)
    table = errors_frame(summary)
    assert list(table) == ["", "weight", "energy per atom [meV/atom]", "forces [eV/Å]"]
    trials = [member["trial"] for member in summary["members"]]
    members = [f"member {k}, trial {trial}" for k, trial in enumerate(trials)]
    below = ["against member 1, %", "90 % interval holds"]
    assert list(table[""]) == ["ensemble of 3", *members, *below]
    errors = summary["errors"]["forces"]["mae"]
    value, lo, hi = errors["2"].values()
    assert table["forces [eV/Å]"][3] == f"{value:.4f} ({lo:.4f}–{hi:.4f})"
    assert table["forces [eV/Å]"][5] == "90.4 %"


def test_noise_has_a_row_where_heads_predict_it(finished):
    summary = summary_of(finished)
    assert "predicted noise" not in set(errors_frame(summary)[""])
    summary["test"]["forces"]["aleatoric_std"] = 0.03
    row = errors_frame(summary).set_index("").loc["predicted noise"]
    assert list(row) == ["", "", "0.0300 eV/Å"]


def test_an_ensemble_that_loses_to_a_member_is_said_to_with_the_figures(finished):
    summary = summary_of(finished)
    assert losses(summary) == []
    forces = summary["errors"]["forces"]
    forces["mae"]["ensemble"]["value"], forces["mae"]["2"]["value"] = 0.052, 0.0395
    forces["change"]["2"] = {"value": 0.3165, "lo": 0.21, "hi": 0.43}
    trial = summary["members"][2]["trial"]
    told = (
        f"forces: the ensemble errs more than member 2, trial {trial}, 0.0520 against 0.0395 eV/Å, "
        "+31.6 (+21.0 to +43.0) %"
    )
    assert losses(summary) == [told]
    assert told in " ".join(printed(closing_table(summary)).split())


def test_closing_table_in_the_terminal(finished):
    summary = summary_of(finished)
    summary["errors"]["[bold]gap"] = summary["errors"].pop("forces")
    text = printed(closing_table(summary), 80)
    for words in (
        "48 structures, 95 % intervals",
        "90 % interval holds",
        "meV/atom",
        "182 s wall",
        "331 s CPU in training trials and members",
        "node-hours",
        "member 1: change of the error from it, the best single model",
    ):
        assert words in text
    assert "[bold]gap" in text
    assert "90.4 %" in text
    rows = [line for line in text.splitlines() if line.startswith(("ensemble", "member 2"))]
    assert len(rows) == 2, "a row is a line on a terminal of 80 characters"
    assert all(line.count("(") == line.count(")") == 2 for line in rows)


def test_errors_that_are_undefined_leave_gaps(finished):
    summary = summary_of(finished)
    for target in summary["errors"].values():
        for estimate in target["mae"].values():
            estimate.update(lo=None, hi=None)
        for estimate in target["change"].values():
            estimate.update(value=None, lo=None, hi=None)
    energy = errors_frame(summary)["energy per atom [meV/atom]"]
    assert "(" not in energy[0] and energy[4] == ""
    printed(closing_table(summary))


def test_a_member_cut_short_is_told_with_its_reason(finished):
    """Below the closing table, and in the report's table of members; the others are not named."""
    summary = summary_of(finished)
    short = summary["members"][1]
    below, _, _ = printed(closing_table(summary)).partition("s wall")
    told = " ".join(below.split())
    assert (
        f"member 1 (trial {short['trial']}) was not trained to its end: {short['reason']}" in told
    )
    assert told.count("not trained to its end") == 1
    summary["failed"] = [{"member": k, "trial": 9, "reason": f"error: {k}"} for k in (1, 7)]
    told = " ".join(printed(closing_table(summary)).split())
    assert "member 7 (trial 9) failed, and another trial took its place: error: 7" in told
    assert "member 1 (trial 9)" not in told
    assert list(members_table(summary)["cut short"]) == ["", short["reason"], ""]


def test_the_choice_of_members_and_of_their_combination_is_told_with_its_reasons(finished):
    summary = summary_of(finished)
    assert made_of(summary) == []
    for k, member in enumerate(summary["members"]):
        member |= {"choice": f"added {k}", "trial_error": 0.5 + k, "best_val_error": 0.25 + k}
        member |= {"graphs_per_step": 15.5 * (1 + k), "learning_rate": 0.001 * (1 + k)}
    summary["aggregation"] = "median"
    summary["aggregation_scores"] = {"weighted": 0.25, "median": 0.125}
    summary["calibrated_on"] = {"split": "calibrationset", "structures": 1048}
    assert made_of(summary) == [
        "The ensemble is the median of its members.",
        "Ways to combine them, by the criterion on structures left out: weighted 0.250, median "
        "0.125.",
        "Weights and error bars are fitted on the 1,048 structures of the calibration split.",
    ]
    table = members_table(summary)
    assert list(table["chosen because"]) == ["added 0", "added 1", "added 2"]
    assert list(table["validation error as trial"]) == [0.5, 1.5, 2.5]
    assert list(table["as member"]) == [0.25, 1.25, 2.25]
    assert list(table["graphs a step"]) == [15.5, 31.0, 46.5]
    assert list(table["largest learning rate"]) == [0.001, 0.002, 0.003]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.0500"), (5.8, "5.80"), (182.4, "182"), (32.0, "32"), (12345.6, "12,346"),
     (float("nan"), ""), (1e-5, "1.00e-05"), (0, "0")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize("empty", [None, pd.NA, float("nan")])
def test_gaps_are_empty(empty):
    assert cell(empty) == ""
