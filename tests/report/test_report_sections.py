"""What the page lists beside figures: worst structures, failures, cost, data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_cases import MANIFEST, predictions

from hydragnn_flow.energy_counters import Reading
from hydragnn_flow.execution.pools.node_energy import EnergyFile
from hydragnn_flow.report.cost import (
    cost_of,
    cost_sentence,
    energy_sentences,
    nodes_cost,
    rest_watts,
)
from hydragnn_flow.report.data_card import data_card
from hydragnn_flow.report.failures import failures_table
from hydragnn_flow.report.tables import cost_table
from hydragnn_flow.report.target_values import targets_of
from hydragnn_flow.report.worst import WORST, flagged_sentence, worst_structures
from hydragnn_flow.run_directory import RunDirectory
from hydragnn_flow.segment import SegmentResult


def segment(**known):
    values: dict[str, Any] = {"kind": "trial", "number": 0, "rung": 0, "status": "ok", **known}
    return SegmentResult(**values)


def test_the_worst_structures_are_those_with_the_largest_errors():
    graphs, nodes = predictions(np.random.default_rng(0), graphs=20)
    graphs["formula"], graphs["note"] = [f"Cu{n}" for n in range(20)], ""
    worst, of_forces = graphs["graph_id"][7], graphs["graph_id"][3]
    graphs.loc[7, "energy_mean"] = graphs["energy"][7] + 9.0
    atom = nodes.index[nodes["graph_id"] == of_forces][2]
    nodes.loc[atom, "forces_z_mean"] = nodes["forces_z"][atom] - 30.0
    n_atoms = nodes.groupby("graph_id").size()
    table = worst_structures([*targets_of(graphs), *targets_of(nodes)], graphs, n_atoms)
    assert len(table) == 2 * WORST and "note" not in table
    energy, forces = (table[table["target"] == name].iloc[0] for name in
                      ("energy [eV]", "forces [eV/Å]"))  # fmt: skip
    assert (energy["structure"], energy["formula"]) == (str(worst), "Cu7")
    assert energy["|error|"] == energy["largest"] == pytest.approx(9.0)
    assert energy["|error| / deviation"] == pytest.approx(9.0 / graphs["energy_std"][7])
    assert (forces["structure"], forces["largest"]) == (str(of_forces), pytest.approx(30.0))
    assert forces["atoms"] == n_atoms[of_forces]
    assert worst_structures([], None, None).empty


def test_flagged_structures_are_counted_with_their_notes():
    graphs, _ = predictions(np.random.default_rng(0), graphs=20)
    assert flagged_sentence(graphs) == flagged_sentence(None) == ""
    graphs["note"], graphs["flagged"] = "", False
    assert flagged_sentence(graphs).endswith("unlike the training data.")
    graphs.loc[3:5, "flagged"], graphs.loc[3:5, "note"] = True, ["far", "near", "far"]
    assert flagged_sentence(graphs) == (
        "3 of 20 test structures are flagged as unlike the training data: far (2); near (1)."
    )


def test_failures_of_like_reasons_are_together():
    lost = [
        segment(number=n, status="lost", reason=f"node n{n} is gone", seconds=360.0, gcds=["0"])
        for n in range(10)
    ]
    other = segment(kind="member", number=1, status="out_of_memory", reason="3.5 GiB")
    well = [segment(), segment(status="interrupted", reason="asked to stop")]
    table = failures_table([*well, other, *lost])
    assert list(table["segments"]) == [10, 1]
    assert list(table["end"]) == ["lost", "out of memory"]
    assert table["reason"][0] == "node n9 is gone"
    assert table["GCD-hours"][0] == pytest.approx(1.0)
    assert list(table["of"]) == ["0, 1, 2, 3, 4, 5, 6, 7 and 2 more", "M1"]
    assert failures_table(well).empty


def test_hours_of_a_shared_gcd_count_once_and_of_a_gang_for_each_node():
    hour = {"started": 3600.0, "ended": 7200.0, "node": "a", "cpu_seconds": 1800.0}
    shared = [segment(gcds=["0"], **hour, joules=2.0), segment(gcds=["0"], **hour)]
    gang = segment(kind="member", gcds=["1", "b/0"], **hour, peak_memory_gib=3.0)
    lost = segment(status="lost")
    cost = cost_of([*shared, gang, lost])
    assert (cost["gcd_hours"], cost["node_hours"]) == (3.0, 2.0)
    assert (cost["joules"], cost["uncounted"]) == (2.0, 2)
    assert (cost["cpu_seconds"], cost["peak_memory_gib"]) == (5400.0, 3.0)
    table = cost_table([*shared, gang, lost]).set_index("")
    assert list(table["GCD-hours"]) == [1.0, 2.0, 3.0]
    assert list(table["energy"]) == [
        "2 J, 1 segments not counted",
        "not counted",
        "2 J, 2 segments not counted",
    ]
    counted = [replace(s, joules=3.6e6) for s in (*shared, gang)]
    assert cost_table(counted)["energy"][2] == "3 kWh"


def test_what_is_known_of_the_energy_is_said(tmp_path):
    """Three hours of a node, 1.2 kW while two segments of half a kilowatt-hour are at work."""
    well = [segment(joules=1.8e6, started=1.0, ended=2.0, gcds=["0"])] * 2
    nothing = {"joules": None, "uncounted": 0}
    unknown = nodes_cost(tmp_path)
    assert energy_sentences(nothing | unknown) == "Energy: nothing here counts it."
    own = cost_of(well) | unknown
    assert energy_sentences(own).startswith("Energy: 1 kWh in segments. What the nodes used beside")
    EnergyFile(tmp_path).record([("a", Reading(7.2e6, 10_800.0, "NVML + RAPL"))])
    nodes = nodes_cost(tmp_path)
    told = energy_sentences(cost_of(well) | nodes)
    assert told.startswith("Energy: 2 kWh of the nodes in 3 node-hours, counted by NVML + RAPL ")
    assert "Of it 1 kWh (50.0 %) were used in segments" in told
    partly = cost_of([*well, segment(started=1.0, ended=2.0, gcds=["0"])]) | nodes
    assert energy_sentences(partly).endswith("In segments: 1 kWh, 1 segments not counted.")
    assert "segments used, nothing here counts" in energy_sentences(nothing | nodes)
    directory = RunDirectory(tmp_path)
    assert rest_watts(directory) is None, "of no segment is the energy known"
    directory.record([*well, segment(status="lost")])
    assert rest_watts(directory) == pytest.approx(3.6e6 / 10_800)
    directory.record([segment(joules=7.2e6, started=1.0, ended=2.0, gcds=["0"])])
    assert rest_watts(directory) is None, "segments use no more than their nodes"
    summary = {**cost_of(well), **nodes, "wall_seconds": 1.0}
    assert cost_sentence(summary).endswith("1 kWh · 2 kWh of the nodes, idle included")
    assert cost_sentence({**cost_of(well), "wall_seconds": 1.0}).endswith(" · 1 kWh")


def test_the_data_card_names_what_is_known():
    card = dict(data_card(MANIFEST))
    assert card["source"] == "format emt_alloys, elements Cu Ni"
    assert (
        card["target energy"] == "eV, per structure, mean 4.60, standard deviation 4.61 in training"
    )
    assert card["target forces"] == "eV/Å, per atom, 3 components"
    assert card["cutoff"] == "5 Å"
    assert card["duplicates"] == "trainset 2"
    assert not {"left out", "division", "in place"} & card.keys()
    there = {**MANIFEST, "provenance": {**MANIFEST["provenance"], "in_place": True}}
    assert "duplicates were not looked for" in dict(data_card(there))["in place"]
