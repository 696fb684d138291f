"""Error bars that hold what they promise, on data whose truth is known."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from calibration_cases import calibrated, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hydragnn_flow.ensemble.uncertainty.distribution import (
    Rows,
    combine,
    distribution,
    measured_coverage,
)

Floats = NDArray[np.float64]


def equal(n):
    return np.full(n, 1 / n)


def synthetic(seed, n, scale, floor):
    """Residuals ``[n, 1]`` with variance ``(scale * spread)² + floor²``, and the spread."""
    rng = np.random.default_rng(seed)
    spread = rng.lognormal(0.0, 1.0, size=(n, 1))
    return rng.normal(size=(n, 1)) * np.hypot(scale * spread, floor), spread


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_weights_give_numpys_mean_and_deviation(shape, seed):
    members = np.random.default_rng(seed).normal(1e3, 10.0, size=shape)
    mean, spread = combine(members, equal(len(members)))
    np.testing.assert_allclose(mean, members.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(spread, members.std(axis=0, ddof=1), rtol=1e-9)


@pytest.mark.parametrize(
    ("scale", "floor"), [(1.0, 0.5), (3.0, 0.5), (0.3, 1.0), (1.0, 5.0), (5.0, 1.0)]
)
def test_scale_and_floor_are_found(scale, floor):
    residuals, spread = synthetic(7, 20_000, scale, floor)
    found = calibrated(residuals, spread)
    [deviation] = found.deviations
    assert deviation.scale == pytest.approx(scale, rel=0.15)
    assert deviation.floor == pytest.approx(floor, rel=0.15)
    # 90 % of a Gaussian lies within 1.645 standard deviations.
    assert found.scores[0][0].quantile(0.9) == pytest.approx(1.645, rel=0.03)


def test_scale_and_floor_are_found_per_atom():
    rng = np.random.default_rng(3)
    atoms = rng.integers(8, 64, size=(20_000, 1)).astype(float)
    spread = rng.lognormal(0.0, 1.0, size=atoms.shape) * atoms
    residuals = rng.normal(size=atoms.shape) * np.hypot(2.0 * spread, 0.5 * atoms)
    found = calibrated(residuals, spread, per_atom=True, atoms=atoms)
    [deviation] = found.deviations
    assert deviation.scale == pytest.approx(2.0, rel=0.1)
    assert deviation.floor == pytest.approx(0.5, rel=0.15)
    members = np.stack([-spread / math.sqrt(2), spread / math.sqrt(2)])
    found = plain(deviation.scale, deviation.floor, 1.6, per_atom=True)
    std = distribution(members, equal(2), found, Rows(atoms), coverage=0.9).std
    np.testing.assert_allclose(std, np.hypot(deviation.scale * spread, deviation.floor * atoms))


@settings(max_examples=8, deadline=None)
@given(
    factor=st.floats(1e-6, 1e6),
    seed=st.integers(0, 1000),
    n=st.integers(5, 80),
    per_atom=st.booleans(),
)
def test_units_do_not_matter(factor, seed, n, per_atom):
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=(n, 1))
    members = reference + rng.normal(size=(3, n, 1))
    atoms = rng.integers(1, 9, size=(n, 1)).astype(float)

    def predict(c):
        mean, spread = combine(c * members, equal(3))
        found = calibrated(c * reference - mean, spread, 0.8, per_atom, atoms)
        d = distribution(c * members, equal(3), found, Rows(atoms), coverage=0.8)
        return [d.mean, d.std, d.lo, d.hi]

    for a, b in zip(predict(1.0), predict(factor), strict=True):
        # Where the score hardly changes, the fit ends within a hundredth of its least value.
        np.testing.assert_allclose(b / factor, a, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("n_members", [2, 3])
def test_members_that_agree_get_the_floor(n_members):
    rng = np.random.default_rng(5)
    truth = rng.normal(size=(4000, 3))
    members = np.repeat(np.zeros((1, *truth.shape)), n_members, axis=0)
    mean, spread = combine(members, equal(n_members))
    assert not spread.any()
    found = calibrated(truth - mean, spread)
    d = distribution(members, equal(n_members), found, coverage=0.9)
    np.testing.assert_allclose(d.std, 1.0, rtol=0.05)
    assert not d.epistemic_std.any()
    assert measured_coverage(truth, d) == pytest.approx(0.9, abs=0.001)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_no_error_at_all_gives_finite_numbers(spread):
    zeros = np.zeros((10, 1))
    found = calibrated(zeros, zeros + spread)
    assert np.isfinite(astuple(found.deviations[0])[:2]).all()
    d = distribution(np.zeros((2, 4, 1)), equal(2), found, coverage=0.9)
    assert measured_coverage(np.zeros((4, 1)), d) == 1.0


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0, 10),
    floor=st.floats(1e-6, 10),
    quantile=st.floats(0, 10),
)
def test_intervals_contain_their_mean_and_grow_with_their_quantile(seed, scale, floor, quantile):
    members = np.random.default_rng(seed).normal(size=(3, 5, 2))
    d = distribution(members, equal(3), plain(scale, floor, quantile), coverage=0.9)
    assert (d.lo <= d.mean).all() and (d.mean <= d.hi).all()
    assert (d.std >= d.epistemic_std).all() and (d.std >= floor).all()
    wider = distribution(members, equal(3), plain(scale, floor, quantile + 1), coverage=0.9)
    np.testing.assert_array_equal(d.spread, combine(members, equal(3))[1])
    assert (wider.lo < d.lo).all() and (wider.hi > d.hi).all()
