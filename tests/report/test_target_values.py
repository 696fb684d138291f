"""The numbers of the accuracy figures, against values known beforehand."""

import numpy as np
import pandas as pd
import pytest
from report_cases import predictions

from hydragnn_flow.report.target_values import (
    TargetValues,
    binned,
    evenly,
    gaussian_coverage,
    interval_coverage,
    targets_of,
    telling,
)


def values(reference, mean, std):
    ids = np.arange(len(mean))
    return TargetValues("t", "eV", ids, reference, mean, std, mean - 2 * std, mean + 2 * std)


def test_components_of_a_target_are_one_target():
    graphs, nodes = predictions(np.random.default_rng(0), graphs=10)
    (energy,), (forces,) = targets_of(graphs), targets_of(nodes)
    assert (energy.name, energy.unit, energy.graphs) == ("energy", "eV", 10)
    assert (forces.name, forces.unit, forces.graphs) == ("forces", "eV/Å", 10)
    assert len(forces.reference) == 3 * len(nodes)
    np.testing.assert_array_equal(forces.mean[: len(nodes)], nodes["forces_x_mean"])


def test_targets_whose_names_end_like_components_stay_apart():
    rows = np.arange(4.0)
    table = pd.DataFrame({"graph_id": np.arange(4)})
    for name in ("C_11", "C_12", "dipole_0", "dipole_1"):
        for suffix in ("", "_mean", "_std", "_lo", "_hi"):
            table[name + suffix] = rows
    found = targets_of(table, {"C_11", "C_12", "dipole"})
    assert [(t.name, len(t.mean)) for t in found] == [("C_11", 4), ("C_12", 4), ("dipole", 8)]
    assert [t.name for t in targets_of(table)] == ["C", "dipole"]


def test_only_targets_with_references_are_shown():
    graphs, _ = predictions(np.random.default_rng(0), graphs=10)
    graphs.loc[3, "energy"] = np.nan
    (energy,) = targets_of(graphs)
    assert len(energy.reference) == 9
    assert targets_of(graphs.drop(columns="energy")) == []


def test_energy_per_atom_divides_by_the_atoms_of_each_structure():
    graphs, nodes = predictions(np.random.default_rng(0), graphs=5)
    n_atoms = nodes.groupby("graph_id").size()
    (energy,) = targets_of(graphs)
    per_atom = energy.per_atom(n_atoms)
    assert (per_atom.name, per_atom.unit) == ("energy per atom", "meV/atom")
    expected = 1000 * graphs["energy_std"].to_numpy() / n_atoms[graphs["graph_id"]].to_numpy()
    np.testing.assert_allclose(per_atom.std, expected)
    assert interval_coverage(per_atom) == interval_coverage(energy)


def test_the_worthiest_are_always_among_those_drawn():
    worth = np.random.default_rng(0).exponential(size=5000)
    chosen = telling(worth, 300)
    assert len(chosen) == len(set(chosen)) == 300
    assert set(np.argsort(-worth)[:100]) <= set(chosen)
    assert chosen[0] < 30 and chosen[-1] > 4970
    assert list(telling(worth[:7], 300)) == list(range(7))


def test_bins_of_errors_that_are_as_predicted():
    random = np.random.default_rng(0)
    std = random.uniform(0.5, 2, 40_000)
    x, y = binned(random.normal(0, std), std)
    assert len(x) == 10
    np.testing.assert_allclose(y, x, rtol=0.05)
    assert [len(of) for of in binned(np.ones(3), np.ones(3))] == [1, 1]


def test_coverage_of_exact_gaussians_is_their_level():
    random = np.random.default_rng(0)
    std = random.uniform(0.5, 2, 40_000)
    target = values(np.zeros(40_000), random.normal(0, std), std)
    levels = np.array([0.1, 0.5, 0.9, 0.99])
    np.testing.assert_allclose(gaussian_coverage(target, levels), levels, atol=0.01)
    assert interval_coverage(target) == pytest.approx(0.9545, abs=0.005)


def test_members_that_agree_hold_only_what_they_hit():
    target = values(np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.zeros(2))
    assert gaussian_coverage(target, np.array([0.5])) == [0.5]


@pytest.mark.parametrize(("count", "most"), [(1, 5), (5, 5), (7, 5), (100_000, 2000)])
def test_evenly_spaced_positions(count, most):
    positions = evenly(count, most)
    assert len(positions) == min(count, most)
    assert positions[0] == 0 and positions[-1] == (count - 1 if most > 1 else 0)
    assert np.ptp(np.diff(positions)) <= 1 if len(positions) > 1 else True


def test_a_target_without_units():
    table = pd.DataFrame({"graph_id": [0, 1], "gap": [1.0, 2.0]})
    for suffix in ("mean", "std", "lo", "hi"):
        table[f"gap_{suffix}"] = [1.0, 2.0]
    (gap,) = targets_of(table)
    assert (gap.name, gap.unit) == ("gap", "")
