"""Tables say what the run directory says."""

from __future__ import annotations

import io
import json
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial
from report_cases import Made
from rich.console import Console

from hydragnn_flow.report.closing import closing_table
from hydragnn_flow.report.run_files import read_run
from hydragnn_flow.report.tables import accuracy_table, members_table, trials_table
from hydragnn_flow.report.text import cell, number
from hydragnn_flow.report.trials_frame import study_frame


def summary_of(made: Made) -> dict:
    return json.loads((made.directory / "ensemble" / "ensemble.json").read_text())


def printed(table: object) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_trials_best_first_failed_last(finished: Made) -> None:
    table = trials_table(read_run(finished.directory).trials)
    assert list(table.columns)[:4] == ["trial", "state", "validation loss", "mpnn_type"]
    assert list(table.columns)[-3:] == ["epochs", "seconds", "reason"]
    assert {"hidden_dim", "num_gaussians", "learning_rate"} <= set(table.columns)
    losses = table["validation loss"].dropna()
    assert losses.is_monotonic_increasing and len(losses) == 15
    last = table.iloc[-1]
    assert (last["trial"], last["state"], last["epochs"]) == (5, "failed", 1)
    assert last["reason"] == "training loss is nan in epoch 2"
    spent = sum(s["seconds"] for s in finished.segments if s["kind"] == "trial")
    assert table["seconds"].sum() == pytest.approx(spent)


def frame_of(*trials: dict[str, Any], objectives: int = 1) -> pd.DataFrame:
    study = optuna.create_study(directions=["minimize"] * objectives)
    study.add_trials([create_trial(**trial) for trial in trials])
    return study_frame(study, [], ["val.forces", "seconds"][:objectives])


def test_trials_beyond_a_limit_come_after_those_within() -> None:
    values = [(0.1, 1.0), (0.3, 0.0), (0.2, 2.0), (0.4, -1.0)]
    trials = [{"value": value, "constraints": {"seconds": above}} for value, above in values]
    table = trials_table(frame_of(*trials, {"state": TrialState.RUNNING}))
    assert list(table["trial"]) == [1, 3, 0, 2, 4]
    assert list(table["val.forces"])[:4] == [0.3, 0.4, 0.1, 0.2]
    assert list(table["state"])[1:3] == ["complete", "complete, beyond a limit"]


def test_the_front_comes_first_and_is_named() -> None:
    table = trials_table(frame_of({"values": [0.2, 3.0]}, {"values": [0.3, 1.0]},
                                  {"values": [0.25, 4.0]}, objectives=2))  # fmt: skip
    assert list(table["trial"]) == [0, 1, 2]
    assert list(table["state"]) == ["complete, Pareto front"] * 2 + ["complete"]
    assert list(table["training time [s]"]) == [3.0, 1.0, 4.0]


def test_parameters_of_the_same_last_name_keep_their_paths() -> None:
    names = ["Training.rate", "Architecture.rate", "Architecture.hidden_dim", "Own.seconds"]
    domains = {name: IntDistribution(1, 9) for name in names}
    params = dict.fromkeys(names, 3)
    table = trials_table(frame_of({"params": params, "distributions": domains, "value": 1.0}))
    assert list(table.columns) == [
        *("trial", "state", "val.forces"),
        *("Training.rate", "Architecture.rate", "hidden_dim", "Own.seconds"),
        *("epochs", "seconds"),
    ]


def test_no_trials_give_an_empty_table() -> None:
    assert trials_table(frame_of()).empty


def test_accuracy_rows_and_units(finished: Made) -> None:
    summary = summary_of(finished)
    table = accuracy_table(summary).set_index("target")
    assert list(table.index) == ["energy", "energy per atom", "forces"]
    assert list(table["unit"]) == ["eV", "meV/atom", "eV/Å"]
    assert table.loc["energy per atom", "ensemble"] == pytest.approx(
        1000 * summary["test"]["energy"]["mae_per_atom_ensemble"]
    )
    summary["test"]["energy"]["unit"] = "Ha"
    other = accuracy_table(summary).set_index("target")
    assert other.loc["energy per atom", "unit"] == "Ha/atom"
    assert other.loc["energy per atom", "ensemble"] == pytest.approx(
        summary["test"]["energy"]["mae_per_atom_ensemble"]
    )


def test_noise_has_a_column_where_heads_predict_it(finished: Made) -> None:
    summary = summary_of(finished)
    assert "predicted noise" not in accuracy_table(summary)
    summary["test"]["forces"]["aleatoric_std"] = 0.03
    noise = accuracy_table(summary).set_index("target")["predicted noise"]
    assert noise["forces"] == 0.03 and noise.drop("forces").isna().all()


def test_closing_table_in_the_terminal(finished: Made) -> None:
    summary = summary_of(finished)
    summary["test"]["[bold]gap"] = summary["test"].pop("forces")
    text = printed(closing_table(summary))
    for words in (
        "best single member",
        "90 % interval holds",
        "meV/atom",
        "182 s wall",
        "331 s CPU in training trials and members",
    ):
        assert words in text
    assert "[bold]gap" in text
    assert "90.4 %" in text


def test_a_member_cut_short_is_told_with_its_reason(finished: Made) -> None:
    """Below the closing table, and in the report's table of members; the others are not named."""
    summary = summary_of(finished)
    short = summary["members"][1]
    _, _, below = printed(closing_table(summary)).partition("s wall")
    told = " ".join(below.split())
    assert (
        f"member 1 (trial {short['trial']}) was not trained to its end: {short['reason']}" in told
    )
    assert told.count("not trained to its end") == 1
    assert list(members_table(summary)["reason"]) == ["", short["reason"], ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.0500"), (5.8, "5.80"), (182.4, "182"), (32.0, "32"), (12345.6, "12,346"),
     (float("nan"), ""), (1e-5, "1.00e-05"), (0, "0")],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("empty", [None, pd.NA, float("nan")])
def test_gaps_are_empty(empty: object) -> None:
    assert cell(empty) == ""
