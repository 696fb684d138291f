"""Error bars that hold what they promise, on data whose truth is known."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hydragnn_flow.ensemble.uncertainty import (
    Calibration,
    calibrate,
    combine,
    conformal_quantile,
    distribution,
    measured_coverage,
    needed_for_coverage,
)

Floats = NDArray[np.float64]


def equal(n: int) -> Floats:
    return np.full(n, 1 / n)


def synthetic(seed: int, n: int, scale: float, floor: float) -> tuple[Floats, Floats]:
    """Residuals ``[n, 1]`` with variance ``(scale * spread)² + floor²``, and the spread."""
    rng = np.random.default_rng(seed)
    spread = rng.lognormal(0.0, 1.0, size=(n, 1))
    return rng.normal(size=(n, 1)) * np.hypot(scale * spread, floor), spread


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_weights_give_numpys_mean_and_deviation(shape: tuple[int, ...], seed: int) -> None:
    members = np.random.default_rng(seed).normal(1e3, 10.0, size=shape)
    mean, spread = combine(members, equal(len(members)))
    np.testing.assert_allclose(mean, members.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(spread, members.std(axis=0, ddof=1), rtol=1e-9)


def test_a_member_of_no_weight_does_not_move_the_mean() -> None:
    members = np.array([[[1.0]], [[3.0]], [[1000.0]]])
    mean, _ = combine(members, np.array([0.25, 0.75, 0.0]))
    assert mean.item() == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("scale", "floor"), [(1.0, 0.5), (3.0, 0.5), (0.3, 1.0), (1.0, 5.0), (5.0, 1.0)]
)
def test_scale_and_floor_are_found(scale: float, floor: float) -> None:
    residuals, spread = synthetic(7, 20_000, scale, floor)
    found = calibrate(residuals, spread, 0.9, per_atom=False)
    assert found.scale == pytest.approx(scale, rel=0.15)
    assert found.floor == pytest.approx(floor, rel=0.15)
    # 90 % of a Gaussian lies within 1.645 standard deviations.
    assert found.quantile == pytest.approx(1.645, rel=0.03)


def test_scale_and_floor_are_found_per_atom() -> None:
    rng = np.random.default_rng(3)
    atoms = rng.integers(8, 64, size=(20_000, 1)).astype(float)
    spread = rng.lognormal(0.0, 1.0, size=atoms.shape) * atoms
    residuals = rng.normal(size=atoms.shape) * np.hypot(2.0 * spread, 0.5 * atoms)
    found = calibrate(residuals, spread, 0.9, per_atom=True, atoms=atoms)
    assert (found.scale, found.floor) == (
        pytest.approx(2.0, rel=0.1),
        pytest.approx(0.5, rel=0.15),
    )
    members = np.stack([-spread / math.sqrt(2), spread / math.sqrt(2)])
    std = distribution(members, equal(2), found, atoms).std
    np.testing.assert_allclose(std, np.hypot(found.scale * spread, found.floor * atoms))


@settings(max_examples=30, deadline=None)
@given(
    factor=st.floats(1e-6, 1e6),
    seed=st.integers(0, 1000),
    n=st.integers(5, 80),
    per_atom=st.booleans(),
)
def test_units_do_not_matter(factor: float, seed: int, n: int, per_atom: bool) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(n, 1))
    members = reference + rng.normal(size=(3, n, 1))
    atoms = rng.integers(1, 9, size=(n, 1)).astype(float)

    def predict(c: float) -> tuple[Calibration, list[Floats]]:
        mean, spread = combine(c * members, equal(3))
        found = calibrate(c * reference - mean, spread, 0.8, per_atom, atoms)
        d = distribution(c * members, equal(3), found, atoms)
        return found, [d.mean, d.std, d.lo, d.hi]

    plain, one = predict(1.0)
    scaled, other = predict(factor)
    # The likelihood is flat where the scale is next to nothing.
    assert scaled.scale == pytest.approx(plain.scale, rel=1e-3, abs=2e-2)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(b / factor, a, rtol=1e-3, atol=2e-3)


def test_the_quantile_is_that_of_the_definition() -> None:
    """The smallest q with (number of scores <= q) / (n + 1) >= coverage, in exact arithmetic."""
    for n in range(1, 61):
        scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
        for percent in range(1, 100):
            rank = next(k for k in range(n + 2) if Fraction(k, n + 1) >= Fraction(percent, 100))
            assert conformal_quantile(scores, percent / 100) == min(rank, n)
            assert (rank <= n) == (n >= needed_for_coverage(percent / 100))


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (19, 0.5), (20, 0.8), (50, 0.9), (99, 0.95)])
def test_conformal_coverage_is_the_asked_one_on_average(n: int, coverage: float) -> None:
    """Split conformal holds ⌈(n+1) coverage⌉ / (n+1) of new data, for any distribution."""
    rng = np.random.default_rng(11)
    draws = 4000
    scores = rng.gamma(0.7, size=(draws, n + 1))
    held = [row[-1] <= conformal_quantile(row[:-1], coverage) for row in scores]
    expected = math.ceil((n + 1) * coverage - 1e-9) / (n + 1)
    # three standard errors; never below the coverage by more
    assert np.mean(held) == pytest.approx(
        expected, abs=3 * math.sqrt(expected * (1 - expected) / draws)
    )
    assert expected >= coverage


@pytest.mark.parametrize(("n", "coverage"), [(20, 0.9), (48, 0.9), (48, 0.5)])
def test_the_whole_calibration_has_its_coverage(n: int, coverage: float) -> None:
    """Errors with heavy tails, few members, small validation sets."""
    held = []
    for seed in range(150):
        rng = np.random.default_rng([seed, n])
        truth = rng.normal(size=(n + 200, 1))
        noise = rng.lognormal(0.0, 0.7, size=truth.shape)
        members = (
            truth
            + 0.5 * rng.standard_t(4, truth.shape)
            + noise * rng.normal(size=(3, *truth.shape))
        )
        mean, spread = combine(members[:, :n], equal(3))
        found = calibrate(truth[:n] - mean, spread, coverage, per_atom=False)
        held.append(
            measured_coverage(truth[n:], distribution(members[:, n:], equal(3), found, None))
        )
    error = np.std(held) / math.sqrt(len(held))
    assert np.mean(held) >= coverage - 3 * error
    assert np.mean(held) <= coverage + 1 / (n + 1) + 3 * error


@pytest.mark.parametrize("n_members", [2, 3])
def test_members_that_agree_get_the_floor(n_members: int) -> None:
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(4000, 3))
    members = np.repeat(np.zeros((1, *truth.shape)), n_members, axis=0)
    mean, spread = combine(members, equal(n_members))
    assert not spread.any()
    found = calibrate(truth - mean, spread, 0.9, per_atom=False)
    d = distribution(members, equal(n_members), found, None)
    np.testing.assert_allclose(d.std, 1.0, rtol=0.05)
    assert not d.epistemic_std.any()
    assert measured_coverage(truth, d) == pytest.approx(0.9, abs=0.001)


def test_two_members_are_enough() -> None:
    rng = np.random.default_rng(6)
    truth = rng.normal(size=(5000, 1))
    members = truth + rng.normal(size=(2, *truth.shape))
    mean, spread = combine(members[:, :2500], equal(2))
    found = calibrate(truth[:2500] - mean, spread, 0.9, per_atom=False)
    d = distribution(members[:, 2500:], equal(2), found, None)
    assert measured_coverage(truth[2500:], d) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_no_error_at_all_gives_finite_numbers(spread: float) -> None:
    zeros = np.zeros((10, 1))
    found = calibrate(zeros, zeros + spread, 0.9, per_atom=False)
    assert all(math.isfinite(v) for v in (found.scale, found.floor, found.quantile))
    d = distribution(np.zeros((2, 4, 1)), equal(2), found, None)
    assert measured_coverage(np.zeros((4, 1)), d) == 1.0


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0, 10),
    floor=st.floats(1e-6, 10),
    quantile=st.floats(0, 10),
)
def test_intervals_contain_their_mean_and_grow_with_their_quantile(
    seed: int, scale: float, floor: float, quantile: float
) -> None:
    members = np.random.default_rng(seed).normal(size=(3, 5, 2))
    found = Calibration(scale, floor, quantile, 0.9, per_atom=False)
    d = distribution(members, equal(3), found, None)
    assert (d.lo <= d.mean).all() and (d.mean <= d.hi).all()
    assert (d.std >= d.epistemic_std).all() and (d.std >= floor).all()
    wider = distribution(members, equal(3), replace(found, quantile=quantile + 1), None)
    assert (wider.lo < d.lo).all() and (wider.hi > d.hi).all()


def test_a_calibration_survives_json() -> None:
    found = Calibration(1.5, 0.1, 2.0, 0.9, per_atom=True)
    assert Calibration(**asdict(found)) == found


@settings(deadline=None)
@given(coverage=st.floats(0.01, 0.999))
def test_the_smallest_set_that_can_have_a_coverage(coverage: float) -> None:
    needed = needed_for_coverage(coverage)
    assert (needed + 1) * coverage <= needed + 1e-6
    assert needed * coverage > needed - 1 - 1e-6
