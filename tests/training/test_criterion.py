"""The criterion: the same number from sums and from predictions, which no single atom decides."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_cases import NETWORK, changed, make_spec, network_with
from torch_geometric.data import Data
from training_cases import kept_in, member_of, same, segment, stops_at

from hydragnn_flow.config import load_network
from hydragnn_flow.data import Target, write_store
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.measures.criterion import Criterion, trivial_errors
from hydragnn_flow.training.measures.losses import Loss
from hydragnn_flow.training.measures.metrics import Metrics
from hydragnn_flow.training.predict import (
    predict_batches,
    restore_model,
    split_batches,
)
from hydragnn_flow.training.runner import run_segment

UNITS = {"energy": 0.2, "forces": 0.5}
PER_ATOM = frozenset({"energy"})


@pytest.fixture(scope="module")
def labels(alloy_store):
    return {name: alloy_store["valset"].target(name) for name in UNITS}


def with_errors(labels, seed, *shape):
    """Predictions that are wrong, and the generator that made them so."""
    rng = np.random.default_rng(seed)
    return {key: v + rng.normal(size=(*shape, *v.shape)) for key, v in labels.items()}, rng


def criterion(name, store):
    return Criterion.of(load_network(NETWORK), store.manifest, UNITS, name)


def errors_of(judged, predictions, labels, n_atoms):
    residuals, shares, _ = judged.residuals(predictions, labels, n_atoms)
    return Judged(residuals, shares, judged.power).criterion(residuals)


def summed(metrics, batches, predictions):
    """The errors of predictions of the energies and forces of a split, batch by batch."""
    sums, done = torch.zeros(metrics.shape, dtype=torch.float64), {"energy": 0, "forces": 0}
    for batch in batches:
        rows = {"energy": batch.num_graphs, "forces": batch.num_nodes}
        outputs = {
            key: torch.from_numpy(predictions[key][done[key] : done[key] + n])
            for key, n in rows.items()
        }
        done = {key: done[key] + n for key, n in rows.items()}
        sums += metrics.sums(outputs, batch)
    return metrics.means(sums)


@settings(max_examples=10)
@given(st.sampled_from(["mae", "rmse"]), st.integers(0, 10_000), st.integers(1, 6))
def test_sums_of_batches_and_predictions_give_one_number(alloy_store, labels, name, seed, graphs):
    """However the graphs are divided into batches."""
    val, judged = alloy_store["valset"], criterion(name, alloy_store)
    predictions, _ = with_errors(labels, seed)
    loss = Loss(load_network(NETWORK), alloy_store.manifest)
    metrics = Metrics(loss.targets, alloy_store.manifest, name)
    by_sums = judged.of_metrics(summed(metrics, split_batches(val, graphs), predictions))
    stacked = {key: values[None] for key, values in predictions.items()}
    by_predictions = errors_of(judged, stacked, labels, val.n_atoms)
    np.testing.assert_allclose(by_predictions, [by_sums], rtol=1e-6)


@settings(max_examples=10)
@given(st.sampled_from(["mae", "rmse"]), st.integers(0, 10_000))
def test_of_a_weighted_mean_it_is_that_of_its_predictions(alloy_store, labels, name, seed):
    judged, n_atoms = criterion(name, alloy_store), alloy_store["valset"].n_atoms
    many, rng = with_errors(labels, seed, 3)
    weights = rng.dirichlet(np.ones(3))
    residuals, shares, _ = judged.residuals(many, labels, n_atoms)
    mean = {key: np.einsum("k,knd->nd", weights, values)[None] for key, values in many.items()}
    found = Judged(residuals, shares, judged.power).criterion(weights @ residuals)
    np.testing.assert_allclose(found, errors_of(judged, mean, labels, n_atoms)[0])


def test_elements_without_a_label_are_left_out():
    judged = Criterion("mae", {"stress": 2.0, "energy": 0.5}, PER_ATOM)
    labels = {"stress": np.array([[1.0] * 6, [np.nan] * 6]), "energy": np.array([[4.0], [6.0]])}
    predictions = {
        "stress": np.array([[[2.0] * 6, [np.nan] * 6]]),
        "energy": np.array([[[5.0], [6.0]]]),
    }
    residuals, shares, _ = judged.residuals(predictions, labels, np.array([2, 3]))
    assert residuals.shape == (1, 8)
    assert shares.sum() == pytest.approx((1 / 2.0 + 1 / 0.5) / 2)
    found = Judged(residuals, shares).criterion(residuals)
    assert found == pytest.approx((1 / 2.0 + 0.25 / 0.5) / 2)


def test_a_candidate_that_predicts_no_number_is_the_worst():
    judged = Criterion("mae", {"energy": 1.0}, frozenset())
    labels = {"energy": np.zeros((2, 1))}
    predictions = {"energy": np.array([[[1e9], [0.0]], [[np.nan], [0.0]]])}
    assert errors_of(judged, predictions, labels, np.ones(2)).tolist() == [5e8, np.inf]


def test_only_targets_of_some_weight_are_judged(alloy_store):
    network = load_network(network_with(Architecture__force_weight=0.0))
    found = Criterion.of(network, alloy_store.manifest, UNITS)
    assert (dict(found.trivial_errors), found.per_atom) == ({"energy": 0.2}, PER_ATOM)


@pytest.mark.parametrize(("name", "power"), [("mae", 1), ("rmse", 2)])
def test_the_trivial_predictor_knows_elements_and_means(alloy_store, name, power):
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


@pytest.mark.parametrize(
    ("values", "extensive", "unit"),
    [
        ([-4.0] * 6, False, 4.0),  # labels that do not vary
        ([0.0] * 6, False, 1.0),
        # Of a sum over atoms the mean per atom is predicted: 26 of 12 atoms.
        ([2.0, 3.0, 9.0, 1.0, 5.0, 6.0], True, np.mean([1, 4, 5, 7, 2, 1]) / 6),
    ],
)
def test_units_of_a_property(tmp_path, values, extensive, unit):
    """Of graphs of one to three atoms."""
    graphs = [
        Data(
            x=torch.full((1 + n % 3, 1), 6.0),
            pos=torch.zeros((1 + n % 3, 3)),
            edge_index=torch.zeros((2, 0), dtype=torch.int64),
            gap=torch.tensor([[value]], dtype=torch.float64),
        )
        for n, value in enumerate(values)
    ]
    splits = {"trainset": graphs, "valset": graphs[:1]}
    targets = {"gap": Target(level="graph", dim=1, extensive=extensive)}
    store = write_store(tmp_path / "store", splits, targets=targets, cutoff=1.0)
    found = trivial_errors(store["trainset"], store.manifest)["gap"]
    assert found == pytest.approx(unit, rel=1e-12)


def judged_by(monkeypatch, *errors):
    """Have the criterion be these numbers, one after the other."""
    left = iter(errors)
    monkeypatch.setattr(Criterion, "of_metrics", lambda *_: next(left))


def continued(folder, trial, until_epoch):
    """A member that goes on from a trial, and how that ended."""
    folder.mkdir()
    spec = changed(trial, directory=str(folder), until_epoch=until_epoch, **member_of(trial))
    return spec, run_segment(spec)


@pytest.mark.parametrize("name", ["mae", "rmse"])
def test_training_measures_what_its_predictions_say(tmp_path, alloy_store, labels, name):
    spec = make_spec(tmp_path / "t", alloy_store, 3, criterion=name)
    result = run_segment(spec)
    units = trivial_errors(alloy_store["trainset"], alloy_store.manifest, name)
    judged = Criterion.of(spec.network, alloy_store.manifest, units, name)
    stacked = {key: values[None] for key, values in kept_in(spec.folder).items()}
    (error,) = errors_of(judged, stacked, labels, alloy_store["valset"].n_atoms)
    assert result.best_val_error == pytest.approx(error, rel=1e-5)
    assert result.best_val_error == min(row[3] for row in result.history)
    assert ("forces_rmse" in result.metrics) == (name == "rmse")


def test_the_criterion_and_not_the_loss_chooses_the_epoch(tmp_path, alloy_store, monkeypatch):
    judged_by(monkeypatch, 0.9, 0.2, 0.5, 0.4)
    result = run_segment(make_spec(tmp_path / "t", alloy_store, 4))
    assert (result.best_epoch, result.best_val_error) == (2, 0.2)
    assert result.best_val_loss == result.history[1][2] > min(row[2] for row in result.history)


def test_an_early_dip_of_its_trial_does_not_outlive_a_members_training(
    tmp_path, alloy_store, monkeypatch
):
    judged_by(monkeypatch, 0.001, 0.9, 0.5, 0.4, 0.45)  # two epochs, two more, the last weights
    trial = make_spec(tmp_path / "t", alloy_store, 2)
    assert run_segment(trial).best_val_error == 0.001
    spec, result = continued(tmp_path / "m", trial, 4)
    assert (result.best_epoch, result.best_val_error) == (4, 0.4)
    state = load_checkpoint(spec.folder / FILE)
    averaged = state["average"]["weights"]
    assert same({key: state["best"][key] for key in averaged}, averaged)


def test_later_weights_count_as_long_as_chance_explains_them(tmp_path, alloy_store, monkeypatch):
    limit = 0.2 * (1 + len(alloy_store["valset"]) ** -0.5)
    # The trial's epoch, three of the member's, and its last weights without average.
    judged_by(monkeypatch, 0.1, 0.2, limit - 1e-6, limit + 1e-6, limit)
    trial = make_spec(tmp_path / "t", alloy_store, 1)
    run_segment(trial)
    _, result = continued(tmp_path / "m", trial, 4)
    assert (result.best_epoch, result.best_val_error) == (3, limit - 1e-6)


def test_early_stopping_keeps_a_members_smallest_error(tmp_path, alloy_store, monkeypatch):
    judged_by(monkeypatch, 0.2, *[0.201] * 8)
    stopping = {"Training__EarlyStopping": True, "Training__patience": 2}
    member = changed(segment(tmp_path / "t", alloy_store, 8, **stopping), kind="member")
    result = run_segment(member)
    assert (result.to_epoch, result.best_epoch) == (3, 1)


def test_the_last_weights_of_a_member_compete_as_they_are(tmp_path, alloy_store, monkeypatch):
    judged_by(monkeypatch, 0.9, 0.5, 0.3)
    trial = make_spec(tmp_path / "t", alloy_store, 1)
    run_segment(trial)
    spec, result = continued(tmp_path / "m", trial, 2)
    assert (result.best_epoch, result.best_val_error) == (2, 0.3)
    state = load_checkpoint(spec.folder / FILE)
    assert same(state["best"], state["model"])
    model = restore_model(spec.network, alloy_store.manifest, state["best"])
    expected = predict_batches(model, split_batches(alloy_store["valset"]))
    np.testing.assert_allclose(kept_in(spec.folder)["forces"], expected["forces"], atol=1e-5)
    assert run_segment(spec).best_val_error == 0.3  # and are judged once


def test_a_member_that_was_stopped_ends_with_the_same_best_weights(tmp_path, alloy_store):
    """Also where its last weights were being judged."""
    trial = make_spec(tmp_path / "t", alloy_store, 1)
    run_segment(trial)
    whole, expected = continued(tmp_path / "whole", trial, 2)
    best = load_checkpoint(whole.folder / FILE)["best"]
    stopped = []
    for question in (3, 6, 7, 8):
        spec = replace(whole, directory=str(tmp_path / str(question)))
        spec.folder.mkdir()
        run_segment(spec, should_stop=stops_at(question))
        progress = load_checkpoint(spec.folder / FILE)["progress"]
        stopped.append((progress["epoch"], progress["ended"]))
        result = run_segment(spec)
        assert (result.status, result.best_val_error) == ("ok", expected.best_val_error)
        assert same(load_checkpoint(spec.folder / FILE)["best"], best)
    assert stopped[0] == (1, 0)
    assert (2, 0) in stopped


def test_a_member_that_trained_nothing_has_its_trials_best_weights(tmp_path, alloy_store):
    """It was stopped before its first epoch, or has none to train."""
    trial = make_spec(tmp_path / "t", alloy_store, 2)
    before = run_segment(trial).best_val_error
    best = load_checkpoint(trial.folder / FILE)["best"]
    stopped = make_spec(tmp_path / "m", alloy_store, 4, **member_of(trial))
    result = run_segment(stopped, should_stop=lambda: True)
    assert (result.status, result.best_val_error) == ("interrupted", None)
    assert same(load_checkpoint(stopped.folder / FILE)["best"], best)
    after = continued(tmp_path / "none", trial, 2)[1].best_val_error
    assert before is not None and after is not None and after <= before
