"""Labels that are missing, and weights of structures: what training and its errors make of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from segment_cases import network_with
from training_cases import judged, segment, trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.config.sources import WEIGHT
from hydragnn_flow.data import write_store
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.measures.criterion import trivial_errors
from hydragnn_flow.training.measures.losses import Counts, Loss
from hydragnn_flow.training.runner import run_segment

WITH_STRESS = {"Architecture__stress_weight": 1.0, "Training__precision": "fp64"}
LIKELIHOOD = {
    "Architecture__stress_weight": 0.0,
    "Training__loss_function_type": "GaussianNLLLoss",
}


@pytest.fixture(scope="module")
def stored(alloy_store, tmp_path_factory):
    """Store of alloys with a stress, after a change of the graphs of each split."""

    def store(change=lambda name, graphs: graphs):
        splits = {}
        for name in alloy_store.splits:
            graphs = list(alloy_store[name])
            for number, graph in enumerate(graphs):
                draw = torch.Generator().manual_seed(number)
                graph.stress = torch.randn(6, generator=draw).double()[None]
            splits[name] = change(name, graphs)
        stress = Target(level="graph", dim=6, unit="eV/Å^3")
        targets = alloy_store.manifest.targets | {"stress": stress}
        path = tmp_path_factory.mktemp("masked") / "store.gs"
        return write_store(path, splits, targets=targets, cutoff=4.0)

    return store


def without(*keys, every=3):
    """Change that takes labels from every third graph."""

    def change(name, graphs):
        for graph in graphs[::every]:
            for key in keys:
                graph[key] = torch.full_like(graph[key], torch.nan)
        return graphs

    return change


def weighted(name, graphs):
    for number, graph in enumerate(graphs):
        graph[WEIGHT] = torch.tensor([[2.0 if number in (0, 4) else 1.0]])
    return graphs


def gradient(trainer, batches, counts):
    """Loss and its gradient on batches of the training split that make up one step."""
    trainer.model.train()
    trainer.model.zero_grad()
    losses = []
    for batch in batches:
        means = trainer.loss.term_means(trainer.model(batch), batch, counts)
        loss = trainer.loss.of_rank(means, World())
        loss.backward()
        losses.append(loss.detach())
    parts = [one.grad.flatten() for one in trainer.model.parameters()]
    return torch.stack(losses).sum(), torch.cat(parts)


def whole(store, order=None):
    n = len(store["trainset"])
    batch = store["trainset"].batch(range(n) if order is None else order)
    return batch, Counts(batch.num_graphs, batch.num_nodes)


@pytest.mark.parametrize("function", ["mae", "mse", "smooth_l1"])
@pytest.mark.parametrize("key", ["stress", "forces", "energy"])
def test_the_loss_is_that_of_the_labels_that_are_there(stored, key, function):
    """Each term is the mean over labels of the graphs that have one, whatever NaN stands beside."""
    store = stored(without(key))
    network = network_with(**WITH_STRESS, Training__loss_function_type=function)
    loss = Loss(load_network(network), store.manifest)
    batch, counts = whole(store)
    outputs = {
        name: torch.randn_like(batch[name].double().view(-1, dim)).requires_grad_()
        for name, dim in (("energy", 1), ("forces", 3), ("stress", 6))
    }
    means = loss.term_means(outputs, batch, counts)
    loss.of_rank(means, World()).backward()
    there = [number for number in range(batch.num_graphs) if number % 3]
    some, _ = whole(store, there)
    rows = torch.isin(batch.batch, torch.tensor(there))
    kept = {name: o[rows if name == "forces" else there] for name, o in outputs.items()}
    losses, labels, _ = loss.sums(kept, some)
    expected = (losses / labels)[:, 0]
    place = [term.target for term in loss.terms].index(key)
    torch.testing.assert_close(means[place], expected[place])
    assert all(values.grad.isfinite().all() for values in outputs.values())
    missing = ~rows if key == "forces" else torch.arange(batch.num_graphs) % 3 == 0
    assert not outputs[key].grad[missing].any() and outputs[key].grad[~missing].all()


@pytest.mark.parametrize("changes", [{}, LIKELIHOOD], ids=["mae", "likelihood"])
def test_order_and_micro_batches_do_not_matter(tmp_path, stored, changes):
    masks = without("forces") if changes else without("stress", "energy")
    store = stored(lambda name, graphs: weighted(name, masks(name, graphs)))
    trainer = trainer_of(tmp_path, store, 2, **(WITH_STRESS | changes))
    batch, counts = whole(store)
    loss, slopes = gradient(trainer, [batch], counts)
    assert loss.isfinite() and slopes.isfinite().all() and slopes.any()
    order = np.random.default_rng(0).permutation(batch.num_graphs)
    pieces = [store["trainset"].batch(some) for some in np.array_split(order, 4)]
    again, parts = gradient(trainer, pieces, counts)
    torch.testing.assert_close(again, loss, rtol=1e-9, atol=0)
    torch.testing.assert_close(parts, slopes, rtol=1e-6, atol=1e-9)


def test_nothing_missing_changes_nothing(tmp_path, stored):
    """Bit for bit, whether or not labels may be missing."""
    store = stored()
    assert not store.manifest.lacking and WEIGHT not in store.manifest.keys
    batch, counts = whole(store)
    plain, masked = (trainer_of(tmp_path / name, store, 2, **WITH_STRESS) for name in "ab")
    masked.loss.terms = [replace(term, masked=True) for term in masked.loss.terms]
    found = [gradient(trainer, [batch], counts) for trainer in (plain, masked)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_a_weight_of_two_is_the_structure_twice(tmp_path, stored):
    def twice(name, graphs):
        return [*graphs, graphs[0].clone(), graphs[4].clone()] if name == "trainset" else graphs

    found = []
    once = trainer_of(tmp_path, stored(weighted), 2, **WITH_STRESS)
    for store in (stored(weighted), stored(twice)):
        once.loss = Loss(once.spec.network, store.manifest)
        once.loss._scales = [torch.ones_like(scale) for scale in once.loss._scales]
        batch, counts = whole(store)
        found.append(gradient(once, [batch], counts))
    torch.testing.assert_close(*(loss for loss, _ in found))
    torch.testing.assert_close(*(slopes for _, slopes in found), rtol=1e-6, atol=1e-9)


def test_errors_and_losses_of_an_epoch_are_those_of_known_labels(tmp_path, stored):
    masked = stored(without("stress"))
    trainer = trainer_of(tmp_path / "a", masked, 3, **WITH_STRESS)
    val = masked["valset"]
    there = [number for number in range(len(val)) if number % 3]
    loss, errors = judged(trainer)
    everyone, known = val.batch(range(len(val))), val.batch(there)
    with torch.no_grad(), trainer.averaged() as model:
        outputs = [model(everyone), model(known)]
    expected = (outputs[1]["stress"] - known.stress).abs().mean()
    assert errors["stress_mae"] == pytest.approx(float(expected), rel=1e-6)
    sums = [trainer.loss.sums(*of) for of in zip(outputs, (everyone, known), strict=True)]
    means, of_known = ((losses / of_all)[:, 0] for losses, _, of_all in sums)
    place = [term.target for term in trainer.loss.terms].index("stress")
    means[place] = of_known[place]
    assert loss == pytest.approx(float(trainer.loss.total(means)), rel=1e-6)
    assert np.isfinite([*trivial_errors(masked["trainset"], masked.manifest).values()]).all()
    result = run_segment(segment(tmp_path / "b", masked, 6, **WITH_STRESS))
    assert result.status == "ok", result.reason
    assert result.history[-1][1] < result.history[0][1]


def test_a_split_without_a_label_is_refused(stored):
    with pytest.raises(
        InputError, match=r"valset: no structure has a label of the target 'stress'"
    ):
        stored(
            lambda name, graphs: (
                without("stress", every=1)(name, graphs) if name == "valset" else graphs
            )
        )
