"""DDP: the number of ranks changes the time a training takes and nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ddp_rank import (
    TOLD,
    answers,
    check_equal,
    on_ranks,
    train,
    train_replayed,
)
from segment_cases import NETWORK, changed, make_spec
from training_cases import CPU, PROPERTY, masked_store, segment

from hydragnn_flow.data import GraphStore
from hydragnn_flow.models import build_model
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.checkpoints.starting import keep_weights
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Budget, plan_in_order
from hydragnn_flow.training.predict import gathered, predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment

pytestmark = pytest.mark.xdist_group("ranks")  # which one process forks

BUDGET = {"mode": "node_budget", "max_nodes": 48, "max_edges": 3000}
PER_RANK = "a batch of each"
MASKED = "missing labels and weights, in parts"
STARTED = "from weights, in part frozen"
FIVE = {"Training__batch_size": 5}  # uneven shares of a step
NOISE = FIVE | {"Training__loss_function_type": "GaussianNLLLoss", "Training__nll_beta": 0.5}
SINGLE = BUDGET | {"max_nodes": 14, "oversized_sample": "single"}
TRAININGS: dict[str, dict[str, Any]] = {
    "SchNet": FIVE,
    "EGNN": FIVE | {"Architecture__mpnn_type": "EGNN"},
    "by cost": {"Training__Batching": BUDGET, "bootstrap": True},
    # what the loss and the optimiser have to settle among the ranks
    # more ranks than graphs in a step
    "rmse, one by one": {"Training__batch_size": 1, "Training__loss_function_type": "rmse"},
    "in parts": FIVE | {"Training__accumulation_steps": 2},
    MASKED: FIVE | {"Training__accumulation_steps": 2},
    "Muon": FIVE | {"Training__Optimizer__type": "Muon"},
    "noise": NOISE | PROPERTY,
    "noise of a potential": NOISE,
    # what a step of twice this is on one
    PER_RANK: {"Training__batch_size": 3, "batches": 2},
    # whose reference energies the ranks fit together
    STARTED: FIVE | {"frozen": ("encoder.embedding",)},
    "some alone": {"Training__Batching": SINGLE},
    "of a budget": {"Training__Batching": BUDGET, "budget": ("steps", 20), "subset": (5, 1)},
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory, alloy_store):
    folder = tmp_path_factory.mktemp("ranks")
    weights, masked = folder / "weights.pt", masked_store(folder / "masked", alloy_store)
    torch.manual_seed(1)
    keep_weights(weights, build_model(NETWORK, alloy_store).state_dict(), is_whole=True)
    found = {
        name: segment(folder / name, masked if name == MASKED else alloy_store, 1, **changes)
        for name, changes in TRAININGS.items()
    }
    found[STARTED] = changed(found[STARTED], weights=str(weights))
    return {name: spec.to_dict() for name, spec in found.items()}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, alloy_store):
    return make_spec(tmp_path_factory.mktemp("stopped") / "t", alloy_store, 3).to_dict()


@pytest.fixture(scope="module")
def streamed(tmp_path_factory, blocks):
    store = GraphStore.open(blocks, "stream")
    return make_spec(tmp_path_factory.mktemp("stream") / "t", store, 1, mode="stream").to_dict()


@pytest.fixture(scope="module")
def on_two_ranks(specs, stopped, streamed, tmp_path_factory):
    meeting = tmp_path_factory.mktemp("rendezvous") / "file"
    of_ranks = on_ranks(2, answers, meeting, specs, stopped, streamed)
    trained, reasons, predicted, streams, told = zip(*of_ranks, strict=True)
    others = {"reason": reasons[0], "predicted": predicted[0], "streamed": streams, "told": told}
    return {name: [rank[name] for rank in trained] for name in specs} | others


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_equal_one(tmp_path, specs, on_two_ranks, name):
    """Some epochs of the same graphs."""
    check_equal(on_two_ranks[name], train(specs[name] | {"directory": str(tmp_path)}, World()))


def test_replayed_steps_of_two_ranks_are_those_of_ddp(
    specs, stopped, on_two_ranks, tmp_path_factory
):
    """The ranks sum a gradient in one call, and may replay it of different sizes or not at all."""
    folder = tmp_path_factory.mktemp("replayed")
    again = {name: spec | {"directory": str(folder / name)} for name, spec in specs.items()}
    for name in again:
        (folder / name).mkdir()
    for rank in on_ranks(2, train_replayed, folder / "file", again):
        for name, found in rank.items():
            if found["replayed"] is None:  # ranks exchange within the loss
                assert name == "rmse, one by one"
            else:
                assert found["replayed"] > 0, name
            check_equal([found], on_two_ranks[name][0], name=name)


def test_a_batch_of_each_rank_is_one_twice_as_large(tmp_path, on_two_ranks, alloy_store):
    """At a rate that is larger by the root of two, written out."""
    larger = {
        "Training__batch_size": 6,
        "Training__Optimizer__learning_rate": 5e-3 * 2**0.5,
        "Training__ema_decay": 0.99**2,
    }
    spec = segment(tmp_path / "t", alloy_store, 1, **larger)
    check_equal(on_two_ranks[PER_RANK], train(spec.to_dict(), World()))


def test_ranks_gather_what_each_has_predicted(on_two_ranks, specs, alloy_store):
    """In the order of the split, as one process predicts it with the same weights."""
    assert on_two_ranks["predicted"]
    for spec, predicted in zip(specs.values(), on_two_ranks["predicted"], strict=False):
        state = load_checkpoint(Path(spec["directory"]) / "predicted" / FILE)
        model = restore_model(spec["network"], alloy_store.manifest, state["best"])
        expected = predict_batches(model, split_batches(alloy_store["valset"]))
        assert predicted.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(predicted[name], values, rtol=1e-4, atol=1e-5)


def test_a_rank_without_graphs_gathers_those_of_the_others(alloy_store, monkeypatch):
    monkeypatch.setattr(World, "sum", lambda world, values: values)  # the other adds nothing
    split = alloy_store["valset"]
    alone = plan_in_order(split, Budget(graphs=2), 1)
    steps = [replace(step, bounds=np.array([0, step.graphs, step.graphs])) for step in alone]
    mine = {"energy": np.arange(float(len(split)))[:, None]}
    whole = gathered(mine, split, steps, World(0, 2), CPU)
    order = np.concatenate([step.order for step in steps])
    np.testing.assert_array_equal(whole["energy"][order], mine["energy"])
    nothing = {"energy": np.zeros((0, 1))}
    assert not gathered(nothing, split, steps, World(1, 2), CPU)["energy"].any()


def test_ranks_end_together_where_one_is_asked_to(tmp_path, on_two_ranks, stopped, alloy_store):
    """After the same step, and one process goes on from what they saved."""
    assert on_two_ranks["reason"] == "asked to stop, in epoch 1 after step 1"
    result = run_segment(read_segment(stopped))
    assert (result.status, result.from_step) == ("ok", 1)
    whole = run_segment(make_spec(tmp_path / "whole", alloy_store, 3))
    np.testing.assert_allclose(result.history, whole.history, rtol=1e-5)


def test_ranks_hear_what_the_first_has_to_say(on_two_ranks):
    assert on_two_ranks["told"] == ([*TOLD], [*TOLD])


def test_two_ranks_divide_a_stream_in_every_epoch_and_take_the_same_steps(on_two_ranks, blocks):
    first, second = on_two_ranks["streamed"]
    everything = sorted(GraphStore.open(blocks)["trainset"].graph_id.tolist())
    for one, other in zip(first["read"], second["read"], strict=True):
        assert one and other
        assert sorted(one + other) == everything
    assert first["read"][0] != first["read"][1]
    assert list(map(len, first["losses"])) == list(map(len, second["losses"]))
    assert first["weights"] == second["weights"]
    both = zip(first["losses"], second["losses"], strict=True)
    per_epoch = [sum(map(np.mean, of_ranks)) for of_ranks in both]
    assert per_epoch[-1] < per_epoch[0]
