"""Learning rates, against torch's own schedules."""

import math

import numpy as np
import pytest
import torch
from segment_cases import network_with
from torch.optim import lr_scheduler

from hydragnn_flow.config import load_network
from hydragnn_flow.training.optimizers import Schedule, decay_factor

RATE, EPOCHS, STEPS = 0.01, 10, 7
LOSSES = [5, 4, 4, 4, 4.0, 3, 3, 2.9999, 3.5, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2]


def schedule(decay=None, **settings):
    network = load_network(network_with(Training__num_epoch=EPOCHS, Training__Scheduler=settings))
    return Schedule(network.Training, RATE, decay)


def rates(of, first=0, last=EPOCHS):
    return [of.rate(epoch, step, STEPS) for epoch in range(first, last) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("cosine", lr_scheduler.CosineAnnealingLR, {"T_max": EPOCHS * STEPS, "eta_min": 1e-5}),
        (
            *("one_cycle", lr_scheduler.OneCycleLR),
            {"max_lr": RATE, "total_steps": EPOCHS * STEPS, "cycle_momentum": False},
        ),
    ],
)
def test_every_step_has_torchs_rate(name, kind, settings):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    of_torch, expected = kind(optimizer, **settings), []
    for _ in range(EPOCHS * STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        of_torch.step()
    np.testing.assert_allclose(rates(schedule(type=name)), expected, rtol=1e-9)


def test_plateau_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    settings = {"factor": 0.1, "patience": 1, "min_lr": 2e-5}
    torch_says = lr_scheduler.ReduceLROnPlateau(optimizer, **settings)
    ours = schedule(type="ReduceLROnPlateau", **settings)
    seen = set()
    for epoch, loss in enumerate(LOSSES):
        assert ours.rate(epoch, 3, STEPS) == pytest.approx(optimizer.param_groups[0]["lr"])
        seen.add(ours.rate(epoch, 3, STEPS))
        torch_says.step(loss)
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
    cycle = rates(schedule(type="one_cycle", warmup_epochs=1))
    assert int(np.argmax(cycle)) == STEPS


def test_a_member_goes_through_a_schedule_of_its_own():
    """From where its trial was to its end."""
    member = rates(schedule((4, 14), type="cosine"), 4, 14)
    np.testing.assert_allclose(member, rates(schedule(type="cosine")), rtol=1e-12)


def test_the_default_keeps_a_trial_s_rate_and_lowers_a_member_s():
    training = load_network(network_with()).Training
    assert set(rates(Schedule(training, RATE, None))) == {RATE}
    member = Schedule(training, RATE, (2, 10))
    assert [member.rate(epoch, 3, STEPS) for epoch in range(2, 12)] == [
        RATE * decay_factor(epoch, (2, 10)) for epoch in range(2, 12)
    ]
    assert math.isclose(member.rate(6, 0, STEPS), RATE / 2)
