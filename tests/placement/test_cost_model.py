"""Seconds and memory from the network alone, then from experience."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.execution.site import guessed_gcd
from hydragnn_flow.placement import CostModel, Gcd, Sizes, Taken, Work, too_large
from hydragnn_flow.placement.cost_model import MARGINS

GCD = Gcd(
    memory_gib=16.0,
    flops=1e12,
    bandwidth=1e11,
    launch_seconds=1e-5,
    process_gib=0.5,
    most_segments=4,
)
works = st.builds(
    Work,
    flops=st.floats(0, 1e14),
    bytes=st.floats(0, 1e12),
    launches=st.integers(1, 10_000),
    activation_bytes=st.floats(0, 2e10),
    parameter_bytes=st.floats(0, 1e9),
)


def seconds(model: CostModel, work: Work, steps: int, kind: str = "PNA") -> float:
    return model.estimate(kind, work, steps).seconds


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(3e12, 1e11, 10, 0, 0), 3.0),  # arithmetic lasts longest
        (Work(1e12, 5e11, 10, 0, 0), 5.0),  # memory traffic
        (Work(1e12, 1e11, 700_000, 0, 0), 7.0),  # launches
    ],
)
def test_a_step_lasts_as_long_as_what_takes_longest(work: Work, expected: float) -> None:
    estimate = CostModel(GCD).estimate("PNA", work, steps=10)
    assert estimate.seconds == pytest.approx(10 * expected)
    computing = max(work.flops / GCD.flops, work.bytes / GCD.bandwidth)
    assert estimate.busy == pytest.approx(computing / expected)


def test_a_cpu_slot_is_always_busy() -> None:
    """The core that computes is the one that launches."""
    work = Work(1e12, 1e11, 700_000, 0, 0)
    assert CostModel(GCD).estimate("PNA", work, steps=1).busy < 1
    slot = CostModel(replace(GCD, launches=True)).estimate("PNA", work, steps=1)
    assert slot.busy == 1
    assert slot.seconds == pytest.approx(1.0 + 7.0), "it cannot compute while it launches"
    assert guessed_gcd("cpu", 16.0).most_segments == 1 < guessed_gcd("hip", 64.0).most_segments


@pytest.mark.parametrize("wrong", [0.0, float("nan"), float("inf")])
def test_what_is_no_measurement_teaches_nothing(wrong: float) -> None:
    model, work = CostModel(GCD), Work(1e12, 1e11, 10, 0, 0)
    model.observe("PNA", Taken(steps=wrong))
    model.observe("PNA", Taken(steps=1.0, rest=wrong))
    assert seconds(model, work, 1) == pytest.approx(1.0)


def test_memory_is_that_of_process_activations_and_copies_of_the_weights() -> None:
    work = Work(1, 1, 1, activation_bytes=2 * 2**30, parameter_bytes=0.5 * 2**30)
    estimate = CostModel(GCD).estimate("PNA", work, steps=1)
    assert estimate.uncorrected_memory_gib == pytest.approx(0.5 + 2 + 6 * 0.5)
    assert estimate.memory_gib == pytest.approx(0.5 + MARGINS[0] * (2 + 6 * 0.5))


@settings(deadline=None)
@given(work=works, steps=st.integers(1, 10**6))
def test_estimates_make_sense(work: Work, steps: int) -> None:
    model = CostModel(GCD)
    estimate = model.estimate("EGNN", work, steps)
    assert estimate.seconds > 0
    assert 0 <= estimate.busy <= 1
    assert estimate.memory_gib >= GCD.process_gib
    assert model.estimate("EGNN", work, 2 * steps).seconds == pytest.approx(2 * estimate.seconds)
    assert too_large(estimate, GCD) == (estimate.memory_gib > GCD.memory_gib)


@settings(deadline=None)
@given(work=works, factor=st.floats(0.01, 100))
def test_a_constant_factor_is_learned_at_once(work: Work, factor: float) -> None:
    """Of all types: it lies in the machine, until one is seen to differ."""
    model = CostModel(GCD)
    before = seconds(model, work, 100)
    for _ in range(3):
        model.observe("PNA", Taken(steps=factor))
    assert seconds(model, work, 100) == pytest.approx(factor * before)
    assert seconds(model, work, 100, "SchNet") == pytest.approx(factor * before)


@settings(deadline=None)
@given(
    factors=st.lists(
        st.tuples(st.sampled_from(["PNA", "EGNN", "MACE"]), st.floats(0.5, 2.0)),
        min_size=2,
        max_size=40,
    ),
    kind=st.sampled_from(["PNA", "EGNN", "SchNet"]),
)
def test_what_is_learned_is_within_what_was_seen(
    factors: list[tuple[str, float]], kind: str
) -> None:
    work, plain, model = Work(1e12, 1, 1, 0, 0), CostModel(GCD), CostModel(GCD)
    for seen, factor in factors:
        model.observe(seen, Taken(steps=factor))
    learned = seconds(model, work, 10, kind) / seconds(plain, work, 10, kind)
    values = [factor for _, factor in factors]
    assert min(values) - 1e-9 <= learned <= max(values) + 1e-9


def test_a_type_that_differs_gets_its_own_factor_as_it_is_seen_to() -> None:
    work, model = Work(1e12, 1, 1, 0, 0), CostModel(GCD)
    for _ in range(12):
        model.observe("PNA", Taken(steps=2.0))
    before = seconds(model, work, 1)
    learned = []
    for _ in range(12):
        model.observe("MACE", Taken(steps=8.0))
        learned.append(seconds(model, work, 1, "MACE") / before)
    assert 1.0 < learned[0] < learned[-1] < 4.0
    assert learned[-1] > 2.0
    # Nothing is known of the third, which comes to lie between the two.
    assert 1.0 < seconds(model, work, 1, "SchNet") / before < learned[-1]


def test_a_change_is_followed() -> None:
    work = Work(1e12, 1, 1, 0, 0)
    model = CostModel(GCD)
    before = seconds(model, work, 1)
    for factor, times in ((1.0, 200), (3.0, 60)):
        for _ in range(times):
            model.observe("PNA", Taken(steps=factor))
    assert seconds(model, work, 1) == pytest.approx(3 * before, rel=0.01)


@pytest.mark.parametrize("taken", [Taken(steps=0.0), Taken(steps=-1.0), Taken(1.0, rest=0.0)])
def test_a_time_of_nothing_teaches_nothing(taken: Taken) -> None:
    work = Work(1e12, 1, 1, 0, 0)
    model = CostModel(GCD)
    before = seconds(model, work, 1)
    model.observe("PNA", taken)
    assert seconds(model, work, 1) == before


def test_validation_and_start_up_are_learned_apart_from_steps() -> None:
    work, model = Work(1e12, 1, 1, 0, 0), CostModel(GCD)
    before = model.estimate("PNA", work, 10)
    for _ in range(8):
        model.observe("PNA", Taken(steps=2.0, rest=1.25))
    after = model.estimate("EGNN", work, 10)
    assert after.seconds == pytest.approx(2.5 * before.seconds)
    assert after.uncorrected_seconds == before.uncorrected_seconds


def test_a_trials_own_steps_rule() -> None:
    """Whatever others of its type took; what lies beside the steps stays common."""
    work, model = Work(1e12, 1, 1, 2**30, 0), CostModel(GCD)
    before = model.estimate("PNA", work, 10)
    for _ in range(8):
        model.observe("PNA", Taken(steps=2.0, rest=1.5, memory=2.0))
    own = model.estimate("PNA", work, 10, own=Taken(steps=5.0, rest=9.0, memory=3.0))
    assert own.seconds == pytest.approx(5.0 * 1.5 * before.seconds)
    assert own.memory_gib == pytest.approx(GCD.process_gib + 3.0 * MARGINS[2])
    # Where most of its memory was the process, that of its type stands.
    own = model.estimate("PNA", work, 10, own=Taken(steps=5.0))
    assert own.memory_gib == pytest.approx(GCD.process_gib + 2.0 * MARGINS[1])


@pytest.mark.parametrize("own", [None, Taken(steps=1.5, together=4)], ids=["type", "own"])
def test_what_shares_a_gcd_is_not_taken_for_slow(own: Taken | None) -> None:
    """Four together take half as long again each; alone, as long as the network says."""
    work, model = Work(1e12, 1, 1, 0, 0), CostModel(GCD)
    before = model.estimate("PNA", work, 10)
    for kind in ("PNA", "EGNN", "MACE"):
        for _ in range(16):
            model.observe(kind, Taken(steps=1.5, together=4))
            model.observe(kind, Taken(steps=1.0))
    assert model.estimate("PNA", work, 10, own=own).seconds == pytest.approx(
        before.seconds, rel=0.06
    )


def test_what_several_gcds_lose_is_learned() -> None:
    """Two take 1.2 times their time together, and four that once more."""
    work, model = Work(1e12, 1, 1, 0, 0), CostModel(GCD)
    before = model.estimate("PNA", work, 10).seconds
    for kind in ("PNA", "EGNN", "MACE"):
        for _ in range(16):
            model.observe(kind, Taken(steps=1.0))
            model.observe(kind, Taken(steps=1.2, width=2))
            model.observe(kind, Taken(steps=1.44, width=4))
    for width, factor in ((1, 1.0), (2, 1.2), (4, 1.44)):
        learned = model.estimate("SchNet", work, 10, width).seconds
        assert learned == pytest.approx(factor * before, rel=0.08)
    # A trial that has run on two keeps its own pace, on one GCD less what the second has cost.
    own = Taken(steps=2.4, width=2)
    assert model.estimate("PNA", work, 10, 2, own).seconds == pytest.approx(2.4 * before)
    assert model.estimate("PNA", work, 10, 1, own).seconds == pytest.approx(2.0 * before, rel=0.08)


@settings(deadline=None)
@given(graphs=st.floats(0.1, 1000), sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_the_largest_batch_is_no_smaller_than_the_mean_one(graphs: float, sizes: list[int]) -> None:
    factor = Sizes.of(np.array(sizes)).largest_batch(graphs)
    assert 1 <= factor <= max(sizes) / np.mean(sizes) * (1 + 1e-9)


@pytest.mark.parametrize("graphs", [8, 32, 128])
@pytest.mark.parametrize("sigma", [0.1, 0.6])
def test_the_largest_batch_is_that_of_many_draws(graphs: int, sigma: float) -> None:
    """Of 1,500 batches of graphs of log-normal sizes, in 40 epochs."""
    found = []
    for seed in range(40):
        sizes = np.random.default_rng(seed).lognormal(3.0, sigma, size=(1500, graphs))
        expected = Sizes.of(sizes.ravel()).largest_batch(graphs)
        found.append(sizes.sum(axis=1).max() / (graphs * sizes.mean()) / expected)
    assert 0.9 < np.quantile(found, 0.1) < np.quantile(found, 0.8) < 1.1
