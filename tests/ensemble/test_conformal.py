"""Conformal quantiles: exact for one value per structure, honest for many that err together."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hydragnn_flow.ensemble.uncertainty.deviation import Scores, needed_for_coverage


def test_with_one_value_each_the_quantile_is_that_of_the_definition():
    """The smallest q with (number of scores <= q) / (n + 1) >= coverage, in exact arithmetic."""
    for n in range(1, 61):
        scores = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
        found = Scores.of(scores, np.arange(n))
        for percent in range(1, 100):
            rank = next(k for k in range(n + 2) if Fraction(k, n + 1) >= Fraction(percent, 100))
            assert found.quantile(percent / 100) == (rank if rank <= n else math.inf)
            assert (rank <= n) == (n >= needed_for_coverage(percent / 100))


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (19, 0.5), (20, 0.8), (50, 0.9), (99, 0.95)])
def test_coverage_of_one_value_each_is_the_asked_one_on_average(n, coverage):
    """Split conformal holds ⌈(n+1) coverage⌉ / (n+1) of new data, for any distribution."""
    draws = 1000
    scores = np.random.default_rng(11).gamma(0.7, size=(draws, n + 1))
    held = [row[-1] <= Scores.of(row[:-1], np.arange(n)).quantile(coverage) for row in scores]
    expected = math.ceil((n + 1) * coverage - 1e-9) / (n + 1)
    assert expected >= coverage
    assert np.mean(held) == pytest.approx(
        expected, abs=3 * math.sqrt(expected * (1 - expected) / draws)
    )


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


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=30, deadline=None)
@given(coverage=st.floats(0.01, 0.999))
def test_the_smallest_set_that_can_have_a_coverage(coverage):
    needed = needed_for_coverage(coverage)
    assert (needed + 1) * coverage <= needed + 1e-6
    assert needed * coverage > needed - 1 - 1e-6
