"""Seconds and memory from the network alone, then from experience."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.execution.sites.site import guessed_gcd
from hydragnn_flow.placement import CostModel, Gcd, Work, too_large

GCD = Gcd(
    memory_gib=16.0,
    flops=1e12,
    bandwidth=1e11,
    launch_seconds=1e-5,
    process_gib=0.5,
    share=4,
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


def test_a_gcd_that_is_not_shared_is_busy() -> None:
    """As a CPU slot is, where the core that computes is the one that launches."""
    work = Work(1e12, 1e11, 700_000, 0, 0)
    assert CostModel(GCD).estimate("PNA", work, steps=1).busy < 1
    assert CostModel(replace(GCD, share=1)).estimate("PNA", work, steps=1).busy == 1
    assert guessed_gcd("cpu", 16.0).share == 1 < guessed_gcd("hip", 64.0).share


def test_memory_is_that_of_process_activations_and_copies_of_the_weights() -> None:
    work = Work(1, 1, 1, activation_bytes=2 * 2**30, parameter_bytes=0.5 * 2**30)
    estimate = CostModel(GCD).estimate("PNA", work, steps=1)
    assert estimate.memory_gib == pytest.approx(0.5 + 2 + 6 * 0.5)


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
    model = CostModel(GCD)
    before = seconds(model, work, 100)
    for _ in range(3):
        model.observe("PNA", before, factor * before)
    assert seconds(model, work, 100) == pytest.approx(factor * before)
    assert seconds(model, work, 100, "SchNet") == before


@settings(deadline=None)
@given(
    factors=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40),
    works=st.lists(works, min_size=1, max_size=5),
)
def test_what_is_learned_is_within_what_was_seen(factors: list[float], works: list[Work]) -> None:
    plain, model = CostModel(GCD), CostModel(GCD)
    for i, factor in enumerate(factors):
        work = works[i % len(works)]
        model.observe("PNA", seconds(plain, work, 10), factor * seconds(plain, work, 10))
    learned = seconds(model, works[0], 10) / seconds(plain, works[0], 10)
    assert min(factors) - 1e-9 <= learned <= max(factors) + 1e-9


def test_segments_in_flight_do_not_add_their_corrections_up() -> None:
    work = Work(1e12, 1, 1, 0, 0)
    model = CostModel(GCD)
    in_flight = [model.estimate("PNA", work, 10) for _ in range(500)]
    for estimate in in_flight:
        model.observe("PNA", estimate.uncorrected_seconds, 2 * estimate.uncorrected_seconds)
    assert seconds(model, work, 10) == pytest.approx(2 * in_flight[0].seconds)


def test_a_change_is_followed() -> None:
    work = Work(1e12, 1, 1, 0, 0)
    model = CostModel(GCD)
    before = seconds(model, work, 1)
    for factor, times in ((1.0, 200), (3.0, 60)):
        for _ in range(times):
            model.observe("PNA", before, factor * before)
    assert seconds(model, work, 1) == pytest.approx(3 * before, rel=0.01)


@pytest.mark.parametrize(("predicted", "took"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_a_time_of_nothing_teaches_nothing(predicted: float, took: float) -> None:
    work = Work(1e12, 1, 1, 0, 0)
    model = CostModel(GCD)
    before = seconds(model, work, 1)
    model.observe("PNA", predicted, took)
    assert seconds(model, work, 1) == before
    assert math.isfinite(before)
