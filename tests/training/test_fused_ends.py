"""How fused trainings end: each by itself, whatever the others do; and where they go apart."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from segment_cases import changed, make_spec, network_with
from test_fused import PROPERTIES
from training_cases import CPU

from hydragnn_flow.config import load_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stacked import StackedLinear
from hydragnn_flow.segment import APART
from hydragnn_flow.training.fused import FusedTrainer, run_fused
from hydragnn_flow.training.fused import trainer as fused_trainer
from hydragnn_flow.training.fused.batches import Stack
from hydragnn_flow.training.fused.shapes import refusal_of, refusal_together, shape_of
from hydragnn_flow.training.runner import run_segment

EPOCHS = 4
CHEAP = PROPERTIES | {
    "Architecture__mpnn_type": "SAGE",
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
            *(folder / str(number), store, EPOCHS),
            **{"network": network, "seed": number, "number": number} | changes,
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
    impatient = network_with(
        **CHEAP,
        Training__EarlyStopping=True,
        Training__patience=1,
        Training__Optimizer={"learning_rate": 1e-14, "weight_decay": 0.0},  # changes no weight
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
    asked = itertools.count()
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
    gradients, steps = Stack.gradients, itertools.count()

    def short(self, batch, counts):
        if next(steps) == 4:
            raise torch.OutOfMemoryError("out of memory")
        return gradients(self, batch, counts)

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


def with_keys(section, **keys):
    return {"network": load_network({**NETWORK, section: NETWORK[section] | keys})}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (with_keys("Architecture", global_attn_engine="GPS", global_attn_heads=2), "attention"),
        (with_keys("Training", accumulation_steps=2), "several micro-batches"),
        ({"mode": "stream"}, "streamed"),
        ({}, ""),
    ],
)
def test_what_cannot_be_fused_is_refused(alloy_store, tmp_path, changes, reason):
    spec = changed(make_spec(tmp_path, alloy_store, EPOCHS, network=NETWORK), **changes)
    assert reason in refusal_of(spec) and bool(reason) == bool(refusal_of(spec))


def test_networks_of_several_shapes_are_refused(alloy_store, tmp_path):
    one, other = specs_of(tmp_path / "specs", alloy_store, [NETWORK] * 2)
    assert not refusal_together([one, other])
    wider = changed(one, **with_keys("Architecture", hidden_dim=16))
    with pytest.raises(InputError, match=r"trials 0, 0: .*differ.*train them separately"):
        FusedTrainer([one, wider], alloy_store, CPU)
    assert shape_of(one) != shape_of(replace(other, kind="member"))


def test_a_layer_with_weights_that_nobody_knows_is_refused(alloy_store, tmp_path):
    # Heads of places are for graphs of one size.
    places = {"node": {"num_headlayers": 1, "dim_headlayers": [12], "type": "mlp_per_node"}}
    forces = {"output_names": ["forces"], "type": ["node"]}
    of_places = {"Architecture__output_heads": places, "Variables_of_interest": forces}
    specs = specs_of(tmp_path / "specs", alloy_store, [network_with(**CHEAP | of_places)] * 2)
    with pytest.raises(InputError, match=r"PlaceLinear cannot be fused|mlp_per_node"):
        FusedTrainer(specs, alloy_store, CPU)
