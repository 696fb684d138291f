"""The benchmark of accuracy judges by seeds, and HydraGNN's side gets what ours gets."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from graph_store.workspace import in_fresh_process
from model_accuracy.hydragnns import _graph, _Targets
from model_accuracy.outcome import Outcome, errors
from model_accuracy.report import Row, remarks, tables
from model_accuracy.sets import CONTESTS, SETS, Contest, network
from model_accuracy.trainings import Trainings

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network

POTENTIAL = Contest("acac", "PAINN", 10)
PROPERTY = Contest("perov_5", "PNA", 10, lengths=True, one_hot=True)


def outcomes(*forces: float | None) -> list[Outcome]:
    """Trainings with energies as good as their forces; None for one that was NaN."""
    return [
        Outcome(10.0, 5, 4, None if error is None else (error, error), "" if error else "NaN")
        for error in forces
    ]


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.name)
def test_both_sides_get_a_network_that_the_package_takes(contest: Contest) -> None:
    architecture = load_network(network(contest)).Architecture
    assert architecture.mpnn_type == contest.mpnn_type
    assert bool(architecture.edge_features) == contest.lengths


def test_a_side_is_ahead_beyond_two_standard_errors_only() -> None:
    rows = [
        Row(POTENTIAL, outcomes(1.0, 1.1, 1.2), outcomes(2.0, 2.1, 2.2)),
        Row(POTENTIAL, outcomes(1.0, 1.5, 2.0), outcomes(1.2, 1.8, 2.2)),
        Row(POTENTIAL, outcomes(2.0, 2.1, 2.2), outcomes(1.0, 1.1, 1.2)),
        Row(POTENTIAL, outcomes(1.0), outcomes(2.0)),
    ]
    (table,) = tables(rows)
    assert [row[6] for row in table.rows] == 2 * ["ahead"] + 2 * ["equal"] + 2 * ["behind"] + [
        ""
    ] * 2
    assert remarks(rows, [])[0] == "behind HydraGNN: acac:PAINN, energy; acac:PAINN, forces"


def test_nan_is_told() -> None:
    rows = [Row(POTENTIAL, outcomes(1.0, 1.1), outcomes(None, None))]
    (table,) = tables(rows)
    assert table.rows[0][4] == "NaN" and table.rows[0][6] == ""
    assert "2 of 2 trainings ended early: NaN; NaN" in remarks(rows, [])[1]


def test_a_training_is_done_once_for_each_code(tmp_path: Path) -> None:
    path, done = tmp_path / "runs" / "trainings.jsonl", []

    def train() -> Outcome:
        done.append(1)
        return Outcome(1.5, 3, 2, (0.1, 0.2), "why")

    first = Trainings(path, "code").get({"seed": 0}, train)
    with path.open("a") as file:
        file.write('{"training": {"se')  # the program was killed
    assert Trainings(path, "code").get({"seed": 0}, train) == first
    assert len(done) == 1
    Trainings(path, "code").get({"seed": 1}, train)
    Trainings(path, "other code").get({"seed": 0}, train)
    assert len(done) == 3


def test_what_hydragnn_learns_is_undone(alloy_store: GraphStore) -> None:
    """Composition explains most of an energy, and is taken from it as HydraGNN's script does."""
    train, test = alloy_store["trainset"], alloy_store["testset"]
    targets = _Targets(train, "energy", potential=True)
    elements = [28, 29, 46, 47, 78, 79]
    graphs = [_graph(test[index], POTENTIAL, targets, elements) for index in range(len(test))]
    learnt = np.array([[float(graph.energy)] for graph in graphs])
    energies = np.array([float(test[index].energy) for index in range(len(test))])
    np.testing.assert_allclose(targets.undo(learnt, test)[:, 0], energies, atol=1e-5)
    assert learnt.std() < energies.std()


def test_hydragnn_gets_lengths_and_a_column_for_each_element(alloy_store: GraphStore) -> None:
    train = alloy_store["trainset"]
    targets = _Targets(train, "energy", potential=False)
    graph = train[0]
    made = _graph(graph, PROPERTY, targets, [28, 29, 46, 47, 78, 79])
    assert made.x.sum(dim=1).eq(1).all() and made.x.shape[1] == 6
    assert made.edge_attr.min() > 0 and made.edge_attr.max() <= 4.0
    assert "edge_attr" not in _graph(graph, POTENTIAL, targets, [28])


def test_errors_are_in_the_units_of_their_measures(alloy_store: GraphStore) -> None:
    split = alloy_store["testset"]
    energies = np.array([[float(split[index].energy)] for index in range(len(split))])
    forces = np.concatenate([split[index].forces.numpy() for index in range(len(split))])
    predictions = {"energy": energies + 0.001 * split.n_atoms[:, None], "forces": forces + 0.5}
    found = errors(SETS["Si"], split, predictions)
    np.testing.assert_allclose(found, [1.0, 0.5], rtol=1e-4)


@pytest.mark.slow
def test_a_process_of_its_own_answers_raises_or_dies() -> None:
    assert in_fresh_process(abs, -2) == 2
    with pytest.raises(ValueError, match="negative"):
        in_fresh_process(math.isqrt, -2)
    with pytest.raises(RuntimeError, match="_exit ended with 3"):
        in_fresh_process(os._exit, 3)
