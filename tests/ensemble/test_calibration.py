"""Calibrations on synthetic errors: intervals that hold, deviations of any shape, any frame."""

import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from calibration_cases import calibrated, ones
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.uncertainty.calibration import calibrate, folds
from hydragnn_flow.ensemble.uncertainty.deviation import fit_deviation
from hydragnn_flow.ensemble.uncertainty.distribution import (
    Calibration,
    Rows,
    combine,
    distribution,
    measured_coverage,
)

EQUAL = np.full(5, 0.2)


def predicted(members, calibration, coverage=0.9):
    return distribution(members, EQUAL, calibration, coverage=coverage)


def of_structures(structure, reference, mean, spread, coverage=0.9, **more):
    """A calibration on rows, of which a structure may have several."""
    fold = folds(structure.max() + 1)[structure]
    return calibrate(reference, mean, spread, ones(spread), structure, fold, coverage, **more)


def scalars(rng, n):
    """True values ``[n, 1]`` and five members with a common error of heavy tails."""
    truth = rng.normal(size=(n, 1))
    noise = rng.lognormal(0.0, 0.7, size=truth.shape)
    common = 0.5 * rng.standard_t(4, truth.shape)
    return truth, truth + common + noise * rng.normal(size=(5, *truth.shape))


def vectors(rng, n):
    """Structure of each of 8 n atoms, their forces, and five members.

    Some structures are harder than others, and large forces are harder than small ones, more than
    the members know.
    """
    structure = np.repeat(np.arange(n), 8)
    truth = rng.normal(size=(len(structure), 3)) * rng.lognormal(0, 1, size=(len(structure), 1))
    hard = np.exp(0.5 * rng.normal(size=n))[structure, None]
    size = 0.1 + 0.2 * np.linalg.norm(truth, axis=1, keepdims=True)
    common = hard * size * rng.standard_t(5, truth.shape)
    members = truth + common + 0.3 * hard * rng.normal(size=(5, *truth.shape))
    return structure, truth, members


@pytest.mark.parametrize(("n", "coverage"), [(20, 0.9), (48, 0.5)])
def test_intervals_hold_whatever_the_number_of_structures(n, coverage):
    held = []
    for seed in range(25):
        rng = np.random.default_rng([seed, n])
        truth, members = scalars(rng, n + 300)
        mean, spread = combine(members[:, :n], EQUAL)
        found = calibrated(truth[:n] - mean, spread, coverage)
        held.append(measured_coverage(truth[n:], predicted(members[:, n:], found, coverage)))
    error = np.std(held) / math.sqrt(len(held))
    # The quantile of n scores holds at most 1 / (n + 1) more.
    assert coverage - 3 * error <= np.mean(held) <= coverage + 1 / (n + 1) + 3 * error


def test_forces_are_held_in_every_quarter_of_their_norm():
    """Four groups of norms; with a common quantile the largest forces leave their intervals."""
    held = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        structure, truth, members = vectors(rng, 300)
        there = structure < 60
        mean, spread = combine(members[:, there], EQUAL)
        found = of_structures(structure[there], truth[there], mean, spread)
        assert len(found.norms) == 3
        truth, members = truth[~there], members[:, ~there]
        norm = np.linalg.norm(truth, axis=1)
        quarter = np.searchsorted(np.quantile(norm, [0.25, 0.5, 0.75]), norm)
        together = replace(found, norms=(), scores=((found.scores[0][1],),))
        for by in (found, together):
            for those in (quarter == q for q in range(4)):
                held.append(measured_coverage(truth[those], predicted(members[:, those], by)))
    grouped, common = np.mean(np.reshape(held, (6, 2, 4)), axis=0)
    assert grouped == pytest.approx([0.9] * 4, abs=0.05)
    assert common[3] < 0.85


def predicted_std(calibration, spread):
    return np.asarray(np.hypot(*calibration.parts(spread, ones(spread), Rows())))


def fitted(error, spread):
    """Scale and floor of errors ``[n]``, each of a structure of its own."""
    rows = (np.asarray(values, float)[:, None] for values in (np.abs(error), spread))
    found = fit_deviation(*rows, np.ones((len(error), 1)), np.arange(len(error)))
    return found.scale, found.floor


@pytest.mark.parametrize("n", [1, 2, 20, 60])
def test_few_structures_do_not_silence_the_members(n):
    """Most sets whose score is flat have a scale of one; more structures say more."""
    scales = []
    for seed in range(20):
        rng = np.random.default_rng([seed, n])
        spread = 0.1 * rng.lognormal(size=n)
        scales.append(fitted(rng.normal(size=n), spread)[0])
    assert np.median(scales) == 1.0
    assert np.quantile(scales, 0.1) >= 0.5 and np.quantile(scales, 0.9) <= 10


def test_the_scale_is_two_standard_errors_from_the_best_and_no_further():
    """Members exaggerate fivefold: few structures allow more of their disagreement than many."""
    medians = []
    for n in (30, 300, 3000):
        found = []
        for seed in range(9):
            rng = np.random.default_rng([seed, n])
            spread = rng.lognormal(size=n)
            found.append(fitted(rng.normal(size=n) * spread / 5, spread)[0])
        medians.append(np.median(found))
    assert 0.5 > medians[0] > 1.05 * medians[1] > 1.05 * medians[2] > 0.2


@pytest.mark.parametrize("atoms", [3, 300])
def test_structures_count_alike_whatever_their_atoms_and_how_many_values_are_used(atoms):
    """Large structures with small errors do not hide small ones with large errors."""
    rng = np.random.default_rng(atoms)
    structure = np.repeat(np.arange(600), np.where(np.arange(600) < 300, 3, atoms))
    error = np.abs(rng.normal(size=(len(structure), 1))) * np.where(structure < 300, 10, 1)[:, None]
    found = fit_deviation(error, np.zeros_like(error), np.ones_like(error), structure)
    assert found.floor == pytest.approx(4.8, rel=0.1)


@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize(("error", "spread"), [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_a_bar_has_a_width_whatever_the_data(n, error, spread):
    """One structure, no error at all, members that agree exactly."""
    found = calibrated(np.full((n, 1), error), np.full((n, 1), spread), 0.5)
    (std,) = predicted_std(found, np.full((1, 1), spread))[0]
    assert 0 < std < 3 and std >= error / 2
    width = std * found.quantiles(np.zeros((1, 1)), 0.5, Rows())[0, 0]
    assert width > 0 and math.isfinite(width)


def test_components_of_a_spectrum_are_calibrated_each_alone():
    rng = np.random.default_rng(1)
    factor = np.array([0.1, 1.0, 10.0, 100.0])
    residuals = rng.normal(size=(500, 4)) * factor
    found = calibrated(residuals, np.ones((500, 4)))
    std = predicted_std(found, np.ones((1, 4)))
    np.testing.assert_allclose(std / factor, 1.0, rtol=0.15)


def test_values_of_atoms_are_held_by_element():
    """Charges that are ten times as uncertain on one element, which the members do not know."""
    rng = np.random.default_rng(3)
    structure = np.repeat(np.arange(40), 8)
    numbers = np.tile([8, 8, 8, 26, 26, 8, 26, 8], 40)
    numbers[:8] = 79
    wide = np.where(numbers == 26, 1.0, 0.1)[:, None]
    residuals, spread = wide * rng.normal(size=(320, 1)), np.ones((320, 1))
    found = of_structures(structure, residuals, 0 * spread, spread, numbers=numbers)
    assert found.elements == (8, 26)
    mean, kinds = np.zeros((4, 1)), Rows(numbers=np.array([8, 26, 79, 1]))
    oxygen, iron, rare, new = found.quantiles(mean, 0.9, kinds)[:, 0]
    assert iron / oxygen == pytest.approx(10, rel=0.4)
    assert oxygen < rare == new < iron, "by all atoms, as there is one structure of such"
    assert found.quantiles(mean, 0.9, Rows()).tolist() == [[rare]] * 4
    members = np.zeros((5, 320, 1)) + np.array([-1, -1, 0, 1, 1])[:, None, None]
    predicted = distribution(members, EQUAL, found, Rows(numbers=numbers), coverage=0.9)
    half = predicted.interval(0.9)[1]
    np.testing.assert_array_equal(half, predicted.hi)
    for element in (8, 26):
        held = (np.abs(residuals) <= half)[numbers == element]
        assert held.mean() == pytest.approx(0.9, abs=0.03)


def test_what_is_not_known_is_left_out():
    """The stress of a molecule, and labels of no structure at all."""
    rng = np.random.default_rng(2)
    spread, numbers = rng.lognormal(size=(40, 1)), np.arange(40)
    half = np.where(numbers[:, None] % 2, rng.normal(size=(40, 1)), np.nan)
    calibration = of_structures(numbers, half, 0 * spread, spread)
    assert calibration.structures == calibration.least_structures() == 20
    assert of_structures(numbers, half * np.nan, 0 * spread, spread) is None


def test_structures_are_counted_whatever_group_their_atoms_are_in():
    """60 structures of small and of large vectors: no group has them all, the calibration does."""
    rng = np.random.default_rng(3)
    mean = rng.normal(size=(60, 3)) * np.repeat([0.1, 10.0], 30)[:, None]
    error, spread = rng.normal(size=(60, 3)), rng.lognormal(size=(60, 3))
    calibration = of_structures(np.arange(60), mean + error, mean, spread, 0.8)
    assert calibration.norms
    assert calibration.structures == 60 > calibration.least_structures()


@settings(max_examples=10)
@given(n=st.integers(1, 60), dim=st.sampled_from([1, 2, 3]), seed=st.integers(0, 2**32 - 1))
def test_a_calibration_survives_json(n, dim, seed):
    rng = np.random.default_rng(seed)
    found = calibrated(rng.normal(size=(n, dim)), rng.lognormal(size=(n, dim)), 0.5)
    assert msgspec.convert(json.loads(json.dumps(found.to_dict())), Calibration) == found


def test_folds_are_ten_of_almost_equal_size_and_always_the_same():
    for n in (0, 1, 2, 10, 24, 1001):
        found = folds(n)
        assert len(found) == n and np.array_equal(found, folds(n))
        sizes = np.bincount(found, minlength=1)
        assert len(sizes) == max(min(n, 10), 1) and np.ptp(sizes) <= 1
