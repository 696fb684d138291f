"""Seconds and memory from the network alone, then from experience."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.placement import CostModel, Gcd, Sizes, Taken, Work, too_large

AT_ONCE = {"step_seconds": 0.0, "start_seconds": 0.0, "epoch_seconds": 0.0}
NETWORK = {"node_bandwidth": 1e10, "network_bandwidth": 1e9}
GCD = Gcd(
    16.0, 1e12, 1e11, launch_seconds=1e-5, process_gib=0.5, most_segments=4, **AT_ONCE, **NETWORK
)
CORE = replace(GCD, launches=True)
works = st.builds(
    Work,
    flops=st.floats(0, 1e14),
    bytes=st.floats(0, 1e12),
    launches=st.integers(1, 10_000),
    activation_bytes=st.floats(0, 2e10),
    parameter_bytes=st.floats(0, 1e9),
)
# A second of arithmetic, and next to nothing else.
SECOND = Work(1e12, 1.0, 1, 2.0**30, 0.0)
STEPS = 10_000
"""So many that what a first step takes longer does not count."""


def seconds(model, work, kind="PNA", **given):
    """Of a step."""
    return model.estimate(kind, work, STEPS, **given).seconds / STEPS


def taken(step, work=SECOND, beside=1e-4, **changes):
    """A segment of steps of so many seconds, and something beside them."""
    total = STEPS * step * (1 + beside)
    return Taken(work, STEPS, step, total, epochs=1, evaluated=0.0, **changes)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(3e12, 1, 10, 0, 0), 3.0),  # arithmetic lasts longest
        (Work(1, 5e11, 10, 0, 0), 5.0),  # memory traffic
        (Work(1e12, 1e11, 700_000, 0, 0), 7.0),  # launches
    ],
)
def test_a_step_lasts_as_long_as_what_takes_longest(work, expected):
    estimate = CostModel(GCD).estimate("PNA", work, STEPS)
    assert estimate.seconds == pytest.approx(STEPS * expected, rel=2e-4)
    computing = work.flops / GCD.flops + work.bytes / GCD.bandwidth
    assert estimate.busy == pytest.approx(computing / expected, rel=2e-4)


def test_a_cpu_slot_is_always_busy():
    """The core that computes is the one that launches."""
    work = Work(1e12, 1, 700_000, 0, 0)
    assert CostModel(GCD).estimate("PNA", work, steps=1).busy < 1
    slot = CostModel(CORE).estimate("PNA", work, STEPS)
    assert slot.busy == 1
    assert slot.seconds == pytest.approx(STEPS * (1.0 + 7.0), rel=2e-4), "one after the other"
    assert guessed_gcd("cpu", 16.0).most_segments == 1 < guessed_gcd("hip", 64.0).most_segments


def test_what_is_no_measurement_teaches_nothing():
    model = CostModel(GCD)
    before = model.estimate("PNA", SECOND, 1)
    for wrong in (0.0, math.nan, math.inf):
        model.observe("PNA", replace(taken(3.0), step_seconds=wrong))
        model.observe("PNA", replace(taken(3.0), seconds=wrong))
    assert model.estimate("PNA", SECOND, 1) == before


def test_memory_is_that_of_process_step_and_copies_of_the_weights():
    work = Work(1, 1, 1, activation_bytes=2 * 2**30, parameter_bytes=0.5 * 2**30)
    model = CostModel(GCD, gcds_per_node=4)
    estimate = model.estimate("PNA", work, steps=1)
    assert estimate.uncorrected_memory_gib == pytest.approx(0.5 + 2 + 5 * 0.5)
    assert 1.2 < (estimate.memory_gib - 0.5) / (2 + 5 * 0.5) < 1.6
    # Gradients live in the buckets from which several GCDs exchange them.
    wide = model.estimate("PNA", work, 1, 2)
    assert wide.uncorrected_memory_gib == estimate.uncorrected_memory_gib
    divided = replace(work, parts=4, gathers=2, gathered_bytes=0.25 * 2**30)
    four = model.estimate("PNA", divided, 1, 4)
    assert four.uncorrected_memory_gib == pytest.approx(0.5 + 2 + 5 * 0.5 / 4 + 0.25)


@given(
    work=works,
    steps=st.integers(1, 10**6),
    width=st.sampled_from([1, 2, 8, 64]),
    seen=st.lists(
        st.tuples(st.sampled_from(["PNA", "EGNN"]), works, st.floats(1e-4, 1e3)), max_size=6
    ),
    launches=st.booleans(),
)
def test_estimates_make_sense(work, steps, width, seen, launches):
    gcd = replace(GCD, launches=launches)
    model = CostModel(gcd, gcds_per_node=8)
    for kind, other, step in seen:
        model.observe(kind, taken(step, other))
    estimate = model.estimate("EGNN", work, steps, width)
    assert 0 < estimate.low < estimate.seconds < estimate.high < math.inf
    assert 0 <= estimate.busy <= 1
    assert estimate.memory_gib >= GCD.process_gib
    more = model.estimate("EGNN", work, 2 * steps, width)
    assert estimate.seconds < more.seconds <= 2 * estimate.seconds * (1 + 1e-9)
    assert too_large(estimate, gcd) == (estimate.memory_gib > gcd.memory_gib)
    # GCDs divide what is computed, and nothing else.
    one = model.estimate("EGNN", work, steps)
    assert estimate.seconds >= one.seconds * (1 - 1e-9)
    launching = replace(work, flops=0.0, bytes=0.0, parameter_bytes=0.0)
    alone = model.estimate("EGNN", launching, steps)
    assert estimate.seconds / width >= alone.seconds * (1 - 1e-6)


@given(work=works, factor=st.floats(0.1, 10))
@example(Work(4907544405.0, 0.0, 511, 0.0, 0.0), 0.5)  # as long in computing as in launching
def test_a_constant_factor_is_learned_at_once(work, factor):
    """Of all types: it lies in the machine, until one is seen to differ."""
    model = CostModel(GCD)
    before = seconds(model, work)
    for number in range(6):
        model.observe(["PNA", "EGNN", "MACE"][number % 3], taken(factor * before, work))
    assert seconds(model, work) == pytest.approx(factor * before, rel=0.03)
    assert seconds(model, work, "SchNet") == pytest.approx(factor * before, rel=0.12)


def test_a_type_that_differs_gets_its_own_factor_and_a_change_is_followed():
    """What is learned lies within what was seen."""
    model = CostModel(GCD)
    for _ in range(12):
        model.observe("PNA", taken(2.0))
    learned = []
    for _ in range(12):
        model.observe("MACE", taken(8.0))
        learned.append(seconds(model, SECOND, "MACE"))
    assert 2.0 < learned[0] < learned[-1] < 8.0
    assert learned[-1] > 5.0
    # Nothing is known of the third, which comes to lie between the two.
    assert 2.0 < seconds(model, SECOND, "SchNet") < learned[-1]
    for _ in range(200):
        model.observe("MACE", taken(1.0))
    assert seconds(model, SECOND, "MACE") == pytest.approx(1.0, rel=0.05)


def test_rates_are_learned_apart():
    """Where arithmetic is faster than guessed and launching slower, on a core that does both."""
    model = CostModel(CORE)
    launching = Work(1.0, 1.0, 100_000, 0, 0)
    mixed = Work(1e12, 1.0, 100_000, 0, 0)
    assert seconds(model, mixed) == pytest.approx(2.0, rel=1e-3)
    for kind in ("PNA", "EGNN", "MACE", "SchNet"):
        for _ in range(8):
            model.observe(kind, taken(0.7, SECOND))
            model.observe(kind, taken(1.4, launching))
    assert seconds(model, SECOND) == pytest.approx(0.7, rel=0.04)
    assert seconds(model, launching) == pytest.approx(1.4, rel=0.04)
    assert seconds(model, mixed) == pytest.approx(2.1, rel=0.04), "never seen"


def spread(model, kind="PNA", **given):
    estimate = model.estimate(kind, SECOND, STEPS, **given)
    assert estimate.high / estimate.seconds == pytest.approx(estimate.seconds / estimate.low)
    return estimate.high / estimate.low


def test_intervals_narrow_with_what_is_known():
    """Wide before anything was seen, narrow once a trial's own steps are; errors widen them."""
    model, own = CostModel(GCD), taken(1.0)
    guessed = spread(model)
    for number, log in enumerate(np.random.default_rng(0).normal(0, 0.05, 40)):
        model.observe(["PNA", "EGNN", "MACE"][number % 3], taken(math.exp(log)))
    known, before = spread(model), spread(model, own=own)
    assert 1.1 < known < spread(model, "SchNet") < 1.6 and guessed > 5
    for _ in range(20):
        model.observe("PNA", taken(1.01), own)
    assert spread(model, own=own) < min(before, known)
    for number in range(40):
        model.observe("PNA", taken([0.5, 2.0][number % 2]), own)
    assert spread(model) > 2 * known
    assert spread(model, own=own) > 2 * before


def test_nine_of_ten_are_within_their_intervals():
    """Types and trials that differ as much as the model believes, or half, or twice as much."""
    for scale in (0.5, 1.0, 2.0):
        chance, held = np.random.default_rng(1), []
        for _ in range(10):
            model = CostModel(GCD)
            types = dict(zip("abcdefgh", chance.normal(0, 0.1 * scale, 8), strict=True))
            for number in range(60):
                kind = chance.choice(list(types))
                step = math.exp(types[kind] + chance.normal(0, 0.12 * scale))
                if number >= 20:
                    estimate = model.estimate(kind, SECOND, STEPS)
                    held.append(estimate.low <= STEPS * step <= estimate.high)
                model.observe(kind, taken(step))
        assert 0.85 < np.mean(held) < 0.97


def test_start_validation_and_checkpoints_have_terms_of_their_own():
    """Short segments and long ones are both right, which one factor for all cannot be."""

    def truth(steps, step, epochs):
        return 4.0 + 3 * step + epochs * (0.5 * step * 2 + 0.05) + steps * step

    model, chance = CostModel(guessed_gcd("cpu", 8.0)), np.random.default_rng(0)
    for _ in range(40):
        step, epochs = math.exp(chance.uniform(-4, 0)), int(chance.integers(1, 60))
        steps = 10 * epochs
        work = replace(SECOND, flops=3e10 * step, launches=0)
        whole = truth(steps, step, epochs)
        model.observe("PNA", Taken(work, steps, step, whole, epochs, evaluated=2.0))
    for step, epochs in ((0.02, 1), (0.02, 100), (0.8, 1), (0.8, 100)):
        work, steps = replace(SECOND, flops=3e10 * step, launches=0), 10 * epochs
        found = model.estimate("PNA", work, steps, epochs=epochs, evaluated=2.0).seconds
        assert found == pytest.approx(truth(steps, step, epochs), rel=0.3)


def test_a_trials_own_steps_rule():
    """Whatever others of its type took; what lies beside the steps stays common."""
    model = CostModel(GCD)
    for _ in range(8):
        model.observe("PNA", taken(2.0))
        model.observe_memory("PNA", 2.0)
    own = taken(5.0, beside=9.0, memory=3.0)
    assert seconds(model, SECOND, own=own) == pytest.approx(5.0, rel=1e-3)
    corrected = model.estimate("PNA", SECOND, 1).memory_gib - 0.5
    assert 2.0 < corrected < 3.0
    assert 3.0 < model.estimate("PNA", SECOND, 1, own=own).memory_gib - 0.5 < 3.9
    # Where most of its memory was the process, that of its type stands.
    unknown = model.estimate("PNA", SECOND, 1, own=replace(own, memory=None))
    assert unknown.memory_gib == pytest.approx(0.5 + corrected)


@pytest.mark.parametrize("own", [None, taken(1.5, together=4)], ids=["type", "own"])
def test_what_shares_a_gcd_is_not_taken_for_slow(own):
    """Four together take half as long again each; alone, as long as the network says."""
    model = CostModel(GCD)
    for kind in ("PNA", "EGNN", "MACE"):
        for _ in range(16):
            model.observe(kind, taken(1.5, together=4))
            model.observe(kind, taken(1.0))
    assert seconds(model, SECOND, own=own) == pytest.approx(1.0, rel=0.06)


def test_gcds_divide_the_computing_alone():
    """Each launches all operations; gradients go around a ring, between nodes more slowly."""
    model = CostModel(CORE, gcds_per_node=4)
    work = Work(8e12, 1.0, 100_000, 0, parameter_bytes=1e9)

    def step(width):
        return seconds(model, work, width=width) / width

    assert step(1) == pytest.approx(8 + 1, rel=2e-4)
    assert step(4) == pytest.approx(8 / 4 + 1 + 2 * 3 / 4 * 0.1, rel=2e-4)
    assert step(8) == pytest.approx(8 / 8 + 1 + 2 * 7 / 8 * 1.0, rel=2e-4)


@pytest.mark.parametrize(
    ("parts", "gathers", "width", "times"),
    [
        (1, 0, 1, 0.0),
        (1, 0, 4, 2 * 3 / 4),  # the sum of gradients
        (4, 1, 4, 2 * 3 / 4),  # gathered once, and scattered
        (4, 2, 4, 3 * 3 / 4),
        (4, 2, 8, 3 * 3 / 4 + 2 * 1 / 2 / 4),  # and the sum over two groups, of parts
    ],
)
def test_bytes_that_a_gcd_sends(parts, gathers, width, times):
    work = Work(1, 1, 1, 0, parameter_bytes=8.0, parts=parts, gathers=gathers)
    assert work.exchanged_bytes(width) == pytest.approx(times * 8.0)


def test_what_several_gcds_lose_is_learned():
    """Two take 1.2 times their time together, and four that once more."""
    model = CostModel(GCD, gcds_per_node=4)
    for kind in ("PNA", "EGNN", "MACE"):
        for _ in range(5):
            model.observe(kind, taken(1.0))
            model.observe(kind, taken(1.2 / 2, width=2))
            model.observe(kind, taken(1.44 / 4, width=4))
    for width, factor in ((1, 1.0), (2, 1.2), (4, 1.44)):
        assert seconds(model, SECOND, "SchNet", width=width) == pytest.approx(factor, rel=0.08)
    # A trial that has run on two keeps its own pace, on one GCD less what the second has cost.
    own = taken(1.2, width=2)
    assert seconds(model, SECOND, width=2, own=own) == pytest.approx(2.4, rel=1e-3)
    assert seconds(model, SECOND, width=1, own=own) == pytest.approx(2.0, rel=0.08)


def test_gcds_are_never_expected_to_gain_more_than_their_number():
    """Whatever was measured: twice as fast for each doubling would make any width free."""
    model = CostModel(GCD, gcds_per_node=4)
    for _ in range(8):
        model.observe("PNA", taken(1.0))
        model.observe("PNA", taken(0.2, width=2))
    assert seconds(model, SECOND, width=2) >= seconds(model, SECOND) * (1 - 1e-9)


@given(graphs=st.floats(0.1, 1000), sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_the_largest_batch_is_no_smaller_than_the_mean_one(graphs, sizes):
    factor = Sizes.of(np.array(sizes)).largest_batch(graphs)
    assert 1 <= factor <= max(sizes) / np.mean(sizes) * (1 + 1e-9)


@pytest.mark.parametrize("graphs", [8, 32, 128])
@pytest.mark.parametrize("sigma", [0.1, 0.6])
def test_the_largest_batch_is_that_of_many_draws(graphs, sigma):
    """Of 1,500 batches of graphs of log-normal sizes, in 40 epochs."""
    found = []
    for seed in range(40):
        sizes = np.random.default_rng(seed).lognormal(3.0, sigma, size=(1500, graphs))
        expected = Sizes.of(sizes.ravel()).largest_batch(graphs)
        found.append(sizes.sum(axis=1).max() / (graphs * sizes.mean()) / expected)
    assert 0.9 < np.quantile(found, 0.1) < np.quantile(found, 0.8) < 1.1
