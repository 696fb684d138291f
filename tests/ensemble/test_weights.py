"""Stacking: what convex weights fitted on validation data can and cannot do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.ensemble.weights import SMALLEST_FRACTION, residual_products, stacking_weights
from hydragnn_flow.training.losses import Term

FORCES = Term("forces", "node", 0.5, (2.0, 2.0, 2.0))
ENERGY = Term("energy", "graph", 0.5, (0.1,), per_atom=True)
ATOMS = np.full((30, 1), 10.0)


def residuals(scales: list[float], seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    factors = np.array(scales)[:, None, None]
    return {
        "energy": factors * random.normal(size=(len(scales), 30, 1)),
        "forces": factors * random.normal(size=(len(scales), 300, 3)),
    }


def loss(weights: np.ndarray, of: dict[str, np.ndarray]) -> float:
    energy = np.tensordot(weights, of["energy"], 1) / ATOMS / 0.1
    forces = np.tensordot(weights, of["forces"], 1) / 2.0
    return float(0.5 * np.mean(energy**2) + 0.5 * np.mean(forces**2))


def weigh(of: dict[str, np.ndarray], terms: list[Term]) -> np.ndarray:
    return stacking_weights(residual_products(of, terms, ATOMS))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.integers(0, 50))
def test_weights_are_convex_and_no_worse_than_equal_ones(scales: list[float], seed: int) -> None:
    of = residuals(scales, seed)
    weights = weigh(of, [ENERGY, FORCES])
    n = len(scales)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= SMALLEST_FRACTION / n - 1e-9
    assert loss(weights, of) <= loss(np.full(n, 1 / n), of) * (1 + 1e-6)


def test_independent_members_count_by_their_variance() -> None:
    of = residuals([1.0, 2.0], seed=3)
    weights = weigh({"forces": of["forces"]}, [FORCES])
    np.testing.assert_allclose(weights, [0.8, 0.2], atol=0.03)


def test_scale_of_the_data_does_not_matter() -> None:
    of = residuals([1.0, 1.5, 2.0], seed=1)
    weights = weigh(of, [ENERGY, FORCES])
    tiny = {name: 1e-6 * values for name, values in of.items()}
    np.testing.assert_allclose(weigh(tiny, [ENERGY, FORCES]), weights, atol=1e-4)


def test_only_terms_of_the_loss_count() -> None:
    of = residuals([1.0, 1.0], seed=2)
    of["energy"][0] *= 100
    weights = weigh({"forces": of["forces"]}, [FORCES])
    assert abs(weights[0] - 0.5) < 0.05


def test_the_diagonal_is_each_members_own_loss() -> None:
    of = residuals([1.0, 3.0, 2.0], seed=4)
    own = np.diag(residual_products(of, [ENERGY, FORCES], ATOMS))
    np.testing.assert_allclose(own, [loss(one, of) for one in np.eye(3)])
