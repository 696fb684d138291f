"""The criterion: the same number from sums and from predictions, which no single atom decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_cases import NETWORK, network_with
from torch_geometric.data import Data

from hydragnn_flow.config import load_network
from hydragnn_flow.config.run import CriterionName
from hydragnn_flow.data import GraphStore, Target, write_store
from hydragnn_flow.training import trivial
from hydragnn_flow.training.batching import Budget
from hydragnn_flow.training.criterion import Criterion
from hydragnn_flow.training.losses import Counts, Loss
from hydragnn_flow.training.metrics import Metrics
from hydragnn_flow.training.predict import split_batches
from hydragnn_flow.training.trivial import trivial_errors

UNITS = {"energy": 0.2, "forces": 0.5}
PER_ATOM = frozenset({"energy"})


def labels_of(store: GraphStore) -> dict[str, Any]:
    return {name: store["valset"].target(name) for name in UNITS}


def criterion(name: CriterionName, store: GraphStore) -> Criterion:
    return Criterion.of(load_network(NETWORK), store.manifest, UNITS, name)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["mae", "rmse"]),
    st.integers(0, 10_000),
    st.integers(1, 6),
)
def test_sums_of_batches_and_predictions_give_one_number(
    alloy_store: GraphStore, name: CriterionName, seed: int, graphs: int
) -> None:
    """However the graphs are divided into batches."""
    val, judged = alloy_store["valset"], criterion(name, alloy_store)
    rng = np.random.default_rng(seed)
    labels = labels_of(alloy_store)
    predictions = {key: values + rng.normal(size=values.shape) for key, values in labels.items()}
    metrics = Metrics(
        Loss(load_network(NETWORK), alloy_store.manifest).targets, alloy_store.manifest, name
    )
    sums, done = torch.zeros(len(metrics), dtype=torch.float64), {"energy": 0, "forces": 0}
    for batch in split_batches(val, Budget(graphs=graphs)):
        rows = {"energy": batch.num_graphs, "forces": batch.num_nodes}
        outputs = {
            key: torch.from_numpy(predictions[key][done[key] : done[key] + n])
            for key, n in rows.items()
        }
        done = {key: done[key] + n for key, n in rows.items()}
        sums += metrics.sums(outputs, batch)
    counts = Counts(len(val), int(val.n_atoms.sum()))
    by_sums = judged.of_metrics(metrics.means(sums.tolist(), counts))
    stacked = {key: values[None] for key, values in predictions.items()}
    by_predictions = judged.of_predictions(stacked, labels, val.n_atoms)
    np.testing.assert_allclose(by_predictions, [by_sums], rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(["mae", "rmse"]), st.integers(0, 10_000))
def test_of_a_weighted_mean_it_is_that_of_its_predictions(
    alloy_store: GraphStore, name: CriterionName, seed: int
) -> None:
    judged, val = criterion(name, alloy_store), alloy_store["valset"]
    rng, labels = np.random.default_rng(seed), labels_of(alloy_store)
    many = {key: values + rng.normal(size=(3, *values.shape)) for key, values in labels.items()}
    weights = rng.dirichlet(np.ones(3))
    residuals, shares = judged.residuals(many, labels, val.n_atoms)
    mean = {key: np.einsum("k,knd->nd", weights, values)[None] for key, values in many.items()}
    found = judged.of_residuals(weights @ residuals, shares)
    np.testing.assert_allclose(found, judged.of_predictions(mean, labels, val.n_atoms)[0])


def test_one_atom_decides_by_squares_only(alloy_store: GraphStore) -> None:
    labels, val = labels_of(alloy_store), alloy_store["valset"]
    even = {key: values + 0.1 for key, values in labels.items()}
    dented = {key: values + 0.05 for key, values in labels.items()}
    dented["forces"][0] += 2.0  # one atom of dozens; all else is twice as good
    candidates = {key: np.stack([even[key], dented[key]]) for key in labels}
    by_mae = criterion("mae", alloy_store).of_predictions(candidates, labels, val.n_atoms)
    by_rmse = criterion("rmse", alloy_store).of_predictions(candidates, labels, val.n_atoms)
    assert by_mae.argmin() == 1
    assert by_rmse.argmin() == 0


def test_elements_without_a_label_are_left_out() -> None:
    judged = Criterion("mae", {"stress": 2.0, "energy": 0.5}, PER_ATOM)
    labels = {"stress": np.array([[1.0] * 6, [np.nan] * 6]), "energy": np.array([[4.0], [6.0]])}
    predictions = {
        "stress": np.array([[[2.0] * 6, [np.nan] * 6]]),
        "energy": np.array([[[5.0], [6.0]]]),
    }
    residuals, shares = judged.residuals(predictions, labels, np.array([2, 3]))
    assert residuals.shape == (1, 8)
    assert shares.sum() == pytest.approx((1 / 2.0 + 1 / 0.5) / 2)
    assert judged.of_residuals(residuals, shares) == pytest.approx((1 / 2.0 + 0.25 / 0.5) / 2)


def test_a_candidate_that_predicts_no_number_is_the_worst() -> None:
    judged = Criterion("mae", {"energy": 1.0}, frozenset())
    labels = {"energy": np.zeros((2, 1))}
    predictions = {"energy": np.array([[[1e9], [0.0]], [[np.nan], [0.0]]])}
    assert judged.of_predictions(predictions, labels, np.ones(2)).tolist() == [5e8, np.inf]


def test_only_targets_of_some_weight_are_judged(alloy_store: GraphStore) -> None:
    network = load_network(network_with(Architecture__force_weight=0.0))
    found = Criterion.of(network, alloy_store.manifest, UNITS)
    assert (dict(found.trivial_errors), found.per_atom) == ({"energy": 0.2}, PER_ATOM)


@pytest.mark.parametrize(("name", "power"), [("mae", 1), ("rmse", 2)])
def test_the_trivial_predictor_knows_elements_and_means(
    alloy_store: GraphStore, name: CriterionName, power: int
) -> None:
    train, manifest = alloy_store["trainset"], alloy_store.manifest
    found = trivial_errors(train, manifest, name)
    forces = train.target("forces")
    errors = np.abs(forces - forces.mean(axis=0))
    assert found["forces"] == pytest.approx(np.mean(errors**power) ** (1 / power))
    energies = manifest.statistics.element_energies
    left = [
        (float(graph.energy) - sum(energies[int(z)] for z in graph.x[:, 0])) / graph.num_nodes
        for graph in train
    ]
    assert found["energy"] == pytest.approx(np.mean(np.abs(left) ** power) ** (1 / power))


def property_store(path: Path, values: Sequence[float], *, extensive: bool = False) -> GraphStore:
    """A graph of one to three atoms for each value."""
    graphs = [
        Data(
            x=torch.full((1 + n % 3, 1), 6.0),
            pos=torch.zeros((1 + n % 3, 3)),
            edge_index=torch.zeros((2, 0), dtype=torch.int64),
            gap=torch.tensor([[value]], dtype=torch.float64),
        )
        for n, value in enumerate(values)
    ]
    targets = {"gap": Target(level="graph", dim=1, extensive=extensive)}
    return write_store(
        path, {"trainset": graphs, "valset": graphs[:1]}, targets=targets, cutoff=1.0
    )


@pytest.mark.parametrize(("values", "unit"), [([-4.0] * 6, 4.0), ([0.0] * 6, 1.0)])
def test_labels_that_do_not_vary_have_a_finite_unit(
    tmp_path: Path, values: list[float], unit: float
) -> None:
    store = property_store(tmp_path / "store", values)
    assert trivial_errors(store["trainset"], store.manifest) == {"gap": unit}


def test_of_a_sum_over_atoms_the_mean_per_atom_is_predicted(tmp_path: Path) -> None:
    values = [2.0, 3.0, 9.0, 1.0, 5.0, 6.0]
    store = property_store(tmp_path / "store", values, extensive=True)
    atoms = np.array([1, 2, 3, 1, 2, 3])
    errors = np.abs(np.array(values) / atoms - sum(values) / atoms.sum())
    assert trivial_errors(store["trainset"], store.manifest)["gap"] == pytest.approx(errors.mean())


def test_a_large_split_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trivial, "_MOST_GRAPHS", 8)
    monkeypatch.setattr(trivial, "_RUN", 2)
    runs = [run.tolist() for run in trivial._spread(99)]
    assert [run[0] for run in runs] == sorted({run[0] for run in runs})
    assert (runs[0], runs[-1], len(runs)) == ([0, 1], [98], 4)
    assert [run.tolist() for run in trivial._spread(5)] == [[0, 1], [2, 3], [4]]
