"""HydraGNN's optimisers, what the loop does to their steps, and learning rates as torch's."""

import math

import numpy as np
import pytest
import torch
from segment_cases import network_with
from torch import nn
from torch.optim import lr_scheduler
from training_cases import trainer_of

from hydragnn_flow.config import load_network
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.optimizers import (
    Average,
    Clipping,
    Schedule,
    decay_factor,
    make_optimizer,
    orthogonalised,
)

TYPES = ("AdamW", "Adam", "SGD", "Adadelta", "Adagrad", "Adamax", "RMSprop", "Muon")


def settings(**values):
    values = {"learning_rate": 0.01} | values
    return load_network(network_with(Training__Optimizer=values)).Training.Optimizer


@pytest.mark.parametrize(
    ("name", "own_decay"), [(name, 0.01 if name in ("AdamW", "Muon") else 0.0) for name in TYPES]
)
def test_each_is_made_with_what_is_asked_for(name, own_decay):
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    asked = settings(type=name, weight_decay=1e-4, learning_rate=0.03)
    optimizer = make_optimizer(model, asked)
    assert type(optimizer).__name__ == name
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.03, 1e-4)
    assert bool(group.get("fused")) == (name in ("Adam", "AdamW", "Muon", "SGD"))
    assert [weight.shape for weight in group["params"]] == [(2,)], "frozen weights are left out"
    by_itself = make_optimizer(model, settings(type=name))
    assert by_itself.param_groups[0]["weight_decay"] == own_decay


def test_a_checkpoint_does_not_say_whether_kernels_are_fused(tmp_path, alloy_store):
    """A trial on one GCD has them; its member, with a shared state, must not."""
    trainer_of(tmp_path, alloy_store, 5).save()
    state = load_checkpoint(tmp_path / FILE)
    state["optimizer"]["param_groups"][0]["fused"] = None
    save_checkpoint(tmp_path / FILE, state)
    again = trainer_of(tmp_path, alloy_store, 5)
    assert again.optimizer.param_groups[0]["fused"] is True


def test_muon_steps_as_torch_does():
    """Matrices as torch.optim.Muon in bfloat16, vectors and embeddings as AdamW."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(9, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    )
    ours = dict(model.named_parameters())
    theirs = {name: weight.detach().clone() for name, weight in ours.items()}
    optimizer = make_optimizer(model, settings(type="Muon", learning_rate=0.02, weight_decay=0.1))
    others = [weight for name, weight in theirs.items() if name != "1.weight"]
    peers = [
        torch.optim.Muon(
            [theirs["1.weight"]], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=0.02, weight_decay=0.1),
    ]
    for _ in range(4):
        for name, weight in ours.items():
            weight.grad = torch.randn_like(weight)
            theirs[name].grad = weight.grad.clone()
        for each in (optimizer, *peers):
            each.step()
        for name, weight in ours.items():
            bound = 5e-4 if name == "1.weight" else 1e-6
            torch.testing.assert_close(weight.detach(), theirs[name], atol=bound, rtol=1e-5)


def test_muon_leaves_matrices_without_gradient_alone():
    """Heads of data sets that a batch lacks have gradients of zero, for thousands of steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 6, bias=False)
    optimizer = make_optimizer(model, settings(type="Muon", learning_rate=0.02, weight_decay=0.0))
    for size in (1.0, 1e-30):
        model.weight.grad = size * torch.randn(6, 8)
        before = model.weight.detach().clone()
        optimizer.step()
        assert 0.02 < (model.weight - before).norm() < 0.2, "steps are of one length"
    model.weight.grad = torch.zeros(6, 8)
    before = model.weight.detach().clone()
    for _ in range(3000):
        optimizer.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 2, 64)])
def test_singular_values_become_alike(shape):
    torch.manual_seed(0)
    sizes = torch.logspace(0, -1.5, min(shape[1:]), dtype=torch.float64)
    left, _, right = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    found = orthogonalised(left * sizes @ right)
    turned = left.mT @ found @ right.mT
    values = turned.diagonal(dim1=1, dim2=2)
    assert values.min() > 0.65
    assert values.max() < 1.25
    torch.testing.assert_close(turned, torch.diag_embed(values), msg="singular vectors stay")
    assert not orthogonalised(torch.zeros(shape)).any(), "no gradient, no step"


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


def test_gradients_are_clipped_at_their_usual_norm():
    weight = nn.Parameter(torch.zeros(2))
    clipping = Clipping(2.0, torch.device("cpu"))

    def clipped(size):
        weight.grad = torch.tensor([0.6, 0.8]) * size
        clipping.clip([weight], weight.grad.norm())
        return float(weight.grad.norm())

    assert clipped(0.0) == 0.0  # nothing is known yet
    for _ in range(100):
        assert clipped(1.0) == pytest.approx(1.0)
        assert clipped(3.0) < 3.001
    usual = float(clipping.usual[0].exp())
    assert 1.6 < usual < 1.8  # the root of 3, without what is beyond e times it
    assert clipped(1e3) == pytest.approx(2 * usual, rel=1e-5)
    assert math.isnan(clipped(math.nan))
    assert float(clipping.usual[0].exp()) == pytest.approx(usual * math.exp(0.01), rel=1e-6)
    Clipping(0.0, torch.device("cpu")).clip([weight], torch.tensor(1e9))
    clipping.clip([nn.Parameter(torch.zeros(2))], torch.tensor(0.0))  # without a gradient


def test_words_of_hydragnn():
    nothing = dict.fromkeys(("EarlyStopping", "conv_checkpointing", "precision", "Scheduler"))
    network = network_with(**{f"Training__{key}": value for key, value in nothing.items()})
    assert load_network(network).Training == load_network(network_with()).Training
    for name, meaning in (("bfloat16", "bf16"), ("float", "fp32"), ("DOUBLE", "fp64")):
        network = load_network(network_with(Training__precision=name))
        assert network.Training.precision == meaning


def test_bf16_keeps_weights_and_learns(tmp_path, alloy_store):
    trainer = trainer_of(tmp_path / "t", alloy_store, 5, Training__precision="bf16")
    whole = trainer_of(tmp_path / "whole", alloy_store, 5)
    trainer.run()
    whole.run()
    assert {weight.dtype for weight in trainer.model.parameters()} == {torch.float32}
    (first, *_), (other, *_) = trainer.progress.history, whole.progress.history
    assert first[1] != other[1]
    assert trainer.progress.best_val_error == pytest.approx(whole.progress.best_val_error, rel=0.1)


RATE, EPOCHS, STEPS = 0.005, 10, 7
LOSSES = [5, 4, 4, 4, 4.0, 3, 3, 2.9999, 3.5, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2]


def schedule(decay=None, **settings):
    network = load_network(network_with(Training__num_epoch=EPOCHS, Training__Scheduler=settings))
    return Schedule(network.Training, decay)


def rates(of, first=0, last=EPOCHS):
    return [of.rate(epoch, step, STEPS) for epoch in range(first, last) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("cosine", lr_scheduler.CosineAnnealingLR, {"T_max": EPOCHS * STEPS, "eta_min": 1e-5}),
    ],
)
def test_every_step_has_torchs_rate(name, kind, settings):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], RATE, momentum=0.9)
    of_torch, expected = kind(optimizer, **settings), []
    for _ in range(EPOCHS * STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        of_torch.step()
    np.testing.assert_allclose(rates(schedule(type=name)), expected, rtol=1e-9)


def test_plateau_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    settings = {"factor": 0.1, "patience": 1, "min_lr": 2e-5}
    of_torch, seen = lr_scheduler.ReduceLROnPlateau(optimizer, **settings), set()
    ours = schedule(type="ReduceLROnPlateau", **settings)
    for epoch, loss in enumerate(LOSSES):
        seen.add(ours.rate(epoch, 3, STEPS))
        assert ours.rate(epoch, 3, STEPS) == pytest.approx(optimizer.param_groups[0]["lr"])
        of_torch.step(loss)
        ours.observe(loss)
    assert len(seen) > 3


def test_plateau_knows_progress_below_zero():
    """A likelihood goes there."""
    ours = schedule(type="ReduceLROnPlateau", patience=0)
    for loss in (1.0, 0.0, -1.0, -1.1, -1.2):
        ours.observe(loss)
    assert ours.rate(5, 0, STEPS) == RATE
    ours.observe(-1.2)
    assert ours.rate(6, 0, STEPS) == RATE / 2


def test_warm_up_rises_step_by_step():
    rising = rates(schedule(type="constant", warmup_epochs=2))
    np.testing.assert_allclose(rising[: 2 * STEPS], RATE * np.arange(1, 15) / 14)
    assert set(rising[2 * STEPS :]) == {RATE}
    cosine = rates(schedule(type="cosine", warmup_epochs=0.5))
    assert int(np.argmax(cosine)) in (3, 4)
    assert cosine[-1] < 0.01 * RATE


def test_a_member_goes_through_a_schedule_of_its_own():
    """From where its trial was to its end."""
    member = rates(schedule((4, 14), type="cosine"), 4, 14)
    np.testing.assert_allclose(member, rates(schedule(type="cosine")), rtol=1e-12)


def test_the_default_keeps_a_trial_s_rate_and_lowers_a_member_s():
    training = load_network(network_with()).Training
    assert set(rates(Schedule(training, None))) == {RATE}
    member = Schedule(training, (2, 10))
    assert [member.rate(epoch, 3, STEPS) for epoch in range(2, 12)] == [
        RATE * decay_factor(epoch, (2, 10)) for epoch in range(2, 12)
    ]
    assert math.isclose(member.rate(6, 0, STEPS), RATE / 2)
