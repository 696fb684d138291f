"""What a segment promises: it can be stopped, repeated and continued without a trace."""

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from segment_cases import NETWORK, changed, make_spec, network_with
from training_cases import kept_in, member_of, same, segment, stops_at

from hydragnn_flow.config import load_network
from hydragnn_flow.data import atoms_to_graph, write_store
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.memory import give_back_memory
from hydragnn_flow.training.predict import (
    KEY,
    Predicted,
    kept,
    predict_batches,
    predictions_in,
    restore_model,
    split_batches,
)
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer


def as_if_trained_with(network, file):
    """Have a checkpoint say that it comes of another network; else none would continue from it."""
    save_checkpoint(file, load_checkpoint(file) | {"network": load_network(network).to_json()})


def trained_state(folder):
    """What a checkpoint holds, but for what it has taken."""
    return {k: v for k, v in load_checkpoint(folder / FILE).items() if k != "spent"}


def test_three_segments_equal_one(tmp_path, alloy_store):
    egnn = {"Architecture__mpnn_type": "EGNN"}
    whole = run_segment(segment(tmp_path / "whole", alloy_store, 6, **egnn))
    parts = [
        run_segment(segment(tmp_path / "parts", alloy_store, until, after_epoch=after, **egnn))
        for after, until in ((0, 2), (2, 3), (3, 6))
    ]
    assert [(p.from_epoch, p.to_epoch) for p in parts] == [(0, 2), (2, 3), (3, 6)]
    assert [epoch for p in parts for epoch in p.history] == whole.history
    assert same(trained_state(tmp_path / "whole"), trained_state(tmp_path / "parts"))


def test_a_repeated_segment_changes_nothing(tmp_path, alloy_store):
    """The driver may have died after the segment ended, and before it was told what it took."""
    spec = make_spec(tmp_path / "trial", alloy_store, 3)
    wall, cpu = time.perf_counter(), time.process_time()
    first, again = run_segment(spec), run_segment(spec)
    assert 0 < first.seconds + again.seconds < time.perf_counter() - wall
    assert 0 < first.cpu_seconds + again.cpu_seconds < time.process_time() - cpu
    assert (again.status, again.from_epoch, again.to_epoch) == ("ok", 3, 3)
    for name in ("history", "best_val_error", "metrics"):
        assert getattr(again, name) == getattr(first, name)
    assert first.spent_seconds == first.spent_joules == 0
    assert 0 < again.spent_seconds <= first.seconds
    second = run_segment(changed(spec, until_epoch=4))
    third = run_segment(changed(spec, until_epoch=5))
    assert second.spent_seconds == again.spent_seconds
    assert second.spent_seconds < third.spent_seconds <= first.seconds + second.seconds
    member = make_spec(tmp_path / "m", alloy_store, 6, **member_of(spec))
    assert run_segment(member).spent_seconds == 0


def test_predictions_of_atoms_are_kept_in_single_precision(tmp_path):
    predictions: Predicted = {
        "energy": np.linspace(-1e6, 1, 5)[:, None],  # in float32 it would keep a tenth
        "forces": np.linspace(-1, 1, 24).reshape(8, 3),
    }
    split: Any = range(5)  # as many graphs as energies
    save_checkpoint(tmp_path / FILE, {KEY: {"valset": kept(predictions, split)}})
    found = kept_in(tmp_path)
    forces = predictions["forces"].astype(np.float32).astype(np.float64)
    np.testing.assert_equal(found, predictions | {"forces": forces})
    assert {values.dtype for values in found.values()} == {np.dtype(np.float64)}
    state = load_checkpoint(tmp_path / FILE)
    assert predictions_in(state, "testset") is predictions_in({}, "valset") is None


@pytest.mark.parametrize(
    ("kind", "splits"), [("trial", ["valset"]), ("member", ["valset", "testset"])]
)
def test_predictions_that_are_kept_are_those_of_the_best_epoch(tmp_path, alloy_store, kind, splits):
    result = run_segment(make_spec(tmp_path / "it", alloy_store, 6, kind=kind))
    state = load_checkpoint(tmp_path / "it" / FILE)
    leverage = state[KEY].get(LEVERAGE)
    assert (leverage is not None) == (kind == "member")
    model = restore_model(NETWORK, alloy_store.manifest, state["best"], leverage)
    for split in alloy_store.splits:
        saved = predictions_in(state, split)
        if split not in splits:
            assert saved is None
            continue
        expected = predict_batches(model, split_batches(alloy_store[split]))
        assert saved is not None and set(saved) == set(expected)
        for name, values in saved.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6)
        if split == "valset":
            error = np.abs(saved["forces"] - alloy_store[split].target("forces")).mean()
            assert result.metrics["forces_mae"] == pytest.approx(error, rel=1e-4)


def test_the_validation_split_is_predicted_by_its_evaluations_alone(
    tmp_path, alloy_store, monkeypatch
):
    """Once for each epoch, and not again for what is kept; nor where the best was found before."""
    passes: Counter[str] = Counter()
    for name, real in (("evaluate", Trainer.evaluate), ("predict", Trainer.predict)):

        def counted(*arguments, name=name, real=real):
            passes[name] += 1
            return real(*arguments)

        monkeypatch.setattr(Trainer, name, counted)
    spec = make_spec(tmp_path / "it", alloy_store, 3)
    first = run_segment(spec)
    assert passes == {"evaluate": 3}
    before = kept_in(spec.folder)
    # At this rate nothing gets better, and what was kept of the best stays.
    worse = network_with(Training__Optimizer__learning_rate=1.0)
    as_if_trained_with(worse, spec.folder / FILE)
    spec = changed(spec, until_epoch=5, network=load_network(worse))
    later = run_segment(spec)
    assert (later.status, later.best_epoch) == ("ok", first.best_epoch)
    assert passes == {"evaluate": 5}
    np.testing.assert_equal(kept_in(spec.folder), before)
    # A process that was killed had not predicted anew what it had saved.
    save_checkpoint(spec.folder / FILE, load_checkpoint(spec.folder / FILE) | {KEY: {}})
    assert run_segment(spec).status == "ok"
    assert passes == {"evaluate": 5, "predict": 1}
    assert kept_in(spec.folder)


def test_predictions_are_kept_in_the_order_of_the_split(tmp_path):
    """Also where a graph beyond the budget has a batch of its own, beside others that fill one."""
    sizes, chance = [2, 6, 3, 2, 7, 1], np.random.default_rng(0)
    graphs = []
    for number, n_atoms in enumerate(sizes):
        atoms = bulk("Cu", "sc", a=3.0) * (n_atoms, 1, 1)
        labels = {"energy": chance.normal(size=1), "forces": chance.normal(size=(n_atoms, 3))}
        graphs.append(atoms_to_graph(atoms, 4.0, None, number, labels))
    splits = {"trainset": graphs[:1] * 4, "valset": graphs, "testset": graphs}
    store = write_store(tmp_path / "store.gs", splits, units={"energy": "eV", "forces": "eV/Å"})
    budget = {"mode": "node_budget", "max_nodes": 5}
    spec = segment(tmp_path / "it", store, 2, Training__Batching=budget)
    assert run_segment(spec).status == "ok"
    best, saved = load_checkpoint(spec.folder / FILE)["best"], kept_in(spec.folder)
    model = restore_model(spec.network, store.manifest, best)
    for name, values in predict_batches(model, split_batches(store["valset"])).items():
        np.testing.assert_allclose(saved[name], values, rtol=1e-4, atol=1e-5)


def test_what_a_segment_found_before_it_was_stopped_is_kept(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "it", alloy_store, 50)
    result = run_segment(spec, should_stop=stops_at(27))
    assert result.status == "interrupted" and result.best_epoch
    errors = np.abs(kept_in(spec.folder)["forces"] - alloy_store["valset"].target("forces"))
    assert result.metrics["forces_mae"] == pytest.approx(errors.mean(), rel=1e-4)


def test_asked_to_stop_while_it_predicts_it_is_sent_again(tmp_path, alloy_store):
    """A second time it trains nothing, and predicts what is missing."""
    spec = make_spec(tmp_path / "member", alloy_store, 2, kind="member")
    assert run_segment(spec).status == "ok"
    state, before = load_checkpoint(spec.folder / FILE), kept_in(spec.folder, "testset")
    del state[KEY]["testset"]
    save_checkpoint(spec.folder / FILE, state)
    result = run_segment(spec, should_stop=lambda: True)
    assert (result.status, result.reason) == ("interrupted", "asked to stop while it predicted")
    assert predictions_in(load_checkpoint(spec.folder / FILE), "testset") is None
    result = run_segment(spec)
    assert (result.status, result.from_epoch, result.to_epoch) == ("ok", 2, 2)
    np.testing.assert_equal(kept_in(spec.folder, "testset"), before)


def test_divergence_is_a_result_and_spares_the_checkpoint(tmp_path, alloy_store):
    spec = make_spec(tmp_path / "trial", alloy_store, 2)
    run_segment(spec)
    network = network_with(Training__Optimizer__learning_rate=1e30)
    as_if_trained_with(network, spec.folder / FILE)
    before = (spec.folder / FILE).read_bytes()
    result = run_segment(make_spec(spec.folder, alloy_store, 4, network=network))
    assert result.status == "diverged"
    assert "epoch 3" in result.reason
    assert (result.from_epoch, result.to_epoch) == (2, 2)
    assert (spec.folder / FILE).read_bytes() == before
    json.dumps(vars(result))


def test_how_the_store_is_read_changes_nothing(tmp_path, alloy_store):
    """Shared memory, single reads and a staged copy give the same graphs in the same steps."""
    scratch = str(tmp_path / "scratch")
    accesses = ({"mode": "memory"}, {"mode": "random"}, {"mode": "random", "scratch": scratch})
    results = [
        run_segment(make_spec(tmp_path / str(number), alloy_store, 2, **access))
        for number, access in enumerate(accesses)
    ]
    assert results[0].status == "ok"
    assert all(result.history == results[0].history for result in results)


def test_peak_memory_is_the_process_s_own(tmp_path, alloy_store):
    """The pages of a store in memory are the node's; each process would count them again."""
    splits = {name: list(alloy_store[name]) for name in alloy_store.splits}
    for graph in (graph for graphs in splits.values() for graph in graphs):
        graph.wide = torch.rand(graph.num_nodes, 200_000)
    wide = write_store(tmp_path / "wide.gs", splits, cutoff=4.0)
    size = 4 * wide["trainset"].n_atoms.sum() * 200_000 / 2**30
    assert size > 0.1
    peaks = {}
    for mode in ("random", "memory"):
        give_back_memory()  # what earlier tests of this process freed belongs to neither
        result = run_segment(make_spec(tmp_path / mode, wide, 2, mode=mode))
        peaks[mode] = result.peak_memory_gib
    assert peaks["memory"] - peaks["random"] < 0.5 * size


def worst_force(predictions, labels, n_atoms):
    assert [*labels] == ["energy", "forces"] and len(predictions["energy"]) == len(n_atoms)
    return np.abs(predictions["forces"] - labels["forces"]).max()


def infinite(predictions, labels, n_atoms):
    return np.inf


def none(predictions, labels, n_atoms):
    return None


def test_functions_of_the_user_measure_the_predictions_of_the_best_weights(tmp_path, alloy_store):
    spec = make_spec(tmp_path, alloy_store, 2, functions=("test_segments:worst_force",))
    first, again = run_segment(spec), run_segment(spec)
    assert first.metrics["test_segments:worst_force"] > first.metrics["forces_mae"]
    assert again.metrics == first.metrics
    bad = run_segment(changed(spec, functions=("test_segments:infinite",)))
    assert (bad.status, bad.reason) == ("diverged", "test_segments:infinite returned inf")
    with pytest.raises(TypeError, match="test_segments:none returned None, which is no number"):
        run_segment(changed(spec, functions=("test_segments:none",)))
