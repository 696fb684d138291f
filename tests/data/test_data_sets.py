"""Several data sets in one store: names, branches, splits and statistics of each."""

import pickle
from dataclasses import replace

import ase.io
import numpy as np
import pytest
import torch
from data_set_cases import (
    CUTOFF,
    FAR,
    PLAIN,
    alloys,
    one_of,
    same_statistics,
    shifted,
    two_level_store,
    two_levels,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import prepare_store, write_store
from hydragnn_flow.data.columns import BranchRuns, pack, shares_of_branches, spread
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.store.statistics import Accumulator
from hydragnn_flow.errors import InputError


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return two_level_store(tmp_path_factory.mktemp("two"))


def test_each_structure_has_the_branch_of_its_data_set(store):
    """Each data set is split in the fractions that all share, and numbered on."""
    manifest = store.manifest
    assert (manifest.branches, manifest.branch_names) == ([0, 1], [PLAIN, FAR])
    assert manifest.data_sets == {0: PLAIN, 1: FAR}
    sizes = {name: np.bincount(store[name].branch).tolist() for name in store.splits}
    assert sizes == {"trainset": [24, 18], "valset": [8, 6], "testset": [8, 6]}
    identities = np.concatenate([store[name].graph_id for name in store.splits])
    assert sorted(identities.tolist()) == list(range(70))
    for name in store.splits:
        energies = store[name].target("energy")[:, 0] / store[name].n_atoms
        assert np.array_equal(energies < -900, store[name].branch == 1)


def test_structures_of_a_data_set_without_weights_have_weight_1(tmp_path):
    config = two_levels(tmp_path)
    heavy = ase.io.read(tmp_path / "far.extxyz", ":")
    for atoms in heavy:
        atoms.info["heavy"] = 3.0
    ase.io.write(tmp_path / "far.extxyz", heavy)
    plain, far = config.sources
    far = replace(far, source=far.source.model_copy(update={"weight": "heavy"}))
    config = config.model_copy(update={"sources": (plain, far)})
    store = prepare_store(config, CUTOFF, None, 0, tmp_path / "two.gs")
    train = store["trainset"]
    assert train.column("loss_weight").ravel().tolist() == (1.0 + 2.0 * train.branch).tolist()


def test_statistics_of_a_branch_are_those_of_its_data_set_alone(store, tmp_path):
    """To the last digit: reference energies, means, scales and sizes."""
    statistics = store.manifest.statistics
    for branch in (0, 1):
        train = store["trainset"]
        graphs = [train[int(i)] for i in one_of(store, "trainset", branch)]
        for graph in graphs:
            del graph["dataset_name"]
        targets = store.manifest.targets
        alone = write_store(tmp_path / str(branch), {"trainset": graphs}, targets=targets)
        found, expected = statistics.by_branch[branch], alone.manifest.statistics
        assert found.graphs == len(graphs)
        assert found.atoms == alone.manifest.splits["trainset"].atoms
        same_statistics(found, expected)
    assert statistics.by_branch[1].element_energies[29] < -1000 < 0
    assert abs(statistics.by_branch[0].element_energies[29]) < 100


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=2, max_size=12),
    st.integers(1, 11),
)
def test_blocks_add_up_however_graphs_are_divided(graph, branches, cut):
    """Gathered together, in two blocks, or in two processes."""
    targets = {"energy": Target(level="graph", dim=1), "forces": Target(level="node", dim=3)}
    made = [graph(seed, n_atoms) for seed, (_, n_atoms) in enumerate(branches)]
    for one, (branch, _) in zip(made, branches, strict=True):
        one.dataset_name = torch.tensor([[branch]])
    cut = min(cut, len(made) - 1)
    whole, first, second = (Accumulator(targets) for _ in range(3))
    for accumulator, graphs in ((whole, made), (first, made[:cut]), (second, made[cut:])):
        accumulator.update(pack(graphs, [""] * len(graphs)), "trainset")
    first.merge(pickle.loads(pickle.dumps(second)))
    expected, found = whole.statistics(), first.statistics()
    assert found.by_branch.keys() == expected.by_branch.keys()
    assert (len(found.by_branch) > 1) == (len({branch for branch, _ in branches}) > 1)
    same_statistics(found, expected)
    for branch, of_branch in found.by_branch.items():
        same_statistics(of_branch, expected.by_branch[branch])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), min_size=1, max_size=8),
    st.integers(4, 300),
)
def test_every_data_set_is_looked_at_alike(pairs, most):
    runs = BranchRuns.of_pairs(pairs)
    branch = np.repeat(runs.branches, np.diff(runs.bounds))
    for run in (1, 16):
        chosen = np.concatenate(list(spread(runs, most, run)))
        assert len(np.unique(chosen)) == len(chosen)
        for number, there in runs.graphs.items():
            found = int((branch[chosen] == number).sum())
            assert found >= min(there, run, max(1, most // len(runs.graphs)))
            assert found <= max(run, most // len(runs.graphs))
    shares = shares_of_branches(runs, most)
    assert sum(shares.values()) == min(most, len(branch))
    least = min(shares.values())
    assert all(n == runs.graphs[b] or n >= most // len(shares) for b, n in shares.items()), least


def test_a_data_set_may_have_fractions_and_sets_of_its_own(tmp_path):
    section = shifted(tmp_path)
    sources = [
        {"name": PLAIN, **alloys(20), "split": {"val": 0.3, "test": 0.1}},
        {"name": FAR, **section, "test": section["train"]},
    ]
    config = DataConfig.model_validate({"sources": sources, "split": {"val": 0.1, "test": 0.4}})
    fractions = [one.split and (one.split.val, one.split.test) for one in config.data_sets]
    assert fractions == [(0.3, 0.1), (0.1, None)]


def test_another_order_is_another_store(tmp_path):
    config = two_levels(tmp_path)
    prepare_store(config, CUTOFF, None, 0, tmp_path / "s.gs")
    turned = config.model_copy(update={"sources": tuple(reversed(config.sources or ()))})
    with pytest.raises(InputError, match="sources"):
        prepare_store(turned, CUTOFF, None, 0, tmp_path / "s.gs")


def test_a_missing_file_is_named_with_its_place(tmp_path):
    far = {"name": FAR, **shifted(tmp_path), "train": "nowhere.extxyz"}
    sources = [{"name": PLAIN, **alloys(20)}, far]
    config = DataConfig(sources=sources, path=tmp_path, split={"test": 0.2})
    with pytest.raises(InputError, match=r"nowhere\.extxyz \(data\.sources\.1\.train\)"):
        config.check_files()


def saved_graphs(file, key="z", count=40, **own):
    """A file of PyG graphs with atomic numbers under a key, and one label."""
    numbers = torch.tensor([29.0, 29.0])[:, None] if key == "x" else torch.tensor([29, 29])
    every = {"w": torch.ones(1), "graph_attr": torch.ones(1, 2), **own}
    file.parent.mkdir(exist_ok=True)
    positions = torch.rand(count, 2, 3)  # of graphs that differ
    torch.save([Data(**{key: numbers}, **every, pos=pos) for pos in positions], file)


def of_files(folder):
    targets = {"gap": {"key": "w", "unit": "eV", "level": "graph"}}
    every = {"format": "pyg", "targets": targets, "split": {"val": 0.2, "test": 0.2}}
    sources = [{"name": name, "train": name, **every} for name in ("a", "b")]
    return DataConfig.model_validate({"path": folder, "sources": sources})


def test_a_graph_of_other_features_is_refused_in_whatever_task_it_is(tmp_path):
    saved_graphs(tmp_path / "a" / "1.pt")
    saved_graphs(tmp_path / "a" / "2.pt", key="x", count=20)
    saved_graphs(tmp_path / "b" / "1.pt")
    with pytest.raises(InputError, match="node features"):
        prepare_store(of_files(tmp_path), CUTOFF, None, 0, tmp_path / "store")


def test_keys_may_be_in_any_order_and_a_branch_of_the_file_is_not_ours(tmp_path):
    saved_graphs(tmp_path / "a" / "1.pt", dataset_name=torch.tensor([[7]]))
    saved_graphs(tmp_path / "b" / "1.pt")
    store = prepare_store(of_files(tmp_path), CUTOFF, None, 0, tmp_path / "store")
    assert store.manifest.branches == [0, 1]
