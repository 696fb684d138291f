"""Derived values against what their definitions say, and which targets are sums over atoms."""

import pickle
from typing import Any

import ase.io
import numpy as np
import pytest
import source_cases as cases
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import degree

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import Target, prepare_store, write_store
from hydragnn_flow.data.store.statistics import _EnergyFit
from hydragnn_flow.errors import InputError

ENERGIES = {1: -2.6, 6: 7.1, 29: 0.3, 79: -1.7}


@pytest.fixture
def graphs(graph):
    return [graph(seed) for seed in range(30)]


def statistics(path, train, other=None):
    splits = {"trainset": train, "valset": other or [], "testset": []}
    return write_store(path, splits).manifest.statistics


def test_degrees(graphs, tmp_path):
    for data in graphs:  # without symmetry, in- and out-degrees differ, as a cap makes them
        data.edge_index = data.edge_index[:, ::3]
        data.edge_shifts, data.edge_attr = data.edge_shifts[::3], data.edge_attr[::3]
    found = statistics(tmp_path / "s", graphs)
    batch = Batch.from_data_list(graphs)
    degrees = degree(batch.edge_index[1], batch.num_nodes, dtype=torch.int64)
    assert found.degree_histogram == torch.bincount(degrees).tolist()
    assert found.avg_num_neighbors == pytest.approx(degrees.double().mean().item())


def test_element_energies_and_the_spread_around_them(graphs, tmp_path):
    left_over = np.random.default_rng(0).normal(scale=0.1, size=len(graphs))
    for data in graphs:
        data.energy = torch.tensor([sum(ENERGIES[int(z)] for z in data.x)], dtype=torch.float32)
    additive = statistics(tmp_path / "additive", graphs)
    assert additive.element_energies == pytest.approx(ENERGIES, abs=1e-5)
    assert additive.energy_per_atom_std < 1e-5  # the rounding of float32
    for data, extra in zip(graphs, left_over, strict=True):
        data.energy += torch.tensor(extra * data.num_nodes, dtype=torch.float32)
    spread = statistics(tmp_path / "spread", graphs)
    # The fit takes up some of the noise: 4 parameters for 30 structures.
    assert spread.energy_per_atom_std == pytest.approx(left_over.std(), rel=0.25)


def test_one_stoichiometry_shares_the_energy_out(graphs, tmp_path):
    graphs = [data for data in graphs if data.num_nodes % 2 == 0]
    for data in graphs:
        data.x = torch.tensor([[29.0], [79.0]]).repeat(data.num_nodes // 2, 1)
        data.energy = torch.tensor([3.0 * data.num_nodes])
    found = statistics(tmp_path / "s", graphs)
    assert found.element_energies == pytest.approx({29: 3.0, 79: 3.0})


def test_targets_and_forces_of_the_training_split_alone(graph, graphs, tmp_path):
    found = statistics(tmp_path / "s", graphs, [graph(seed) for seed in (100, 101)])
    joined = [data for data in graphs if data.num_nodes > 1 or data.num_edges]
    energies = np.array([float(data.energy) for data in joined])
    forces = np.concatenate([data.forces for data in joined]).astype(np.float64)
    assert found.forces_rms == pytest.approx(np.sqrt((forces**2).mean()))
    assert found.targets["energy"].mean == pytest.approx([energies.mean()])
    assert found.targets["energy"].std == pytest.approx([energies.std()])
    assert found.targets["forces"].mean == pytest.approx(forces.mean(axis=0), abs=1e-9)
    assert found.targets["forces"].std == pytest.approx(forces.std(axis=0))
    assert statistics(tmp_path / "alone", graphs) == found


def test_constant_targets_can_be_divided_by(graphs, tmp_path):
    for data in graphs:
        # Large enough that the mean of equal numbers differs from them in the last digit.
        data.energy = torch.tensor([-1234567.9], dtype=torch.float64) / 3
        data.forces = torch.zeros_like(data.forces)
    found = statistics(tmp_path / "s", graphs)
    assert found.targets["energy"].std == [1.0]
    assert found.targets["forces"].std == [1.0] * 3
    assert found.forces_rms == 0.0


def test_without_targets(graphs, tmp_path):
    for data in graphs:
        del data.energy, data.forces
    found = statistics(tmp_path / "s", graphs)
    assert (found.element_energies, found.energy_per_atom_std, found.forces_rms) == ({}, 1.0, None)
    assert found.targets == {}


def test_what_a_task_records_of_energies_does_not_grow_with_its_graphs():
    fit = _EnergyFit()
    for seed in range(20):
        numbers = np.random.default_rng(seed).integers(1, 90, 800)
        fit.update(numbers, np.full(100, 8), np.ones(100))
    assert len(pickle.dumps(fit)) < 100_000


@pytest.mark.parametrize(
    ("name", "target", "extensive"),
    [
        ("energy", {"unit": "eV"}, True),
        ("energy", {"unit": ""}, True),
        ("energy", {"unit": "eV/atom"}, False),
        ("energy", {"unit": "meV / atoms"}, False),
        ("energy", {"unit": "kJ per atom"}, False),
        ("energy", {"unit": "eV atom^-1"}, False),
        ("energy", {"unit": "kJ/mol"}, True),
        ("energy", {"unit": "eV", "extensive": False}, False),
        ("energy", {"unit": "eV", "level": "node"}, False),
        ("gap", {"unit": "eV"}, False),
        ("stress", {"unit": "eV/Å^3", "dim": 6}, False),
        ("total_energy", {"unit": "eV"}, False),
        ("total_energy", {"unit": "eV", "extensive": True}, True),
        ("energy_scaled_num_nodes", {"unit": "Ry"}, False),
        ("volume", {}, False),  # no target of the store
    ],
)
def test_what_is_extensive(alloy_store, name, target, extensive):
    targets = {name: Target(**{"level": "graph", "dim": 1, **target})} if target else {}
    manifest = alloy_store.manifest.model_copy(update={"targets": targets})
    assert manifest.is_extensive(name) is extensive


def test_the_configuration_reaches_the_store_and_labels_of_atoms_are_refused(tmp_path):
    frames = cases.frames(12)
    for atoms in frames:
        atoms.info |= {"enthalpy": 1.0, "gap": 2.0, "e_scaled_num_nodes": 1.0}
    ase.io.write(tmp_path / "all.xyz", frames)
    targets: dict[str, Any] = {"gap": "eV", "enthalpy": {"unit": "eV", "extensive": True}}
    targets["energy"] = {"unit": "Ry", "key": "e_scaled_num_nodes"}  # HydraGNN's mark: divided
    source = {"format": "ase", "train": "all.xyz", "targets": targets}
    data = cases.config(tmp_path, **source)
    first = prepare_store(data, 4.0, None, 0, tmp_path / "a.gs")
    assert [first.manifest.is_extensive(name) for name in targets] == [False, True, False]
    # A store of a store's targets has what it says of them.
    again = {"source": {"format": "hydragnn", "file": "a.gs"}, "path": tmp_path}
    second = prepare_store(DataConfig.model_validate(again), 4.0, None, 0, tmp_path / "b.gs")
    assert [second.manifest.is_extensive(name) for name in targets] == [False, True, False]
    source["targets"] = {"forces": {"unit": "eV/Å", "extensive": True}}
    with pytest.raises(InputError, match=r"'forces' for each atom.*targets\.forces\.extensive"):
        prepare_store(cases.config(tmp_path, **source), 4.0, None, 0, tmp_path / "c.gs")
