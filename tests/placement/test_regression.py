"""The regression of times: what it finds, and how sure it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.placement.regression import Case, Prior, Regression

PRIOR = Prior(noise=0.1, counts=4, common=1.0, terms=(0.5, 0.5), kinds=0.2)


@given(
    terms=st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=2),
    conditions=st.lists(st.floats(0, 5), min_size=1, max_size=1),
)
def test_before_anything_was_seen_the_guess_is_the_sum(terms, conditions):
    found = Regression(PRIOR, 1, ()).expect(Case("a", tuple(terms), tuple(conditions)))
    assert math.exp(found.log) == pytest.approx(sum(terms))
    assert found.parts == pytest.approx(np.array(terms) / sum(terms))
    assert found.freedom == PRIOR.counts
    assert found.deviation > 1.0


def seen(chance, n, noise):
    """The first term twice as long as guessed, the second half; each doubling takes 1.4 times."""
    found = []
    for number in range(n):
        first, second = np.exp(chance.uniform(-3, 3, 2))
        doublings = chance.integers(0, 3)
        time = (2 * first + second / 2) * 1.4**doublings * math.exp(chance.normal(0, noise))
        case = Case("abcd"[number % 4], (first, second), (doublings * math.log(2),))
        found.append((case, time))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_rates_and_powers_are_found(noise):
    regression = Regression(PRIOR, 1, seen(np.random.default_rng(0), 64, noise))

    def expect(terms, doublings=0):
        return math.exp(regression.expect(Case("e", terms, (doublings * math.log(2),))).log)

    assert expect((1.0, 0.0)) == pytest.approx(2.0, rel=0.08)
    assert expect((0.0, 1.0)) == pytest.approx(0.5, rel=0.08)
    assert expect((1.0, 1.0), 2) == pytest.approx(2.5 * 1.4**2, rel=0.08)


def test_the_best_values_are_found_from_far_away():
    """A thousand times slower than guessed, and nothing diverges on the way."""
    cases = [(case, 1000 * time) for case, time in seen(np.random.default_rng(1), 64, 0.0)]
    regression = Regression(PRIOR, 1, cases)
    assert all(
        regression.expect(case).log == pytest.approx(math.log(time), abs=0.25)
        for case, time in cases
    )


def test_a_condition_shortens_nothing():
    cases = [(Case("a", (1.0,), (x,)), math.exp(-x)) for x in (0.0, 0.0, 1.0, 1.0, 2.0)]
    regression = Regression(replace(PRIOR, terms=(0.5,)), 1, cases)
    near, far = (regression.expect(Case("a", (1.0,), (x,))).log for x in (0.0, 3.0))
    assert near == far


def test_what_is_hidden_does_not_count():
    """Of two sets of terms the longer one does, a little more near ties, and a third thing always.

    The derivatives are those of the time.
    """
    regression = Regression(replace(PRIOR, terms=(0.5,) * 3), 0, (), hidden=((0,), (1,)))
    for terms, expected in (((9.0, 2.0, 1.0), 10.0), ((2.0, 9.0, 1.0), 10.0)):
        found = regression.expect(Case("a", terms))
        assert math.exp(found.log) == pytest.approx(expected, rel=1e-5)
        assert found.parts[:2] * expected == pytest.approx(terms[:2], rel=1e-5)
    nothing = regression.expect(Case("a", (0.0, 0.0, 1.0)))
    assert math.exp(nothing.log) == pytest.approx(1.0)
    times = [math.exp(regression.expect(Case("a", (x, 1.0, 0.0))).log) for x in (0.9, 1.0, 1.1)]
    assert 1.0 < times[0] < times[1] < 1.1 < times[2] < 1.1 * 1.1
    rows, log, _ = regression._linear(*regression._table([Case("a", (1.0, 0.9, 0.5))]))
    for term, place in enumerate(range(*regression._factors.indices(99))):
        terms = np.array([1.0, 0.9, 0.5])
        terms[term] *= math.exp(1e-6)
        change = regression.expect(Case("a", tuple(terms.tolist()))).log - float(log[0])
        assert change / 1e-6 == pytest.approx(rows[0, place], abs=1e-4)


def test_kinds_that_were_not_seen_are_less_sure():
    cases = seen(np.random.default_rng(2), 40, 0.1)
    regression = Regression(PRIOR, 1, cases)
    known, unknown = (regression.expect(Case(kind, (1.0, 1.0), (0.0,))) for kind in "az")
    assert (
        known.deviation
        < unknown.deviation
        < Regression(PRIOR, 1, ()).expect(Case("z", (1.0, 1.0), (0.0,))).deviation
    )
