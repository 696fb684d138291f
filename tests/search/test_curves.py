"""What a validation curve says, against curves whose end is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.config import Parameter, SearchConfig
from hydragnn_flow.search.rungs import Rungs, chance_to_beat, has_stalled

NUM_EPOCH = 100

Curve = list[tuple[int, float]]


def curve_of(losses):
    return [(epoch, float(loss)) for epoch, loss in enumerate(losses, start=1)]


def power_law(level, height, power, epochs, noise=0.0):
    losses = level + height * np.arange(1.0, epochs + 1) ** -power
    return curve_of(losses * np.exp(noise * np.random.default_rng(0).standard_normal(epochs)))


@given(losses=st.lists(st.integers(0, 9), min_size=1, max_size=30), epochs=st.integers(1, 10))
def test_stalled_means_the_minimum_is_that_old(losses, epochs):
    first_minimum = losses.index(min(losses))
    expected = len(losses) - 1 - first_minimum >= epochs
    assert has_stalled(curve_of(losses), epochs) == expected
    assert not has_stalled([], 1)


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("power", [0.3, 0.7, 1.3])
def test_a_power_law_is_foreseen(power, noise):
    curve = power_law(0.5, 2.0, power, 40, noise)
    now, end = 0.5 + 2.0 * 40**-power, 0.5 + 2.0 * NUM_EPOCH**-power
    assert chance_to_beat(curve, NUM_EPOCH, end + 0.6 * (now - end)) > 0.9
    assert chance_to_beat(curve, NUM_EPOCH, end - 2 * (now - end) - 0.04) < 0.05


@pytest.mark.parametrize(
    ("losses", "target", "least", "most"),
    [
        (1 + 1 / np.arange(1.0, 11), 1.2, 1, 1),
        ([], 0.01, 1, 1),
        (1 + 1 / np.arange(1.0, 5), 0.01, 1, 1),
        (np.linspace(1, 3, 30), 0.5, 0, 1e-3),
        ([1] * 20, 0.9, 0, 0.05),
        ([0] * 20, -0.1, 0, 0.05),
        ([1] + [0.5] * 19, 0.4, 0, 0.05),
    ],
    ids=["below the target", "none", "short", "rising", "flat", "zero", "flat at last"],
)
def test_a_short_curve_has_every_chance_and_one_that_does_not_fall_none(
    losses, target, least, most
):
    assert least <= chance_to_beat(curve_of(losses), NUM_EPOCH, target) <= most


def test_epochs_whose_loss_is_no_number_are_left_out():
    whole = power_law(0.5, 1, 1, 30, 0.01)
    broken = [(epoch, np.nan if epoch == 7 else loss) for epoch, loss in whole]
    without = [point for point in whole if point[0] != 7]
    assert chance_to_beat(broken, NUM_EPOCH, 0.5) == chance_to_beat(without, NUM_EPOCH, 0.5)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    epochs=st.integers(5, 99),
    scale=st.floats(1e-4, 1e4),
    shift=st.floats(-3, 3),
)
def test_the_chance_knows_no_units(seed, epochs, scale, shift):
    rng = np.random.default_rng(seed)
    losses = 1 + np.arange(1, epochs + 1) ** -rng.uniform(0.2, 2) + 0.05 * rng.random(epochs)
    target = losses.min() - rng.uniform(0, 0.5)
    chance = chance_to_beat(curve_of(losses), NUM_EPOCH, target)
    other = chance_to_beat(curve_of(scale * (losses + shift)), NUM_EPOCH, scale * (target + shift))
    assert 0 <= chance <= 1
    assert other == pytest.approx(chance, abs=1e-5)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), epochs=st.integers(5, 99))
def test_a_smaller_target_is_less_likely(seed, epochs):
    rng = np.random.default_rng(seed)
    losses = 1 + np.arange(1, epochs + 1) ** -rng.uniform(0.2, 2) + 0.05 * rng.random(epochs)
    targets = losses.min() - np.linspace(0.001, 1, 20)
    chances = [chance_to_beat(curve_of(losses), NUM_EPOCH, target) for target in targets]
    assert chances == sorted(chances, reverse=True)


def families(rng, family, trials, noise):
    """Losses of trials, [trials, NUM_EPOCH], that fall as power laws or as exponentials."""
    epochs = np.arange(1, NUM_EPOCH + 1)
    level = np.exp(rng.normal(-2.5, 0.5, (trials, 1)))
    height = np.exp(rng.normal(0, 0.7, (trials, 1)))
    if family == "power":
        shape = epochs ** -rng.uniform(0.3, 1.5, (trials, 1))
    else:
        shape = np.exp(-epochs / (NUM_EPOCH * rng.uniform(0.03, 0.4, (trials, 1))))
    scatter = np.exp(noise * rng.standard_normal((trials, NUM_EPOCH)))
    losses: np.ndarray = (level + height * shape) * scatter
    return losses


def searched(losses, rng):
    """Whether the best trial came to its end, and the share of all epochs that was trained."""
    config = SearchConfig(
        trials=len(losses),
        rungs="none",
        learning_curve={"probability": 0.95},
        space={"Architecture.hidden_dim": Parameter(int=(8, 64))},
    )
    rungs = Rungs(config, NUM_EPOCH)
    best = int(np.argmin(losses.min(axis=1)))
    running, asked, trained, ended = dict.fromkeys(range(8), 0), 8, 0, False
    while running:
        number = int(rng.choice(list(running)))
        rung = running.pop(number)
        seen = losses[number, : rungs.epochs(number)[rung]]
        verdict = rungs.report(number, rung, float(seen.min()), curve_of(seen))
        if verdict == "goes_on":
            running[number] = rung + 1
            continue
        trained += len(seen)
        ended |= number == best and verdict == "complete"
        if asked < len(losses):
            running[asked] = 0
            asked += 1
    return ended, trained / losses.size


@pytest.mark.parametrize(
    ("family", "noise", "most_epochs"),
    [("power", 0.01, 0.45), ("power", 0.03, 0.5), ("exponential", 0.01, 0.8)],
)
def test_the_best_trial_is_not_stopped_and_epochs_are_saved(family, noise, most_epochs):
    kept, share = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ended, trained = searched(families(rng, family, 40, noise), rng)
        kept.append(ended)
        share.append(trained)
    assert np.mean(kept) >= 0.95
    assert np.mean(share) < most_epochs
