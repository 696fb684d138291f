"""Members beside the ensemble: their errors, and how much smaller one is than another."""

import numpy as np
import pytest

from hydragnn_flow.ensemble.bootstrap import Sample, measure
from hydragnn_flow.ensemble.comparison import compare_errors, compare_models


def drawn(n, seed=0):
    """Errors of three models, and the structures they are of: 1 to 6 values each."""
    rng = np.random.default_rng(seed)
    structure = np.repeat(np.arange(n), rng.integers(1, 7, n))
    common = rng.lognormal(0, 1, n)[structure]
    return np.abs(common * rng.normal(1, 0.1, (3, len(structure)))), structure


def test_errors_and_intervals_are_those_of_the_measures():
    errors, structure = drawn(40)
    mae, _ = compare_errors(errors, structure)
    one = np.ones(len(structure))
    for of, estimate in zip(errors, mae, strict=True):
        measured = measure(Sample(structure, np.zeros(len(of)), of, one))["mae"]
        assert estimate == pytest.approx(measured, rel=1e-9)


def test_what_two_models_share_does_not_widen_the_interval_of_their_difference():
    errors, structure = drawn(40)
    mae, change = compare_errors(errors, structure)
    assert len(change) == 2
    for value, lo, hi in change:
        assert lo <= value <= hi
        assert hi - lo < 0.3 * (mae[0].hi - mae[0].lo) / mae[0].value
    _, twice = compare_errors(np.stack([errors[0], 2 * errors[0]]), structure)
    assert twice[0] == pytest.approx((-0.5, -0.5, -0.5))


def test_the_interval_holds_the_true_change_as_often_as_it_says():
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        errors = np.stack([0.8 * rng.exponential(size=50), rng.exponential(size=50)])
        _, (change,) = compare_errors(errors, np.arange(50), seed)
        held += change.lo <= -0.2 <= change.hi
    assert held >= 51  # of 57 that are expected; fewer with probability 0.006


def test_few_structures_and_a_perfect_member_have_no_intervals():
    mae, change = compare_errors(np.array([[1.0, 3.0], [4.0, 4.0]]), np.array([7, 8]))
    assert [estimate.value for estimate in (*mae, *change)] == [2.0, 4.0, -0.5]
    assert all(np.isnan(estimate.lo) for estimate in (*mae, *change))
    _, (perfect,) = compare_errors(np.array([[1.0, 3.0], [0.0, 0.0]]), np.array([0, 1]))
    assert np.isnan(perfect.value)


def test_sums_are_judged_per_atom_and_the_unknown_is_left_out(alloy_store):
    store, split = alloy_store, alloy_store["testset"]
    atoms = split.n_atoms
    truth = {"energy": split.target("energy"), "forces": split.target("forces")}
    truth["energy"] = np.where(np.arange(len(atoms))[:, None] == 0, np.nan, truth["energy"])
    models = {
        "ensemble": {name: of + 0.1 for name, of in truth.items()},
        "0": {name: of + 0.2 for name, of in truth.items()},
    }
    found = compare_models(models, truth, atoms, store.manifest)
    assert list(found) == ["energy per atom", "forces"]
    energy = found["energy per atom"]
    assert energy["unit"] == "meV/atom" and energy["structures"] == len(atoms) - 1
    assert energy["mae"]["ensemble"]["value"] == pytest.approx(np.mean(100 / atoms[1:]))
    assert energy["change"]["0"]["value"] == pytest.approx(-0.5)
    assert list(energy["mae"]) == ["ensemble", "0"]
