"""Networks are counted until others like them can be interpolated."""

import math
import random
from functools import partial

import numpy as np
import pytest

from hydragnn_flow.placement import Work, WorkInterpolation


def sizes(chance):
    return {
        "type": chance.choice(["SchNet", "PAINN"]),
        "width": chance.randint(30, 900),
        "depth": chance.randint(2, 6),
        "heads": [chance.randint(100, 2000)] * chance.randint(1, 3),
        "batch": {"atoms": (atoms := chance.randint(100, 5000)), "edges": 20 * atoms},
        "weight": chance.random(),
    }


def work(shape):
    """Sums of products, as those of real networks are."""
    width, depth, heads = shape["width"], shape["depth"], shape["heads"]
    atoms, edges = shape["batch"]["atoms"], shape["batch"]["edges"]
    more = 3 if shape["type"] == "PAINN" else 1
    weights = depth * width**2 * more + width * heads[0] + len(heads) * heads[0] ** 2
    values = atoms * (depth * width * more + sum(heads)) + edges * width * depth
    flops = 6.0 * (atoms * weights + edges * width * depth)
    return Work(flops, 4.0 * values, 90 * depth + 20 * len(heads), 3.0 * values, 4.0 * weights)


def test_most_networks_are_not_counted_and_none_is_far_off():
    chance, works, counted = random.Random(0), WorkInterpolation(), 0
    errors = []

    def count():
        nonlocal counted
        counted += 1
        return work(shape)

    for _ in range(1000):
        shape = sizes(chance)
        found, true = works.work(shape, count), work(shape)
        names = ("flops", "activation_bytes", "parameter_bytes")
        errors.append([abs(math.log(getattr(found, n) / getattr(true, n))) for n in names])
    assert counted < 300
    late = np.array(errors[300:])
    assert np.median(late, axis=0).max() < 0.05
    assert np.quantile(late, 0.95, axis=0).max() < 0.25


def test_the_first_of_a_family_and_all_beyond_it_are_counted():
    chance, works = random.Random(1), WorkInterpolation()
    exact = Work(1.0, 2.0, 3, 4.0, 5.0)
    for _ in range(300):
        shape = sizes(chance) | {"type": "SchNet"}
        works.work(shape, partial(work, shape))
    for changed in ({"type": "EGNN"}, {"width": 4000}, {"depth": 1}, {"more": True}):
        assert works.work(shape | changed, lambda: exact) == exact
    again = works.work(shape | {"weight": 0.123}, lambda: pytest.fail("known already"))
    assert again == works.work(shape, lambda: pytest.fail("known already"))


def test_what_cannot_be_interpolated_is_always_counted():
    chance, works = random.Random(2), WorkInterpolation()
    for number in range(80):
        true = Work(math.exp(chance.uniform(0, 20)), 1.0, 1, 1.0, 1.0)
        assert works.work({"width": number}, lambda true=true: true) == true
