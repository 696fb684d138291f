"""HydraGNN's list of optimisers, and what the loop does to their steps."""

import pytest
import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.config import load_network
from hydragnn_flow.errors import InputError
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.optimizers import Average, Lamb, make_optimizer, scaled_learning_rate
from hydragnn_flow.training.trainer import Trainer

# Rates at which each learns this in a few epochs.
RATES = {
    "AdamW": 5e-3,
    "Adam": 5e-3,
    "SGD": 1e-3,
    "Adadelta": 1.0,
    "Adagrad": 1e-2,
    "Adamax": 5e-3,
    "RMSprop": 1e-3,
    "FusedLAMB": 1e-2,
}


def make_trainer(folder, store, **changes):
    network = network_with(**changes)
    spec = make_spec(folder, store, 5, network=network)
    return Trainer(spec, store, torch.device("cpu"), World())


def settings(**values):
    values = {"learning_rate": 0.01} | values
    return load_network(network_with(Training__Optimizer=values)).Training.Optimizer


@pytest.mark.parametrize("name", RATES)
def test_each_learns(tmp_path, alloy_store, name):
    values = {"type": name, "learning_rate": RATES[name], "weight_decay": 1e-4}
    # Energies are learnt within a few steps, forces are not.
    trainer = make_trainer(
        tmp_path / "t", alloy_store, Training__Optimizer=values, Architecture__force_weight=0.0
    )
    assert type(trainer.optimizer).__name__ == name.replace("FusedLAMB", "Lamb")
    group = trainer.optimizer.param_groups[0]
    assert group["weight_decay"] == 1e-4
    assert bool(group.get("fused")) == (name in ("Adam", "AdamW", "SGD"))
    trainer.run()
    losses = [training for _, training, *_ in trainer.progress.history]
    assert losses[-1] < 0.8 * losses[0]


def test_weight_decay_is_the_optimiser_s_own_where_not_given():
    for name, expected in (("AdamW", 0.01), ("Adam", 0.0)):
        model = torch.nn.Linear(2, 2)
        optimizer = make_optimizer(model, settings(type=name), 0.01, World())
        assert optimizer.param_groups[0]["weight_decay"] == expected


def test_a_checkpoint_does_not_say_whether_kernels_are_fused(tmp_path, alloy_store):
    """A trial on one GCD has them; its member, with a shared state, must not."""
    trainer = make_trainer(tmp_path / "t", alloy_store)
    trainer.save()
    path = trainer.spec.folder / FILE
    state = load_checkpoint(path)
    state["optimizer"]["param_groups"][0]["fused"] = None
    save_checkpoint(path, {key: value for key, value in state.items() if key != "version"})
    again = make_trainer(tmp_path / "t", alloy_store)
    assert again.optimizer.param_groups[0]["fused"] is True


def test_what_is_frozen_is_not_trained():
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    optimizer = make_optimizer(model, settings(), 0.01, World())
    assert [weight.shape for weight in optimizer.param_groups[0]["params"]] == [(2,)]


def test_lamb_by_hand():
    """You et al., algorithm 2, layer by layer in float64."""
    torch.manual_seed(0)
    weights = [torch.randn(4, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)]
    expected = [weight.clone() for weight in weights]
    trained = [weight.clone().requires_grad_() for weight in weights]
    rate, decay, b1, b2, eps = 0.1, 0.05, 0.9, 0.999, 1e-8
    optimizer = Lamb(trained, lr=rate, weight_decay=decay)
    m, v = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    for t in range(1, 6):
        for k, weight in enumerate(trained):
            g = torch.randn_like(weight)
            weight.grad = g.clone()
            m[k] = b1 * m[k] + (1 - b1) * g
            v[k] = b2 * v[k] + (1 - b2) * g**2
            r = m[k] / (1 - b1**t) / ((v[k] / (1 - b2**t)).sqrt() + eps) + decay * expected[k]
            size = expected[k].norm()
            trust = float(size / r.norm()) if size > 0 else 1.0
            expected[k] = expected[k] - rate * min(max(trust, 0.01), 10.0) * r
        optimizer.step()
        torch.testing.assert_close([w.detach() for w in trained], expected)


def test_the_rate_grows_with_the_batch(tmp_path, alloy_store):
    assert scaled_learning_rate(settings(), lambda: 64) == 0.01
    linear = settings(batch_scaling="linear", reference_batch=16)
    assert scaled_learning_rate(linear, lambda: 64) == pytest.approx(0.04)
    root = settings(batch_scaling="sqrt", reference_batch=16)
    assert scaled_learning_rate(root, lambda: 64) == pytest.approx(0.02)
    optimizer = {"learning_rate": 0.01, "batch_scaling": "linear", "reference_batch": 2}
    budget = {"mode": "node_budget", "max_nodes": 40}
    trainer = make_trainer(
        tmp_path / "t", alloy_store, Training__Optimizer=optimizer, Training__Batching=budget
    )
    graphs = len(alloy_store["trainset"]) / len(trainer.plan(0))
    assert trainer.schedule.rate(0, 0, 5) == pytest.approx(0.01 * graphs / 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"batch_scaling": "linear"}, "'linear' needs reference_batch"),
        ({"type": "Adamw"}, "'FusedLAMB'"),
        ({"weight_decay": -1}, "greater than or equal to 0"),
        ({"momentum": 0.9}, "unknown key 'momentum'"),
    ],
)
def test_what_is_wrong_is_named(values, expected):
    with pytest.raises(InputError, match=r"network: Training\.Optimizer") as caught:
        settings(**values)
    assert expected in str(caught.value)


def test_hydragnns_nulls_are_not_given():
    nothing = dict.fromkeys(("EarlyStopping", "conv_checkpointing", "precision", "Scheduler"))
    network = network_with(**{f"Training__{key}": value for key, value in nothing.items()})
    assert load_network(network).Training == load_network(network_with()).Training


def test_gradients_are_clipped(tmp_path, alloy_store):
    sizes = {}
    for bound in (0.0, 1e-3):
        optimizer = {"type": "SGD", "learning_rate": 1.0}
        trainer = make_trainer(
            tmp_path / str(bound),
            alloy_store,
            Training__Optimizer=optimizer,
            Training__gradient_clip=bound,
        )
        before = [weight.clone() for weight in trainer.model.parameters()]
        (step, *_) = trainer.plan(0)
        trainer.train_step(step, trainer.train.batch(step.of_rank(0)))
        moved = [w - b for w, b in zip(trainer.model.parameters(), before, strict=True)]
        sizes[bound] = float(torch.cat([m.detach().flatten() for m in moved]).norm())
    assert sizes[1e-3] == pytest.approx(1e-3, rel=1e-3)
    assert sizes[0.0] > 0.01


def test_the_average_follows_the_weights():
    model = torch.nn.BatchNorm1d(1, affine=True)
    average = Average(model, 0.9)
    values = []
    for value in range(1, 40):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        values.append(value)
    expected = values[0]
    for steps, value in enumerate(values[1:], start=1):
        expected += max(0.1, 9 / (10 + steps)) * (value - expected)
    model(torch.randn(20, 1))
    with average.applied() as averaged:
        assert float(averaged.weight.detach()) == pytest.approx(expected)
        assert not averaged.training
        assert averaged.running_mean.abs() > 0
    assert float(model.weight.detach()) == values[-1]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("bfloat16", "bf16"), ("BF16", "bf16"), ("float", "fp32"), ("double", "fp64")],
)
def test_precisions_have_hydragnns_names(name, meaning):
    assert load_network(network_with(Training__precision=name)).Training.precision == meaning


def test_bf16_keeps_weights_and_learns(tmp_path, alloy_store):
    trainer = make_trainer(tmp_path / "t", alloy_store, Training__precision="bf16")
    whole = make_trainer(tmp_path / "whole", alloy_store)
    trainer.run()
    whole.run()
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    (first, *_), (other, *_) = trainer.progress.history, whole.progress.history
    assert first[1] != other[1]
    assert trainer.progress.best_val_error == pytest.approx(whole.progress.best_val_error, rel=0.1)


@pytest.mark.parametrize("mpnn_type", ["SchNet", "PNA"])
def test_checkpointed_layers_give_the_same(tmp_path, alloy_store, mpnn_type):
    losses = []
    for switch in (False, True):
        heads = {"graph": {"dim_headlayers": [8, 8], "dim_sharedlayers": 8}}
        trainer = make_trainer(
            tmp_path / str(switch),
            alloy_store,
            Training__conv_checkpointing=switch,
            Architecture__mpnn_type=mpnn_type,
            Architecture__enable_interatomic_potential=False,
            Architecture__output_heads=heads,
            Variables_of_interest__type=["graph"],
        )
        assert trainer.model.encoder.layers.checkpointing is switch
        trainer.run()
        losses.append(trainer.progress.history)
    assert losses[0] == losses[1]
