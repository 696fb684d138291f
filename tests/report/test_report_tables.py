"""Tables and sentences say what the run directory says."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial
from rich.console import Console

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.ensemble.evaluation.measures import MEASURES
from hydragnn_flow.execution.pools.node_energy import EnergyFile
from hydragnn_flow.report import errors
from hydragnn_flow.report import gcd_time as cost
from hydragnn_flow.report.html import model_card, write_report
from hydragnn_flow.report.tables import cell, shown, terminal
from hydragnn_flow.report.trials_frame import best_table, study_frame, trials_table
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult

HOUR = {"started": 3600.0, "ended": 7200.0, "node": "a", "cpu_seconds": 1800.0}


def summary_of(made):
    return json.loads((made.directory / "ensemble" / "ensemble.json").read_text())


def printed(table, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return " ".join(console.export_text().split())


def segment(**known):
    values: dict[str, Any] = {"kind": "trial", "number": 0, "rung": 0, "status": "ok", **known}
    return SegmentResult(**values)


def frame_of(*trials, objectives=1):
    study = optuna.create_study(directions=["minimize"] * objectives)
    study.add_trials([create_trial(**trial) for trial in trials])
    return study_frame(study, [], ["val.forces", "seconds"][:objectives])


def test_a_column_has_one_heading_wherever_it_is_shown():
    columns = {"share": [1.0, 12345.6], "[red]x": ["−1.0 (−2 to 3)", ""], "y": ["3 s", ""]}
    table = pd.DataFrame(columns)
    headings, rows, left_out = shown(table)
    assert [(of.label, of.is_number) for of in headings] == [
        ("share [%]", True), ("[red]x", True), ("y", False),
    ]  # fmt: skip
    assert headings[0].meaning and rows[1] == ["12,346", "", ""] and left_out == 0
    text = printed(terminal(table, "a [title]"))
    assert "a [title]" in text and "share [%]" in text and "[red]x" in text
    assert shown(pd.DataFrame({"n": range(700)})).left_out == 200


def test_limits_the_front_and_names_twice_given():
    values = [(0.1, 1.0), (0.3, 0.0), (0.2, 2.0), (0.4, -1.0)]
    trials = [{"value": value, "constraints": {"seconds": above}} for value, above in values]
    table = trials_table(frame_of(*trials, {"state": TrialState.RUNNING}))
    assert list(table["trial"]) == [1, 3, 0, 2, 4]
    assert list(table["state"])[1:3] == ["complete", "complete, beyond a limit"]
    front = [{"values": of} for of in ([0.2, 3.0], [0.3, 1.0], [0.25, 4.0])]
    table = trials_table(frame_of(*front, objectives=2))
    assert list(table["state"]) == ["complete, Pareto front"] * 2 + ["complete"]
    assert list(table["training time [s]"]) == [3.0, 1.0, 4.0]
    names = ["Training.rate", "Architecture.rate", "Architecture.hidden_dim", "Own.seconds"]
    known = {name: IntDistribution(1, 9) for name in names}
    params = dict.fromkeys(names, 3)
    frame = frame_of({"params": params, "distributions": known, "value": 1.0})
    assert list(trials_table(frame).columns) == [
        *("trial", "state", "val.forces"),
        *("Training.rate", "Architecture.rate", "hidden_dim", "Own.seconds"),
        *("epochs", "seconds"),
    ]
    assert "Training.rate 3, Architecture.rate 3, hidden_dim 3" in printed(best_table(frame))


def test_every_member_stands_beside_the_ensemble(finished):
    summary = summary_of(finished)
    summary["errors"]["forces"]["aleatoric_std"] = 0.03
    energy = summary["errors"]["energy per atom"]
    energy["mae"]["ensemble"].update(lo=None, hi=None)
    single = f"member {summary['best_member']}"
    energy["change"][str(summary["best_member"])]["value"] = None
    table = errors.errors_frame(summary).set_index("")
    assert list(table) == ["weight", "energy per atom [meV/atom]", "forces [eV/Å]"]
    members = [f"member {k}, trial {10 + k}" for k in range(3)]
    below = [f"against {single}, %", "80 % interval holds", "predicted noise"]
    assert list(table.index) == ["ensemble of 3", *members, *below]
    value, lo, hi = (f"{of:#.3g}" for of in summary["errors"]["forces"]["mae"]["2"].values())
    assert table.loc[members[2], "forces [eV/Å]"] == f"{value} ({lo}–{hi})"
    assert list(table.loc["predicted noise"]) == ["", "", "0.0300 eV/Å"]
    told = table["energy per atom [meV/atom]"]
    assert "(" not in told["ensemble of 3"] and told[below[0]] == ""


def test_the_closing_table_says_where_a_member_errs_less_and_what_was_cut_short(finished):
    summary = summary_of(finished)
    forces = summary["errors"]["forces"]
    forces["mae"]["ensemble"]["value"], forces["mae"]["2"]["value"] = 0.052, 0.0395
    forces["change"]["2"] = {"value": 0.3165, "lo": 0.21, "hi": 0.43}
    summary["failed"] = [{"member": k, "trial": 9, "reason": f"error: {k}"} for k in (1, 7)]
    summary["errors"]["[bold]gap"] = summary["errors"].pop("forces")
    text = printed(errors.closing_table(summary), 80)
    for words in (
        "[bold]gap: the ensemble errs more than member 2, trial 12, "
        "0.0520 against 0.0395 eV/Å, +31.6 (+21.0 to +43.0) %",
        "member 1 (trial 11) was not trained to its end: diverged",
        "member 7 (trial 9) failed",
    ):
        assert words in text
    assert "member 1 (trial 9)" not in text


def test_members_have_the_columns_that_say_something(finished):
    table = errors.members_table(summary_of(finished))
    assert "choice" not in table and list(table["reason"]) == ["", "diverged", "diverged"]
    assert list(table["trained on"]) == ["GCD 0"] * 3 and "gcds" not in table


def test_every_measure_has_a_name_and_its_interval():
    names = [*MEASURES, "mae_flagged", "coverage_90", "width_90", "coverage_99.5", "width_99.5"]
    measures = {name: {"value": 0.5, "lo": 0.25, "hi": 0.75} for name in names}
    measures["r2"] = dict.fromkeys(("value", "lo", "hi"))
    measures["mae"] |= {"lo": None, "hi": None}  # of one structure
    target = {"unit": "eV", "structures": 1, "values": 1234, "measures": measures}
    table = errors.measures_frame({"energy": target}).set_index("measure")
    assert table.index.is_unique and set(table["target"]) == {"energy [eV]"}
    assert table.loc["values", "value"] == "1,234" and table.loc["flagged", "value"] == "0"
    assert table["meaning"].map(bool).all()
    shown = table.drop(columns="meaning")
    assert shown.loc["MAE"].tolist()[1:] == ["0.500", ""]
    assert shown.loc["R2"].tolist()[1:] == ["", ""], "undefined"
    assert shown.loc["99.5 % interval holds"].tolist()[1:] == ["50.0 %", "25.0 % to 75.0 %"]


def test_answers_say_how_good_the_ensemble_is_and_how_sure(finished):
    summary = summary_of(finished)
    sentences = errors.answers(summary)
    assert len(sentences) == len(summary["errors"])
    for sentence, (name, target) in zip(sentences, summary["errors"].items(), strict=True):
        assert sentence.startswith(f"{name}: mean absolute error ")
        spread = f"whose labels have a standard deviation of {cell(target['spread'])}"
        assert f"on {target['structures']:,} structures, {spread}; " in sentence
        assert f"of {summary['coverage'] * 100:g} % intervals hold" in sentence


@pytest.mark.parametrize(
    ("lo", "hi", "words"),
    [
        (-0.276, 0.058, "does not clearly differ from"),
        (-0.276, -0.058, "errs less than"),
        (0.01, 0.2, "errs more than"),
        (None, None, "does not clearly differ from"),
    ],
)
def test_a_difference_is_told_where_its_interval_leaves_no_doubt(finished, lo, hi, words):
    """Of the best by validation in the headline; of one that is best by chance only below."""
    summary = summary_of(finished)
    forces, single = summary["errors"]["forces"], str(summary["best_member"])
    other = next(key for key in forces["change"] if key != single)
    forces["mae"][other]["value"] = 0.9 * min(of["value"] for of in forces["mae"].values())
    forces["change"][single] = {"value": -0.16, "lo": lo, "hi": hi}
    forces["change"][other] = {"value": 0.15, "lo": -0.18, "hi": 0.47}
    headline = errors.answers(summary)[-1]
    assert f"the ensemble {words} member {single}, the best single network in valid" in headline
    assert f"member {other}" not in headline
    below = errors.explained(summary)[-1]
    assert below.startswith(f"forces: the ensemble does not clearly differ from member {other}")
    forces["change"][other] = {"value": 0.15, "lo": 0.05, "hi": 0.47}
    assert f"errs more than member {other}: +15.0 (+5.0 to" in errors.answers(summary)[-1]


def test_suspicious_structures_are_told_again_at_the_end(finished, tmp_path):
    worst = [
        {"where": f"a.csv: structure {n}", "why": "gap is 7.2 from the median"} for n in (2, 3)
    ]
    found = {"structures": 2, "of": 59, "worst": worst, "all": [], "left_out": False}
    summary = summary_of(finished)
    assert not errors.doubted(summary)
    summary |= {"suspicious": found, "lacking": {"trainset": {"gap": 1}, "valset": {"gap": 2}}}
    [told] = errors.doubted(summary)
    assert told == (
        "suspicious structures: 2 of 59, the worst: a.csv: structure 2: "
        "gap is 7.2 from the median; labels that are missing, or far off and masked: 3"
    )
    assert f"{told}; see Data in the report" in printed(errors.closing_table(summary), 80)
    run = Path(shutil.copytree(finished.directory, tmp_path / "run"))
    (run / "ensemble" / "ensemble.json").write_text(json.dumps(summary))
    page = write_report(run).read_text(encoding="utf-8")
    assert f'<p>{told}; <a href="#data">' in page[: page.index("<nav")]
    kept = run / "ensemble" / "manifest.json"
    manifest = json.loads(kept.read_text())
    manifest["provenance"]["suspicious"] = found
    kept.write_text(json.dumps(manifest))
    assert "* suspicious structures, not left out: 2 of 59\n" in model_card(run, "out")


def test_failures_of_like_reasons_are_together():
    lost = [
        segment(number=n, status="lost", reason=f"node n{n} is gone", seconds=360.0, gcds=["0"])
        for n in range(10)
    ]
    other = segment(kind="member", number=1, status="out_of_memory", reason="3.5 GiB")
    well = [segment(), segment(status="interrupted", reason="asked to stop")]
    table = cost.failures_table([*well, other, *lost])
    assert table.iloc[0].tolist() == [
        "lost", "node n9 is gone", 10, pytest.approx(1.0), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more",
    ]  # fmt: skip
    assert table.iloc[1][["end", "of"]].tolist() == ["out of memory", "M1"]
    assert cost.failures_table(well).empty


def test_hours_of_a_shared_gcd_count_once_and_of_a_gang_for_each_node():
    shared = [segment(gcds=["0"], **HOUR, joules=2.0), segment(gcds=["0"], **HOUR)]
    gang = segment(kind="member", gcds=["1", "b/0"], **HOUR, peak_memory_gib=3.0)
    of = cost.cost_of([*shared, gang, segment(status="lost")])
    assert (of["gcd_hours"], of["node_hours"], of["joules"], of["uncounted"]) == (3.0, 2.0, 2.0, 2)
    assert (of["cpu_seconds"], of["peak_memory_gib"]) == (5400.0, 3.0)
    table = cost.cost_table([*shared, gang, segment(status="lost")])
    assert list(table["GCD-hours"]) == [1.0, 2.0, 3.0]
    words = ["2 J, 1 segments not counted", "not counted", "2 J, 2 segments not counted"]
    assert list(table["energy"]) == words
    assert "GPUs active" not in table, "nothing measured it"
    seen = [replace(one, active=part) for one, part in zip(shared, (0.2, 0.4), strict=True)]
    assert cost.cost_table([*seen, gang])["GPUs active"][2] == pytest.approx(0.3)
    counted = [replace(s, joules=3.6e6) for s in (*shared, gang)]
    assert cost.cost_table(counted)["energy"][2] == "3 kWh"


def test_energy_is_that_of_segments_and_of_nodes_as_far_as_it_is_known(tmp_path):
    """Three hours of a node, 1.2 kW while two segments of half a kilowatt-hour are at work."""
    well = [segment(joules=1.8e6, started=1.0, ended=2.0, gcds=["0"])] * 2
    unknown, told = cost.nodes_cost(tmp_path), cost.energy_sentences
    assert "nothing here counts it" in told({"joules": None, "uncounted": 0} | unknown)
    EnergyFile(tmp_path).record([("a", Reading(7.2e6, 10_800.0, "NVML + RAPL"))])
    nodes = cost.nodes_cost(tmp_path)
    first = "Energy: 2 kWh of the nodes in 3 node-hours, counted by NVML + RAPL"
    assert told(cost.cost_of(well) | nodes).startswith(f"{first}; 1 kWh in segments (50.0 %)")
    directory = RunDirectory(tmp_path)
    assert cost.rest_watts(directory) is None, "of no segment is the energy known"
    directory.record([*well, segment(status="lost")])
    assert cost.rest_watts(directory) == pytest.approx(3.6e6 / 10_800)
    directory.record([segment(joules=7.2e6, started=1.0, ended=2.0, gcds=["0"])])
    assert cost.rest_watts(directory) is None, "segments use no more than their nodes"


def test_numbers():
    for value, text in (
        *((0.05, "0.0500"), (5.8, "5.80"), (182.4, "182"), (32.0, "32"), (12345.6, "12,346")),
        *((float("nan"), ""), (1e-5, "1.00e-05"), (0, "0"), (None, ""), (pd.NA, "")),
    ):
        assert cell(value) == text
