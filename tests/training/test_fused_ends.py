"""How fused trainings end: each by itself, whatever the others do; and where they go apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_cases import changed, make_spec, network_with
from training_cases import CPU

from hydragnn_flow.config import load_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stacked import StackedLinear
from hydragnn_flow.segment import APART
from hydragnn_flow.training.fused import FusedTrainer, run_fused
from hydragnn_flow.training.fused import trainer as fused_trainer
from hydragnn_flow.training.fused.batches import Stack, fused
from hydragnn_flow.training.fused.shapes import refusal_of, refusal_together, shape_of
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.runner import run_segment

EPOCHS = 4
CHEAP: dict[str, Any] = {
    "Architecture__mpnn_type": "SAGE",
    "Architecture__enable_interatomic_potential": False,
    "Architecture__energy_peratom_weight": 0.0,
    "Architecture__force_weight": 0.0,
    "Architecture__output_heads": {"graph": {"dim_sharedlayers": 8, "dim_headlayers": [8]}},
    "Variables_of_interest": {"output_names": ["energy"], "type": ["graph"]},
}
NETWORK = network_with(**CHEAP)


@pytest.fixture
def always(monkeypatch):
    """Fused training pays."""
    monkeypatch.setattr(fused_trainer, "_PAYS", 1e9)


def specs_of(folder, store, networks, **changes):
    folder.mkdir()
    return [
        make_spec(
            folder / str(number),
            store,
            **{"until_epoch": EPOCHS, "network": network, "seed": number, "number": number}
            | changes,
        )
        for number, network in enumerate(networks)
    ]


def histories(outcomes):
    return [[pytest.approx(row, rel=1e-4) for row in outcome.history] for outcome in outcomes]


@pytest.fixture(scope="module")
def alone(alloy_store, tmp_path_factory):
    """Histories of members of NETWORK that train separately."""
    specs = specs_of(tmp_path_factory.mktemp("alone") / "it", alloy_store, [NETWORK] * 3)
    return histories([run_segment(spec) for spec in specs])


@pytest.mark.usefixtures("always")
def test_a_member_that_diverges_leaves_the_others_alone(alloy_store, tmp_path, alone):
    hopeless = network_with(
        **CHEAP,
        Training__Optimizer={"learning_rate": 1e30, "weight_decay": 1e30},
        Training__ema_decay=0.0,
    )
    networks = [NETWORK, hopeless, NETWORK]
    found = run_fused(specs_of(tmp_path / "fused", alloy_store, networks))
    assert [outcome.status for outcome in found] == ["ok", "diverged", "ok"]
    assert "epoch 1" in found[1].reason
    assert [found[k].history for k in (0, 2)] == [alone[0], alone[2]]


@pytest.mark.usefixtures("always")
def test_members_end_where_they_are_to_or_stop_early(alloy_store, tmp_path):
    # Steps too small to change a weight.
    impatient = network_with(
        **CHEAP,
        Training__EarlyStopping=True,
        Training__patience=1,
        Training__Optimizer={"learning_rate": 1e-14, "weight_decay": 0.0},
    )
    networks = [NETWORK, impatient, NETWORK]

    def specs(folder):
        first, *others = specs_of(tmp_path / folder, alloy_store, networks)
        return [changed(first, until_epoch=2), *others]

    alone = [run_segment(spec) for spec in specs("alone")]
    found = run_fused(specs("fused"))
    assert [one.to_epoch for one in found] == [one.to_epoch for one in alone]
    assert found[0].to_epoch == found[1].to_epoch == 2
    assert [one.history for one in found] == histories(alone)
    assert [one.fused for one in found] == [3] * 3
    # The last goes on by itself, and takes as long for each epoch as it does for one.
    assert found[2].seconds > found[0].seconds > 0
    period = max(one.ended for one in found) - min(one.started for one in found)
    assert sum(one.seconds for one in found) < 1.001 * period, "time was counted twice"


@pytest.mark.usefixtures("always")
def test_members_that_are_stopped_go_on_where_they_were(alloy_store, tmp_path, alone):
    specs = specs_of(tmp_path / "fused", alloy_store, [NETWORK] * 2)
    asked = iter(range(10_000))
    stopped = run_fused(specs, should_stop=lambda: next(asked) > 25)
    assert [one.status for one in stopped] == ["interrupted"] * 2
    assert not any(one.reason.startswith(APART) for one in stopped)
    assert all(one.checkpoint and one.to_epoch < EPOCHS for one in stopped)
    found = run_fused(specs)
    assert [one.status for one in found] == ["ok"] * 2
    assert [one.history for one in found] == alone[:2]
    # What the first sending took is in the checkpoint that the second began with.
    assert all(one.spent_seconds > 0 for one in found)


def never_pays(patch):
    patch.setattr(fused_trainer, "_PAYS", 0.0)


def is_short_of_memory(patch):
    """A fused step finds too little memory."""
    patch.setattr(fused_trainer, "_PAYS", 1e9)
    gradients, left = Stack.gradients, iter(range(100))

    def short(self, batch):
        if next(left) == 4:
            raise torch.OutOfMemoryError("out of memory")
        return gradients(self, batch)

    patch.setattr(Stack, "gradients", short)


def is_wrong(patch):
    """A stacked layer computes something else."""
    forward: Callable[..., torch.Tensor] = StackedLinear.forward
    patch.setattr(StackedLinear, "forward", lambda self, x: 1.1 * forward(self, x))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (never_pays, "does not pay: "),
        (is_short_of_memory, "takes too much memory: "),
        (is_wrong, "differ from separate ones"),
    ],
)
def test_members_go_on_separately_where_fused_they_do_not(
    fault, reason, alloy_store, tmp_path, alone
):
    specs = specs_of(tmp_path / "fused", alloy_store, [NETWORK] * 3)
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        found = run_fused(specs)
    for one in found:
        assert one.status == "interrupted" and one.checkpoint
        assert one.reason.startswith(APART) and reason in one.reason
    assert [run_segment(spec).history for spec in specs] == alone


def test_a_probe_compares_and_its_steps_count(alloy_store, tmp_path):
    specs = specs_of(tmp_path / "fused", alloy_store, [NETWORK] * 3)
    trainer = FusedTrainer(specs, alloy_store, CPU)
    trainer.run()
    probe = trainer.probe
    assert probe is not None and probe.fused > 0 and probe.separate > 0
    assert probe.difference < 1e-4
    assert bool(trainer.apart) != probe.pays
    assert [member.progress.epoch for member in trainer.members] == [EPOCHS] * 3


def test_what_cannot_be_fused_is_refused(alloy_store, tmp_path):
    one, other = specs_of(tmp_path / "specs", alloy_store, [NETWORK] * 2)
    assert refusal_together([one, other]) == refusal_of(one) == ""
    attention = {"global_attn_engine": "GPS", "global_attn_heads": 2}
    for changes, reason in (
        ({"network": with_keys("Architecture", **attention)}, "global attention"),
        ({"network": with_keys("Training", accumulation_steps=2)}, "several micro-batches"),
        ({"mode": "stream"}, "streamed"),
        ({"budget": ("seconds", 60.0)}, "time"),
    ):
        assert reason in refusal_of(changed(one, **changes))
    wider = changed(one, network=with_keys("Architecture", hidden_dim=16))
    with pytest.raises(InputError, match=r"trials 0, 0: .*differ.*train them separately"):
        FusedTrainer([one, wider], alloy_store, CPU)
    assert shape_of(one) != shape_of(replace(other, kind="member"))


def with_keys(section, **keys):
    return load_network({**NETWORK, section: NETWORK[section] | keys})


def test_a_layer_with_weights_that_nobody_knows_is_refused(alloy_store, tmp_path):
    # Heads of places are for graphs of one size.
    places = {"node": {"num_headlayers": 1, "dim_headlayers": [12], "type": "mlp_per_node"}}
    network = network_with(
        **CHEAP
        | {
            "Architecture__output_heads": places,
            "Variables_of_interest": {"output_names": ["forces"], "type": ["node"]},
        }
    )
    specs = specs_of(tmp_path / "specs", alloy_store, [network] * 2)
    with pytest.raises(InputError, match=r"PlaceLinear cannot be fused|mlp_per_node"):
        FusedTrainer(specs, alloy_store, CPU)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 13), min_size=1, max_size=5), min_size=1, max_size=4))
def test_filled_batches_keep_each_members_graphs_and_have_no_other_edges(alloy_store, chosen):
    split = alloy_store["trainset"]
    steps = [
        Step(np.array(graphs), np.array([0, len(graphs)]), int(split.n_atoms[graphs].sum()))
        for graphs in chosen
    ]
    union = split.batch(np.concatenate([step.order for step in steps]))
    found = fused(union, steps, alloy_store.manifest, beyond=8.0)
    batch, members = found.batch, len(steps)
    atoms, graphs = batch.num_nodes // members, batch.num_graphs // members
    edges = batch.edge_index.shape[1] // members
    assert batch.num_nodes == atoms * members and batch.num_graphs == graphs * members
    assert torch.equal(batch.ptr.diff(), torch.bincount(batch.batch, minlength=batch.num_graphs))
    assert bool((batch.ptr.diff() > 0).all())
    for place, step in enumerate(steps):
        own = split.batch(step.order)
        rows = slice(place * atoms, place * atoms + own.num_nodes)
        for key in ("x", "pos", "forces"):
            assert torch.equal(batch[key][rows], own[key])
        assert torch.equal(batch.batch[rows] - place * graphs, own.batch)
        numbers = slice(place * graphs, place * graphs + own.num_graphs)
        assert torch.equal(batch.energy[numbers], own.energy)
        count = own.edge_index.shape[1]
        between = batch.edge_index[:, place * edges : (place + 1) * edges] - place * atoms
        assert torch.equal(between[:, :count], own.edge_index)
        shifts = batch.edge_shifts[place * edges : (place + 1) * edges]
        assert torch.equal(shifts[:count], own.edge_shifts)
        spare = between[:, count:]
        assert bool((spare[0] == spare[1]).all()) and bool((spare >= own.num_nodes).all())
        assert bool((spare < atoms).all())
        assert int(found.counted["graph"][place].sum()) == own.num_graphs
        assert int(found.counted["node"][place].sum()) == own.num_nodes
        assert found.counts["graphs"][place] == own.num_graphs
