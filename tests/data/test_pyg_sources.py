"""Files of PyG graphs: what is read and what is refused."""

from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_source_cases import (
    CUTOFF,
    PYG,
    graphs,
    in_one_folder,
    pyg_files,
    pyg_graph,
    refused,
    source,
)
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset

from hydragnn_flow.data import atoms_to_graph
from hydragnn_flow.data.sources.pyg_graphs import load_graphs
from hydragnn_flow.errors import InputError


def as_saved(graphs):
    data, slices = InMemoryDataset.collate(graphs)
    return data.to_dict(), slices, Data


@in_one_folder
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    wrap=st.sampled_from([itemgetter(0), list, InMemoryDataset.collate, as_saved]),
)
def test_pyg_keeps_graphs_as_they_are(tmp_path, sizes, wrap):
    stored = [pyg_graph(n) for n in sizes]
    torch.save(wrap(stored), tmp_path / "graphs.pt")
    found = source(tmp_path, **PYG)
    read = graphs(found)
    assert found.node_features == ["x_0", "x_1"]
    assert len(read) == (1 if isinstance(wrap, itemgetter) else len(stored))
    for got, want in zip(read, stored, strict=False):
        for key in ("x", "edge_index", "edge_attr", "forces"):
            assert torch.equal(got[key], want[key]), key
        assert torch.equal(got.pos, want.pos.float())
        assert torch.equal(got.gap, want.y.double())
        assert "smiles" not in got


def test_pyg_builds_edges_where_there_are_none(tmp_path, structure):
    stored, expected = [], []
    for seed in range(6):
        atoms, energy = structure(seed), np.array([float(seed)])
        expected.append(atoms_to_graph(atoms, CUTOFF, None, seed, {"energy": energy}))
        values = {"z": atoms.numbers, "pos": atoms.positions, "pbc": atoms.pbc}
        values |= {"cell": atoms.cell.array[None], "energy": energy[0]}
        stored.append(Data(**{key: torch.as_tensor(value) for key, value in values.items()}))
    torch.save(stored, tmp_path / "graphs.pt")
    found = source(tmp_path, **{**PYG, "targets": {"energy": {"level": "graph", "unit": "eV"}}})
    assert found.node_features == ["atomic_number"]
    for got, want in zip(graphs(found), expected, strict=True):
        assert set(got.keys()) == set(want.keys())
        for key in want.keys():  # noqa: SIM118
            assert torch.equal(got[key], want[key]), key


def test_pyg_reads_what_numpy_cannot_hold(tmp_path):
    graph = pyg_graph(3)
    graph.x = graph.x.bfloat16().requires_grad_()
    graph.edge_index = EdgeIndex(graph.edge_index, sparse_size=(3, 3))
    graph.adj_t = torch.eye(3).to_sparse()
    torch.save(graph, tmp_path / "graphs.pt")
    (read,) = graphs(source(tmp_path, **PYG))
    assert torch.equal(read.x, graph.x.float())
    assert torch.equal(read.edge_index, graph.edge_index.as_tensor())


def test_pyg_names_columns(tmp_path):
    section = pyg_files(tmp_path)
    assert source(tmp_path, **section, node_features=["a", "b"]).node_features == ("a", "b")
    refused(tmp_path, {**section, "node_features": ["a"]}, "2 columns, not the 1")
    refused(tmp_path, {**section, "node_features": ["a", "atomic_number"]}, "which no element has")


class Malicious:
    """Creates a file in the working directory when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("harm"),)


class OwnData(Data):
    """A class only its author has."""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Malicious(), "Path"),
        (OwnData(x=torch.ones(1, 1)), "OwnData"),
        (HeteroData(), "BaseStorage"),
        (Batch.from_data_list([pyg_graph(2)]), "Batch"),
        ({"x": torch.ones(1)}, "holds a dict"),
        ([pyg_graph(2), torch.ones(1)], "holds a list"),
    ],
)
def test_pyg_refuses_other_content(tmp_path, monkeypatch, content, reason):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "graphs.pt")
    refused(tmp_path, PYG, "graphs.pt", reason)
    assert not Path("harm").exists()


@pytest.mark.parametrize("damage", [lambda content: b"no archive", lambda content: content[:700]])
def test_pyg_refuses_damaged_files(tmp_path, damage):
    path = tmp_path / "graphs.pt"
    torch.save([pyg_graph(2)], path)
    path.write_bytes(damage(path.read_bytes()))
    refused(tmp_path, PYG, "graphs.pt", "cannot be read as a file of PyG graphs")
    with pytest.raises(InputError, match=r"^((?!weights_only).)*$"):
        load_graphs(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pos": None}, "no 'pos'"),
        ({"x": None}, "no 'x'"),
        ({"x": torch.full((2, 2), torch.nan)}, "NaN or infinity in 'x'"),
        ({"x": torch.ones(2, 3)}, "first graph has x_0, x_1"),
        ({"x": torch.ones(2, 0)}, "'x' has the shape [2, 0]"),
        ({"y": torch.full((1, 2), torch.inf)}, "NaN or infinity in its label 'gap'"),
        ({"y": torch.ones(1, 3)}, "label 'gap' of shape [3]"),
        ({"y": torch.tensor([[1 + 2j, 1]])}, "complex"),
        ({"forces": torch.ones(3, 3)}, "label 'forces' of shape [3, 3]"),
        ({"pos": torch.ones(2, 4)}, "pos is not"),
        ({"pos": torch.ones(0, 3)}, "no nodes"),
        ({"cell": torch.ones(2, 2)}, "cell has the shape [2, 2]"),
        ({"cell": torch.eye(3), "pbc": torch.ones(2)}, "pbc has 2 values"),
        ({"pbc": torch.ones(3)}, "periodic along vectors of its cell that are zero or parallel"),
        ({"cell": torch.eye(3)}, "no edge_shifts"),
        ({"edge_shifts": torch.ones(2, 2)}, "edge_shifts is not"),
        ({"edge_index": torch.tensor([[0], [2]])}, "edge_index is not"),
        ({"edge_attr": torch.ones(1, 4)}, "'edge_attr' has the shape [1, 4], but 2 rows"),
    ],
)
def test_pyg_refuses_graphs(tmp_path, changes, reason):
    values = pyg_graph(2).to_dict() | changes
    bad = Data(**{key: value for key, value in values.items() if value is not None})
    torch.save([pyg_graph(2), bad], tmp_path / "graphs.pt")
    refused(tmp_path, PYG, "graphs.pt: structure 1", reason)
