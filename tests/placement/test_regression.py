"""The regression of times: what it finds, and how sure it is."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hydragnn_flow.placement.regression import Case, Prior, Regression

PRIOR = Prior(noise=0.1, counts=4, common=1.0, terms=(0.5, 0.5), kinds=0.2)


def test_the_best_values_are_found_from_far_away():
    """A thousand times slower than guessed, and nothing diverges on the way.

    The second term is four times faster beside the first; each doubling takes 1.4 times as long.
    """
    chance, cases = np.random.default_rng(1), []
    for number in range(64):
        first, second = np.exp(chance.uniform(-3, 3, 2))
        doublings = chance.integers(0, 3)
        case = Case("abcd"[number % 4], (first, second), (doublings * math.log(2),))
        cases.append((case, 1000 * (2 * first + second / 2) * 1.4**doublings))
    regression = Regression(PRIOR, 1, cases)
    for case, time in cases:
        assert regression.expect(case).log == pytest.approx(math.log(time), abs=0.25)
    known, unknown = (regression.expect(Case(kind, (1.0, 1.0), (0.0,))) for kind in "az")
    assert known.deviation < unknown.deviation, "less sure of kinds that were not seen"


def test_what_is_hidden_does_not_count():
    """Of two sets of terms the longer one does, a little more near ties; a third thing always."""
    regression = Regression(replace(PRIOR, terms=(0.5,) * 3), 0, (), hidden=((0,), (1,)))
    for terms, expected in (((9.0, 2.0, 1.0), 10.0), ((2.0, 9.0, 1.0), 10.0)):
        found = regression.expect(Case("a", terms))
        assert math.exp(found.log) == pytest.approx(expected, rel=1e-5)
        assert found.parts[:2] * expected == pytest.approx(terms[:2], rel=1e-5)
    nothing = regression.expect(Case("a", (0.0, 0.0, 1.0)))
    assert math.exp(nothing.log) == pytest.approx(1.0)
    times = [math.exp(regression.expect(Case("a", (x, 1.0, 0.0))).log) for x in (0.9, 1.0, 1.1)]
    assert 1.0 < times[0] < times[1] < 1.1 < times[2] < 1.1 * 1.1
