"""Accuracy figures: their numbers against values known beforehand, all of their data, corners."""

import numpy as np
import pandas as pd
import pytest

from hydragnn_flow.report import accuracy
from hydragnn_flow.report.accuracy import TargetValues, targets_of
from hydragnn_flow.report.style import embed


def predictions(graphs, low=8, high=65):
    """Predictions tables of energies and forces whose errors are 1.1 deviations."""
    random = np.random.default_rng(0)
    atoms = random.integers(low, high, graphs)
    ids = np.sort(random.choice(320, graphs, replace=False))
    energy = columns("energy", random, atoms * 0.35, atoms * 0.006)
    table = pd.DataFrame({"graph_id": ids, **energy})
    nodes = pd.DataFrame({"graph_id": np.repeat(ids, atoms)})
    for axis in "xyz":
        force = 0.8 * random.standard_t(4, len(nodes))
        nodes = nodes.assign(**columns(f"forces_{axis}", random, force, np.full(len(nodes), 0.05)))
    parts = {"energy": (table, "eV", [""]), "forces": (nodes, "eV/Å", ["_x", "_y", "_z"])}
    for name, (of, unit, components) in parts.items():
        units = dict.fromkeys(of.columns, unit)
        of.attrs = {"units": units, "components": {name: [name + c for c in components]}}
    return table, nodes


def columns(name, random, reference, scale):
    std = scale * random.lognormal(0, 0.5, len(scale))
    mean = reference + 1.1 * std * random.normal(size=len(scale))
    parts = {"": reference, "_mean": mean, "_std": std}
    parts |= {"_lo": mean - 1.8 * std, "_hi": mean + 1.8 * std}
    return {name + suffix: values for suffix, values in parts.items()}


def values(reference, mean, std):
    columns = {"graph_id": np.arange(len(mean)), "reference": reference, "mean": mean, "std": std}
    table = pd.DataFrame(columns | {"lo": mean - 2 * std, "hi": mean + 2 * std})
    return TargetValues("t", "eV", table.assign(error=mean - reference))


def test_components_of_a_target_are_one_target():
    graphs, nodes = predictions(10)
    graphs.loc[3, "energy"] = np.nan
    (energy,), (forces,) = targets_of(graphs), targets_of(nodes)
    assert (energy.name, energy.unit, energy.graphs) == ("energy", "eV", 9), "with references"
    assert (forces.name, forces.label, forces.graphs) == ("forces", "forces [eV/Å]", 10)
    assert len(forces.table) == 3 * len(nodes)
    np.testing.assert_array_equal(forces.table["mean"][: len(nodes)], nodes["forces_x_mean"])
    assert targets_of(graphs.drop(columns="energy")) == []


def test_energy_per_atom_divides_by_the_atoms_of_each_structure():
    graphs, nodes = predictions(5)
    n_atoms = nodes.groupby("graph_id").size()
    (energy,) = targets_of(graphs)
    per_atom = energy.per_atom(n_atoms)
    assert per_atom.label == "energy per atom [meV/atom]"
    expected = 1000 * graphs["energy_std"].to_numpy() / n_atoms[graphs["graph_id"]].to_numpy()
    np.testing.assert_allclose(per_atom.table["std"], expected)
    assert accuracy.interval_coverage(per_atom) == accuracy.interval_coverage(energy)


def test_coverage_and_bins_of_exact_gaussians_are_what_they_should():
    random = np.random.default_rng(0)
    std = random.uniform(0.5, 2, 40_000)
    target = values(np.zeros(40_000), random.normal(0, std), std)
    levels = np.array([0.1, 0.5, 0.9, 0.99])
    np.testing.assert_allclose(accuracy.gaussian_coverage(target, levels), levels, atol=0.01)
    assert accuracy.interval_coverage(target) == pytest.approx(0.9545, abs=0.005)
    x, y = accuracy.binned(target.table["error"].to_numpy(), std)
    assert len(x) == 10
    np.testing.assert_allclose(y, x, rtol=0.05)
    sure = values(np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.zeros(2))
    assert accuracy.gaussian_coverage(sure, np.array([0.5])) == [0.5], "they hold what they hit"


def points_of(panel, collection):
    return {tuple(row) for row in np.round(panel.collections[collection].get_offsets(), 9)}


def test_parity_of_a_large_table_draws_the_worst_and_tells_of_all():
    _, nodes = predictions(60)
    nodes.loc[77, "forces_y_mean"] += 25.0
    (forces,) = targets_of(nodes)
    figure = accuracy.parity(forces, {"mae": {"value": 0.125, "lo": 0.1, "hi": 0.15}})
    worst = np.argsort(-forces.table["error"].abs().to_numpy())[:600]
    for panel, column in zip(figure.axes, ("mean", "error"), strict=True):
        shown = forces.table[column]
        pairs = np.round(forces.table[["reference", column]].to_numpy(), 9)[worst]
        assert set(map(tuple, pairs)) <= points_of(panel, 1)
        low, high = panel.get_ylim()
        assert low < shown.min() and shown.max() < high, "no value is beyond the panel"
    title = figure.get_suptitle()
    assert "MAE 0.125 (0.100–0.150)" in title and f"{len(forces.table):,} values" in title
    assert embed(figure).source.startswith("data:image/png;base64,")
    graphs, _ = predictions(20)
    small = embed(accuracy.parity(targets_of(graphs)[0]))
    assert small.source.startswith("data:image/svg+xml;base64,")


def test_deviations_are_compared_with_all_errors_large_and_unexpected():
    _, nodes = predictions(60)
    (forces,) = targets_of(nodes)
    axes = accuracy.deviation(forces).axes[0]
    error, std = np.abs(forces.table["error"].to_numpy()), forces.table["std"].to_numpy()
    pairs = np.round(np.stack([std, error], axis=1), 9)
    for worth in (error, error / std):
        assert set(map(tuple, pairs[np.argsort(-worth)[:100]])) <= points_of(axes, 0)
    assert error.max() < axes.get_ylim()[1]
    x, y = axes.lines[-1].get_data()
    np.testing.assert_allclose(y / x, 1.1, atol=0.1)  # the cases' errors are 1.1 deviations


def test_one_value_without_spread_can_be_drawn():
    graphs, _ = predictions(1)
    graphs["energy_mean"], graphs["energy_std"] = graphs["energy"], 0.0
    targets = targets_of(graphs)
    coverage = accuracy.coverage(targets, 0.9)
    for figure in (accuracy.parity(targets[0]), coverage, accuracy.deviation(targets[0])):
        embed(figure)
    texts = [text.get_text() for text in coverage.legends[0].get_texts()]
    assert "energy: mean ± z·std" in texts
    assert any("energy: 90 % interval holds 100" in text for text in texts), "however narrow"


def test_the_worst_structures_are_those_with_the_largest_errors():
    graphs, nodes = predictions(20)
    graphs["formula"], graphs["note"] = [f"Cu{n}" for n in range(20)], ""
    graphs["file"], graphs["frame"], graphs["id"] = "a.xyz", range(40, 60), None
    graphs.loc[7, "id"] = "mp-7"
    graphs.loc[7, "energy_mean"] = graphs["energy"][7] + 9.0
    atom = nodes.index[nodes["graph_id"] == graphs["graph_id"][3]][2]
    nodes.loc[atom, "forces_z_mean"] = nodes["forces_z"][atom] - 30.0
    table = accuracy.worst_structures([*targets_of(graphs), *targets_of(nodes)], graphs, nodes)
    assert len(table) == 2 * 8 and "note" not in table
    first = table.groupby("target").head(1).set_index("target", drop=False)
    energy, forces = first.loc["energy [eV]"], first.loc["forces [eV/Å]"]
    assert (energy["structure"], energy["formula"]) == (graphs["graph_id"][7], "Cu7")
    assert [*energy[["file", "frame", "id"]]] == ["a.xyz", 47, "mp-7"]
    assert energy["|error|"] == energy["largest"] == pytest.approx(9.0)
    assert energy["|error| / deviation"] == pytest.approx(9.0 / graphs["energy_std"][7])
    assert (forces["structure"], forces["largest"]) == (graphs["graph_id"][3], pytest.approx(30.0))
    assert forces["atoms"] == (nodes["graph_id"] == graphs["graph_id"][3]).sum()
    assert accuracy.worst_structures([], None, None).empty
