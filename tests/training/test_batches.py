"""What fills a step: a batch of graphs or of atoms, or several, as if they had been written so."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from segment_cases import changed, network_with
from test_batching import Sizes
from training_cases import CPU, judged, plan_epoch, segment, stops_at, trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.data import GraphStore
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.leverage import Leverage
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.plan.batching import Budget, graphs_kept
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.trainer import Trainer

RATE, DECAY = 5e-3, 0.99
# As HydraGNN's documentation shows it.
HYDRAGNN = {"mode": "node_budget", "max_nodes": 4096, "max_graphs": 64}
HYDRAGNN |= {"oversized_sample": "error", "shuffle": True, "seed": 0}


def test_the_budget_is_hydragnns():
    def budget(batching):
        return Budget.of(load_network(network_with(Training__Batching=batching)))

    assert budget(HYDRAGNN) == Budget(graphs=64, atoms=4096)
    ours = {"mode": "node_budget", "max_nodes": 50, "max_edges": 900, "oversized_sample": "skip"}
    assert budget(ours | {"drop_last": False}) == Budget(atoms=50, edges=900, oversized="skip")
    for batching in (None, {}, {**HYDRAGNN, "mode": "fixed"}):
        assert budget(batching) == Budget(graphs=4)
    for wrong in (None, 0):
        with pytest.raises(InputError, match=r"network: Training\.Batching.*max_nodes"):
            budget({**HYDRAGNN, "max_nodes": wrong})


def test_leverage_knows_the_graphs_that_are_trained_on(tmp_path, alloy_store, monkeypatch):
    """It is learnt whole or not at all."""
    learnt = []
    monkeypatch.setattr(Leverage, "fit", lambda _, moments: learnt.append(moments[-1, -1].item()))
    budget = {"mode": "node_budget", "max_nodes": 14, "oversized_sample": "skip"}
    trainer = trainer_of(tmp_path / "t", alloy_store, 1, Training__Batching=budget)
    few = (alloy_store["trainset"].n_atoms <= 14).sum()
    assert 0 < few < len(alloy_store["trainset"])

    def stop():
        raise Stopped("asked to stop")

    with pytest.raises(Stopped):
        trainer.learn_leverage(stop)
    assert not trainer.predicted and not learnt
    trainer.learn_leverage()
    assert learnt == [few]


def test_a_stream_trains_and_evaluates_like_memory(tmp_path, blocks):
    store = GraphStore.open(blocks)
    spec = segment(tmp_path / "t", store, 6, Training__batch_size=3, mode="stream")
    result = run_segment(spec)
    assert (result.status, result.to_epoch) == ("ok", 6)
    assert result.history[-1][1] < 0.8 * result.history[0][1]
    stream, memory = (
        judged(Trainer(changed(spec, mode=mode), GraphStore.open(blocks, mode), CPU, World()))[0]
        for mode in ("stream", "memory")
    )
    assert stream == pytest.approx(memory, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("SGD", 4), *((name, 2) for name in ("Adam", "AdamW", "RMSprop", "Muon"))],
)
def test_the_rate_grows_by_the_rule_of_the_optimiser(name, factor):
    """In proportion where a step is the gradient's size, else with the root."""
    optimizer = {"type": name, "learning_rate": 0.01}
    training = load_network(network_with(Training__Optimizer=optimizer)).Training
    found = training.with_batches(4)
    assert found.Optimizer.learning_rate == pytest.approx(0.01 * factor)
    assert found.ema_decay == pytest.approx(DECAY**4)
    assert training.with_batches(1) == training


@settings(max_examples=30)
@given(data=st.data(), batches=st.integers(1, 5), mode=st.sampled_from(["single", "skip"]))
def test_how_many_batches_a_step_has_does_not_decide_what_is_trained_on(data, batches, mode):
    """A graph too large for one of them is treated so, and steps are within all of them."""
    atoms = np.array(data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=40)))
    limit = data.draw(st.integers(int(atoms.min()), 40))
    one = Budget(atoms=limit, oversized=mode)
    several = replace(one, batches=batches)
    sizes = Sizes(atoms, atoms)
    np.testing.assert_array_equal(graphs_kept(sizes, one), graphs_kept(sizes, several))
    steps = plan_epoch(sizes, several, seed=0, epoch=0, world=1)
    alone = [step for step in steps if step.atoms > several.of_a_step["atoms"]]
    assert all(step.graphs == 1 for step in alone)
    too_large = np.flatnonzero(atoms > limit)
    assert all(step.graphs == 1 for step in steps if np.isin(step.order, too_large).any())
    taken = np.sort(np.concatenate([step.order for step in steps]))
    np.testing.assert_array_equal(taken, np.flatnonzero(graphs_kept(sizes, one)))
    assert len(steps) <= len(plan_epoch(sizes, one, seed=0, epoch=0, world=1))


def test_steps_of_two_batches_are_those_of_one_twice_as_large(tmp_path, alloy_store):
    two = run_segment(segment(tmp_path / "two", alloy_store, 3, batches=2))
    larger = {
        "Training__batch_size": 8,
        "Training__Optimizer__learning_rate": RATE * 2**0.5,
        "Training__ema_decay": DECAY**2,
    }
    one = run_segment(segment(tmp_path / "one", alloy_store, 3, **larger))
    # The same weights; validation reads them in batches that fit a GCD.
    for mine, theirs in zip(two.history, one.history, strict=True):
        assert mine[:2] == theirs[:2]
        assert mine[2:] == pytest.approx(theirs[2:], rel=1e-5)
    assert (two.steps, two.learning_rate) == (one.steps, RATE * 2**0.5)
    assert two.graphs_per_step == pytest.approx(3 * len(alloy_store["trainset"]) / two.steps)


def stopped(spec, store, steps):
    """Train so many steps of the first epoch."""
    with pytest.raises(Stopped):
        Trainer(spec, store, CPU, World()).run(stops_at(steps + 1))


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(1, 3), after=st.integers(1, 7), steps=st.integers(1, 2))
def test_an_epoch_ends_with_the_steps_it_began_with(
    tmp_path_factory, alloy_store, before, after, steps
):
    """Then come those of the new width, which is what the record says."""
    folder = tmp_path_factory.mktemp("t")
    spec = segment(folder, alloy_store, 1, Training__batch_size=2, batches=before)
    whole = run_segment(replace(spec, directory=str(folder / "whole")))
    stopped(spec, alloy_store, steps)
    progress = load_checkpoint(folder / FILE)["progress"]
    assert progress["batches"] == before

    goes_on = changed(spec, batches=after)
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name} across"))
    across = run_segment(changed(goes_on, until_epoch=2, directory=str(copy)))
    rest = run_segment(goes_on)
    assert rest.from_step == steps
    # In other parts where its ranks are fewer, so that they have as many graphs at a time.
    np.testing.assert_allclose(rest.history, whole.history, rtol=1e-4)
    assert rest.learning_rate == pytest.approx(RATE * before**0.5)
    left = len(alloy_store["trainset"]) - progress["drawn"]
    assert rest.graphs_per_step == pytest.approx(left / rest.steps)

    following = run_segment(changed(goes_on, until_epoch=2))
    assert following.learning_rate == across.learning_rate == pytest.approx(RATE * after**0.5)
    most = 2 * after
    assert following.graphs_per_step <= most
    assert following.steps == -(-len(alloy_store["trainset"]) // most)


def test_what_is_left_of_an_epoch_fits_fewer_gcds(tmp_path, alloy_store):
    """A rank then computes a step in parts no larger than its own batch."""
    spec = segment(tmp_path / "t", alloy_store, 2, Training__batch_size=2, batches=4)
    stopped(spec, alloy_store, 1)
    trainer = Trainer(changed(spec, batches=1), alloy_store, CPU, World())
    left = trainer.plan(0)[1:]
    parts = [batch.num_graphs for pieces in trainer.micro_batches(left) for batch in pieces]
    assert sum(parts) == sum(step.graphs for step in left)
    assert max(step.graphs for step in left) > 2 >= max(parts)
