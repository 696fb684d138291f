"""How much each member counts: what weights fitted on data can and cannot do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.finish import combine_best
from hydragnn_flow.ensemble.selection import Judged
from hydragnn_flow.ensemble.uncertainty.calibration import folds
from hydragnn_flow.ensemble.uncertainty.distribution import combine, combine_noise


def drawn(scales, seed, power=1, n=120):
    random = np.random.default_rng(seed)
    residuals = np.array(scales)[:, None] * random.standard_t(3, size=(len(scales), n))
    return Judged(residuals, np.full(n, 1 / n), power)


def loss(judged, weights):
    return float(judged.criterion(weights @ judged.residuals))


scales = st.lists(st.floats(0.1, 10), min_size=2, max_size=6)


def test_independent_members_count_by_their_variance():
    random = np.random.default_rng(3)
    residuals = random.normal(size=(2, 20000)) * np.array([[1.0], [2.0]])
    for power in (1, 2):
        found = combine_best(
            Judged(residuals, np.full(20000, 1 / 20000), power), folds(20000), "weighted", False
        )
        np.testing.assert_allclose(found.weights, [0.8, 0.2], atol=0.02)


def test_a_few_wild_atoms_do_not_decide():
    """The quickstart's fault: 5 of 1,532 atoms silenced the member that was better on the rest."""
    random = np.random.default_rng(4)
    residuals = random.normal(size=(2, 1500)) * np.array([[1.0], [1.5]])
    residuals[0, :5] = 60
    shares = np.full(1500, 1 / 1500)
    squares, absolute = (
        combine_best(Judged(residuals, shares, power), folds(1500), "weighted", False).weights
        for power in (2, 1)
    )
    assert squares[0] < 0.4 and absolute[0] > 0.5


@settings(deadline=None, max_examples=15)
@given(scales, st.integers(0, 50), st.sampled_from([1, 2]), st.booleans())
def test_the_ensemble_is_hardly_worse_than_the_best_member_on_what_chose_that_one(
    s, seed, power, median
):
    judged = drawn(s, seed, power)
    found = combine_best(judged, folds(120), "auto", median)
    best = float(judged.criterion(judged.residuals).min())
    if found.aggregation == "median":
        assert median
        assert judged.criterion(np.median(judged.residuals, axis=0)) <= best * 1.2
    else:
        assert loss(judged, found.weights) <= best * 1.2
    assert found.weights.sum() == pytest.approx(1) and found.weights.min() > 0


def test_members_alike_all_count_although_one_is_the_best_of_few_structures():
    """Si with 24 structures: four networks that err alike, and one that errs 4 % less there."""
    random = np.random.default_rng(5)
    common = random.normal(size=24)
    errors = [common + 0.2 * random.normal(size=24) for _ in range(4)]
    judged = Judged(np.stack([0.96 * errors[0], *errors[1:]]), np.full(24, 1 / 24))
    found = combine_best(judged, folds(24), "auto", median=False)
    assert found.weights.min() > 0.1


def test_what_is_asked_for_is_done():
    judged = drawn([0.01, 5.0, 5.0], seed=0)
    assert combine_best(judged, folds(120), "uniform", True).weights == pytest.approx(1 / 3)
    assert combine_best(judged, folds(120), "median", True).aggregation == "median"
    weighted = combine_best(judged, folds(120), "weighted", True)
    assert weighted.weights[0] > 0.9
    assert set(weighted.scores) == {"weighted", "uniform", "median"}
    np.testing.assert_allclose(weighted.fold_weights.sum(axis=1), 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("asked", ["auto", "weighted", "uniform"])
@pytest.mark.parametrize("wild", [np.nan, np.inf])
def test_a_member_without_a_finite_criterion_does_not_count(wild, asked):
    good = drawn([1.0, 1.2], seed=2)
    judged = Judged(np.vstack([good.residuals, np.full(120, wild)]), good.shares)
    found = combine_best(judged, folds(120), asked, median=True)
    alone = combine_best(good, folds(120), asked, median=True)
    np.testing.assert_array_equal(found.weights, [*alone.weights, 0.0])
    assert found.aggregation == alone.aggregation and found.scores == pytest.approx(alone.scores)
    # One structure says it all as well, and that the other folds do not know.
    judged.residuals[2, 1:] = 1.0
    found = combine_best(judged, folds(120), asked, median=True)
    np.testing.assert_array_equal(found.weights[2], 0.0)
    assert np.isfinite(found.weights).all() and found.weights.sum() == pytest.approx(1)


@pytest.mark.filterwarnings("error")
def test_members_count_alike_if_no_criterion_is_finite():
    judged = Judged(np.full((4, 30), np.nan), np.full(30, 1 / 30))
    found = combine_best(judged, folds(30), "auto", median=True)
    np.testing.assert_array_equal(found.weights, 0.25)
    np.testing.assert_array_equal(found.fold_weights, 0.25)


def test_a_member_without_weight_does_not_spoil_the_others():
    members = np.array([[1.0, 2.0], [3.0, 2.0], [np.nan, np.inf]])
    found = combine(members, np.array([0.5, 0.5, 0.0]))
    np.testing.assert_allclose(found, combine(members[:2], np.array([0.5, 0.5])))
    np.testing.assert_array_equal(combine(members, np.array([1.0, 0, 0])), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(combine_noise(members, np.array([1.0, 0, 0])), [1, 2])
