"""Stores of graphs as sources: what is read and what is refused."""

import os

import numpy as np
import pytest
import torch
from graph_source_cases import CUTOFF, graphs, refused, source
from in_place_cases import vectors
from torch_geometric.data import Data

from hydragnn_flow.config.base import validate
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.sources.base import Chunk
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.errors import InputError

SEEN = ("x", "pos", "cell", "edge_index", "edge_shifts", "edge_attr")


def test_a_store_comes_back_as_it_was(written, store, same):
    found = source(written.parent, format="hydragnn", file=written.name)
    assert found.node_features == ["atomic_number"]
    roles = {"train": "trainset", "val": "valset", "test": "testset"}
    assert [chunk.role for chunk in found.chunks()] == list(roles)
    for chunk in found.chunks():
        for i, record in enumerate(found.read(chunk)):
            graph = record.graph(CUTOFF, None)
            assert graph.graph_id.item() == i
            assert same(graph, store[roles[chunk.role]][i], ignore=("graph_id", "y", "y_loc"))
    targets = {"total": {"unit": "eV", "key": "energy"}, "forces": "eV/Å"}
    found = source(written.parent, format="hydragnn", file=written.name, targets=targets)
    graph = graphs(found)[0]
    assert found.found_targets["forces"].unit == "eV/Å"
    assert torch.equal(graph.total, store["trainset"][0].energy)
    assert torch.equal(graph.forces, store["trainset"][0].forces)


def test_hydragnns_own_file(shared_data):
    folder = shared_data / "hydragnn_bp"
    reference = np.load(folder / "hydragnn_cuau_reference.npz")
    section = {"format": "hydragnn", "file": "hydragnn_cuau.bp"}
    levels = {"energy_per_atom": "graph", "pull": "node"}
    targets = {name: {"level": level, "unit": "eV"} for name, level in levels.items()}
    outputs = {"output_names": list(levels), "type": list(levels.values())}
    plain = source(folder, **section)
    packed = source(folder, **section, targets=targets, outputs=outputs)
    stops = [(chunk.role, chunk.stop) for chunk in packed.chunks()]
    assert stops == [("train", 40), ("val", 10), ("test", 10)]
    for i in sorted({int(key.split("/")[1]) for key in reference if key.startswith("trainset")}):
        chunk = Chunk("train", str(folder / "hydragnn_cuau.bp"), i, i + 1, 0)
        (a,), (b,) = plain.read(chunk), packed.read(chunk)
        one, two = a.graph(5.0, None), b.graph(5.0, None)
        theirs = {key: reference[f"trainset/{i}/{key}"] for key in one.to_dict() if key in SEEN}
        for key in ("x", "cell", "edge_index", "edge_attr"):
            assert np.array_equal(one[key].numpy(), theirs[key]), key
        # Atoms are wrapped into the cell, with the shifts of their edges.
        known = Data(**{key: torch.from_numpy(value) for key, value in theirs.items()})
        assert vectors(one).numpy() == pytest.approx(vectors(known).numpy(), abs=2e-6)
        assert one.pbc.tolist() == [1, 1, 1]
        assert torch.equal(one.forces, two.pull)
        assert two.energy_per_atom.item() == reference[f"trainset/{i}/y"][0, 0]
        assert np.array_equal(two.y.numpy(), reference[f"trainset/{i}/y"])
        assert np.array_equal(two.y_loc.numpy(), reference[f"trainset/{i}/y_loc"])


def test_an_edge_less_is_an_edge_list_of_its_own(written):
    found = source(written.parent, format="hydragnn", file=written.name)
    records = [record for chunk in found.chunks() for record in found.read(chunk)]
    brought = [(record, record.graph(CUTOFF, None)) for record in records]
    assert not any(record.has_own_edges(graph, CUTOFF, None) for record, graph in brought)
    assert any(record.has_own_edges(graph, 0.9 * CUTOFF, None) for record, graph in brought)
    for record, graph in brought:
        if graph.num_edges:
            graph.edge_index, graph.edge_shifts = graph.edge_index[:, :-1], graph.edge_shifts[:-1]
            assert record.has_own_edges(graph, CUTOFF, None)


def test_hydragnn_refuses(written, tmp_path):
    section = {"format": "hydragnn", "file": str(written)}
    refused(tmp_path, {**section, "file": "missing.bp"}, "missing.bp", "does not exist")
    refused(tmp_path, {**section, "targets": {"gap": "eV"}}, "trainset: graph 0", "no 'gap'")
    with pytest.raises(InputError, match="output_dim is no longer a key"):
        validate(HydragnnSource, {**section, "output_dim": [1]}, "run.yaml")


def test_a_process_opens_a_store_once_unless_it_has_changed(copied, monkeypatch):
    opened = []
    open_store = GraphStore.open

    def count(path, *arguments):
        opened.append(path)
        return open_store(path, *arguments)

    monkeypatch.setattr(GraphStore, "open", count)
    section = {"format": "hydragnn", "file": copied.name}
    chunks = source(copied.parent, **section).chunks()
    for chunk in chunks:
        assert list(source(copied.parent, **section).read(chunk))
    assert opened == [copied]
    os.utime(copied / "manifest.json", (0, 0))
    assert source(copied.parent, **section).chunks() == chunks
    assert opened == [copied, copied]
