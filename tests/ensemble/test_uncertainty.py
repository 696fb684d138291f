"""Error bars that hold what they promise: deviations on data whose truth is known, quantiles."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from calibration_cases import calibrated, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.applicability import extrapolation_of
from hydragnn_flow.ensemble.uncertainty.calibration import calibrate, folds
from hydragnn_flow.ensemble.uncertainty.deviation import Deviation, Scores, needed_for_coverage
from hydragnn_flow.ensemble.uncertainty.distribution import Rows, Sizes, combine, distribution
from hydragnn_flow.models.leverage import LEVERAGE


def equal(n):
    return np.full(n, 1 / n)


def synthetic(seed, n, scale, floor):
    """Residuals ``[n, 1]`` with variance ``(scale * spread)² + floor²``, and the spread."""
    rng = np.random.default_rng(seed)
    spread = rng.lognormal(0.0, 1.0, size=(n, 1))
    return rng.normal(size=(n, 1)) * np.hypot(scale * spread, floor), spread


@pytest.mark.parametrize(("scale", "floor"), [(1.0, 0.5), (0.3, 1.0), (1.0, 5.0), (5.0, 1.0)])
def test_scale_and_floor_are_found(scale, floor):
    residuals, spread = synthetic(7, 20_000, scale, floor)
    found = calibrated(residuals, spread)
    [deviation] = found.deviations
    # As near to one as a thousandth of the score allows.
    assert abs(math.log(deviation.scale)) <= abs(math.log(scale)) + 1e-3
    assert deviation.scale == pytest.approx(scale, rel=0.3)
    assert deviation.floor == pytest.approx(floor, rel=0.3)
    # 90 % of a Gaussian lies within 1.645 standard deviations.
    assert found.scores[0][0].quantile(0.9) == pytest.approx(1.645, rel=0.05)


def test_standard_deviations_are_those_of_errors_with_a_few_large_ones():
    rng = np.random.default_rng(5)
    spread = rng.lognormal(0.0, 0.5, size=(20_000, 1))
    large = np.where(rng.random(spread.shape) < 0.1, 2.5, 1.0)  # a tenth, as of rare elements
    residuals = rng.normal(size=spread.shape) * spread * large
    [fitted] = calibrated(residuals[::2], spread[::2]).deviations
    std = fitted.std(spread[1::2], np.ones((10_000, 1)))
    assert math.sqrt(((residuals[1::2] / std) ** 2).mean()) == pytest.approx(1, abs=0.06)
    wrong = residuals[::2] + 1e6 * (rng.random((10_000, 1)) < 1e-3)
    [widened] = calibrated(wrong, spread[::2]).deviations
    ratio = widened.std(spread[1::2], np.ones((10_000, 1))) / std
    assert np.median(ratio) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("n", [1, 3, 10])
def test_a_few_errors_hardly_change_the_scale(n):
    for seed in range(10):
        spread = np.ones((n, 1))
        errors = np.random.default_rng(seed).normal(size=(n, 1))
        [deviation] = calibrated(errors, spread).deviations
        assert 0.4 < deviation.scale < 2.0


def test_scale_and_floor_are_found_per_atom():
    rng = np.random.default_rng(3)
    atoms = rng.integers(8, 64, size=(20_000, 1)).astype(float)
    spread = rng.lognormal(0.0, 1.0, size=atoms.shape) * atoms
    residuals = rng.normal(size=atoms.shape) * np.hypot(2.0 * spread, 0.5 * atoms)
    found = calibrated(residuals, spread, per_atom=True, atoms=atoms)
    [deviation] = found.deviations
    assert deviation.scale == pytest.approx(2.0, rel=0.1)
    assert deviation.floor == pytest.approx(0.5, rel=0.2)
    members = np.stack([-spread / math.sqrt(2), spread / math.sqrt(2)])
    found = plain(deviation.scale, deviation.floor, 1.6, per_atom=True)
    std = distribution(members, equal(2), found, Rows(atoms), coverage=0.9).std
    np.testing.assert_allclose(std, np.hypot(deviation.scale * spread, deviation.floor * atoms))


def test_extrapolation_adds_to_the_error_that_all_members_share():
    atoms, beyond = np.array([[2.0], [4.0]]), np.array([[0.0], [3.0]])
    rows, noise = Rows(atoms, extrapolation=beyond), np.array([[1.0], [6.0]])

    def total(per_atom, noise, usual, extrapolation=1.5):
        return Sizes.of(per_atom, rows, noise, (2, 1)).total(usual, extrapolation)

    np.testing.assert_allclose(total(False, None, 1.0), [[1.0], [2.0]])
    np.testing.assert_allclose(total(True, None, 1.0), [[2.0], [8.0]])
    np.testing.assert_allclose(total(True, None, 1.0, 0.0), atoms, err_msg="not used")
    # Beyond the training data the noise is only guessed, so the usual noise grows in its place.
    np.testing.assert_allclose(total(True, noise, 0.5), [[1.0], [np.hypot(6, 2 * np.sqrt(3))]])
    one = Deviation(1.0, 2.0, noise=0.5, extrapolation=1.5)
    found = replace(plain(1.0, 2.0, 1.0, per_atom=True), by_noise=True, deviations=(one,))
    members, noises = np.zeros((2, 2, 1)), np.stack([noise, noise])
    d = distribution(members, equal(2), found, rows, noises, coverage=0.9)
    np.testing.assert_allclose(d.std, 2 * np.array([[1.0], [np.hypot(6, 2 * np.sqrt(3))]]))
    np.testing.assert_array_equal(d.aleatoric_std, 2 * noise)


def test_each_component_extrapolates_its_own_noise():
    """An outlier among the noises, or another component's, does not set the usual one."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.5, 1.5, size=(60, 2)) * [1e-3, 10.0]
    noise[7] = 1e6
    found = calibrated(noise * rng.normal(size=(60, 2)), 1e-9 * noise, noise=noise)
    assert [d.noise for d in found.deviations] == pytest.approx([1e-3, 10.0], rel=0.2)
    assert all(d.noise == 1 for d in calibrated(noise, noise).deviations), "without noise"
    rows = Rows(extrapolation=np.full((1, 1), 3.0))
    at_one = tuple(replace(one, extrapolation=1.0) for one in found.deviations)
    found = replace(found, deviations=at_one)
    given = np.broadcast_to([1e-3, 10.0], (2, 1, 2))
    std = distribution(np.zeros((2, 1, 2)), equal(2), found, rows, given, coverage=0.9).std
    floors = np.array([d.floor for d in found.deviations])
    np.testing.assert_allclose(std[0], floors * [1e-3, 10.0] * 3, rtol=0.2)


def test_in_the_training_data_extrapolation_leaves_noise_and_errors_as_they_are():
    """However large it is there, as it is after training on few structures."""
    rng = np.random.default_rng(1)
    n, spread = 400, np.full((400, 1), 1e-3)
    noise = rng.lognormal(0.0, 1.0, size=(n, 1))
    errors, beyond = noise * rng.normal(size=(n, 1)), 60 * rng.lognormal(0.0, 0.2, size=(n, 1))
    beyond[7] = np.nan  # of features that are not finite
    sizes = Sizes.of(False, Rows(extrapolation=beyond), noise, (n, 1))
    each = np.arange(n)
    found = calibrate(errors, 0 * errors, spread, sizes, each, folds(n), 0.9)
    assert found is not None and found.structures == n - 1
    [deviation] = found.deviations
    assert deviation.floor == pytest.approx(1.0, rel=0.15)
    assert deviation.extrapolation == pytest.approx(60.0, rel=0.1)
    large = noise[:, 0] > 2
    std = deviation.floor * sizes.at(large).total(deviation.noise, deviation.extrapolation)
    assert np.nanmedian(std / noise[large]) == pytest.approx(1.0, rel=0.15)


def test_members_without_a_weight_do_not_extrapolate():
    members = {LEVERAGE: np.array([[[1.0]], [[7.0]], [[np.nan]]])}
    assert extrapolation_of(members, np.array([0.5, 0.5, 0.0])) == [2.0]
    assert extrapolation_of({}, np.ones(1)) is None


@settings(max_examples=8)
@given(st.floats(1e-6, 1e6), st.integers(0, 1000), st.integers(5, 80), st.booleans())
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


def test_with_one_value_each_the_quantile_is_that_of_the_definition():
    """The smallest q with (number of scores <= q) / (n + 1) >= coverage, in exact arithmetic."""
    for n in (*range(1, 61), 98, 99):  # of which 99 are the fewest that hold 99 %
        scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
        found = Scores.of(scores, np.arange(n))
        for percent in range(1, 100):
            rank = next(k for k in range(n + 2) if Fraction(k, n + 1) >= Fraction(percent, 100))
            assert found.quantile(percent / 100) == (rank if rank <= n else math.inf)
            assert (rank <= n) == (n >= needed_for_coverage(percent / 100))


@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("shared", [0.0, 1.0, 5.0])
def test_values_that_err_together_are_held(coverage, shared):
    """24 structures of 1 to 40 atoms with heavy tails; the harder a structure, the more it errs.

    Values counted as if they were independent hold too few of the next structure's.
    """
    found = []
    for seed in range(250):
        rng = np.random.default_rng([seed, 1])
        sizes = rng.integers(1, 41, size=25)
        structure = np.repeat(np.arange(25), sizes)
        hard = np.exp(shared * rng.normal(size=25))[structure]
        scores = np.abs(rng.standard_t(4, size=len(structure))) * hard
        new = structure == 24
        quantile = Scores.of(scores[~new], structure[~new]).quantile(coverage)
        found.append(float(np.mean(scores[new] <= quantile)))
    band = 3 * np.std(found) / math.sqrt(len(found))
    assert coverage - band - 0.01 <= np.mean(found) <= coverage + band + 0.01


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_neither_order_nor_names_of_structures_matter(sizes, seed):
    rng = np.random.default_rng(seed)
    structure = np.repeat(rng.choice(10**6, len(sizes), replace=False), sizes)
    scores = rng.gamma(1.0, size=len(structure))
    found = Scores.of(scores, structure)
    order = rng.permutation(len(scores))
    other = Scores.of(scores[order], -structure[order])
    np.testing.assert_allclose(other.held, found.held, rtol=1e-9)
    assert other.score == found.score
    assert found.structures == len(sizes)
    assert (np.diff(found.score) >= 0).all() and (np.diff(found.held) >= 0).all()
    assert found.held[0] > 0 and found.held[-1] < 1


def test_of_a_large_set_few_scores_are_kept_and_none_held_too_few():
    scores = np.random.default_rng(0).gamma(1.0, size=20_000)
    found = Scores.of(scores, np.arange(len(scores)))
    assert len(found.score) <= 401
    ordered = np.sort(scores)
    for coverage in (0.5, 0.8, 0.9, 0.95, 0.99):
        rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
        assert found.quantile(coverage) == ordered[rank - 1]
    for coverage in (0.123, 0.9444):
        exact = ordered[math.ceil((len(scores) + 1) * coverage) - 1]
        more = ordered[math.ceil((len(scores) + 1) * (coverage + 1 / 400)) - 1]
        assert exact <= found.quantile(coverage) <= more
