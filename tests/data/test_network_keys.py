"""Keys that only some networks read: branch, features of the whole graph, positional encodings."""

import json
import re

import numpy as np
import pytest
import torch
from ase.io import write
from graph_source_cases import CUTOFF, PYG, graphs, pyg_graph, refused, source
from in_place_cases import without
from source_cases import cif, frames, record, write_table
from torch_geometric.data import InMemoryDataset

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, Target, prepare_store, store_summary, write_store
from hydragnn_flow.errors import InputError, StoreError

WITH_TEST = {**PYG, "test": "test.pt"}
KEYS = ("dataset_name", "graph_attr", "pe", "rel_pe")


def with_keys(n, branch=0, **changes):
    """A graph of n nodes and two edges as HydraGNN's users make them."""
    graph = pyg_graph(n)
    graph.dataset_name = torch.tensor([[branch]])
    graph.graph_attr = torch.tensor([300.0, 0.1 * n])
    graph.pe = torch.rand(n, 3)
    graph.rel_pe = (graph.pe[graph.edge_index[0]] - graph.pe[graph.edge_index[1]]).abs()
    for key, value in changes.items():
        graph[key] = value
    return graph


def prepared(folder, name="store", source=PYG, **settings):
    split = {role: 0.2 for role in ("val", "test") if role not in source}
    config = DataConfig(source=source, path=folder, split=split)
    return prepare_store(config, CUTOFF, None, 0, folder / name, **settings)


@pytest.fixture
def made():
    torch.manual_seed(0)
    return [with_keys(n, n % 2) for n in (2, 5, 3, 4, 6, 7, 5, 3, 8, 2)]


def test_pyg_brings_them_where_edges_are_built(tmp_path):
    plain = pyg_graph(4, edges=False)
    plain.dataset_name, plain.graph_attr, plain.pe = 1, torch.tensor([[7.0]]), torch.arange(4.0)
    torch.save(plain, tmp_path / "graphs.pt")
    (got,) = graphs(source(tmp_path, **PYG))
    assert got.dataset_name.tolist() == [[1]]
    assert got.graph_attr.tolist() == [[7.0]]
    assert got.pe.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    plain.rel_pe = torch.ones(2, 1)
    torch.save(plain, tmp_path / "graphs.pt")
    refused(tmp_path, PYG, "graphs.pt: structure 0", "rel_pe", "no edge_index")


def test_what_is_a_label_is_nothing_else(tmp_path):
    torch.save(with_keys(3), tmp_path / "graphs.pt")
    targets = {"heat": {"unit": "eV", "level": "graph", "key": "graph_attr"}}
    (got,) = graphs(source(tmp_path, **{**PYG, "targets": targets}))
    np.testing.assert_allclose(got.heat, [[300.0, 0.3]], rtol=1e-6)
    assert "graph_attr" not in got


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("dataset_name", torch.tensor([[-1]]), "dataset_name is [[-1.0]], not the number"),
        ("dataset_name", torch.tensor([0, 1]), "not the number"),
        ("graph_attr", torch.ones(2, 2), "graph_attr has the shape [2, 2]"),
        ("graph_attr", torch.tensor([torch.nan]), "NaN or infinity in 'graph_attr'"),
        ("pe", torch.ones(3, 3), "'pe' has the shape [3, 3], but 2 rows"),
        ("pe", torch.ones(2, 4), "pe is float32 [2, 4], which does not fit"),
        ("rel_pe", torch.ones(3, 3), "'rel_pe' has the shape [3, 3], but 2 rows"),
        ("loss_weight", torch.tensor([-1.0]), "has the weight [[-1.]], which is no finite"),
        ("pe", None, "key(s) pe are not in every graph"),
    ],
)
def test_pyg_refuses(tmp_path, key, value, reason):
    bad = with_keys(2, **{key: value})
    torch.save([with_keys(3), bad], tmp_path / "graphs.pt")
    where = f"{tmp_path / 'graphs.pt'}: structure 1"
    with pytest.raises(InputError, match=f"^{re.escape(where)}.*{re.escape(reason)}.*$") as error:
        prepared(tmp_path)
    assert "\n" not in str(error.value)


def test_graphs_of_weight_0_are_left_out(tmp_path):
    """Those of a store too, which are refused where they stay in place."""
    weights = {3: 2.0, 2: 0.0, 4: 2.0, 5: 2.0}
    weighted = [with_keys(n, loss_weight=torch.tensor([w])) for n, w in weights.items()]
    torch.save(weighted, tmp_path / "graphs.pt")
    left = graphs(source(tmp_path, **PYG))
    assert [one.loss_weight.tolist() for one in left] == [[[2.0]]] * 3
    zeros = [one.clone() for one in left]
    for one in zeros:
        one.loss_weight *= 0
    names = ("trainset", "valset", "testset")
    splits = {name: pair for name, *pair in zip(names, left, zeros, strict=True)}
    targets = {"gap": Target(level="graph", dim=left[0].gap.numel())}
    stored = write_store(tmp_path / "s", splits, targets=targets, cutoff=CUTOFF)
    values = {"source": {"format": "hydragnn", "file": str(stored.path)}}
    copy = prepare_store(DataConfig(**values), CUTOFF, None, 0, tmp_path / "copy")
    assert [split.graphs for split in copy.manifest.splits.values()] == [1, 1, 1]
    with pytest.raises(InputError, match="graph 1 has the weight 0; leave in_place out"):
        prepare_store(DataConfig(**values, in_place=True), CUTOFF, None, 0, tmp_path / "there")


def test_files_read_apart_must_be_alike(tmp_path, made):
    torch.save(made * 4, tmp_path / "graphs.pt")
    torch.save([with_keys(3, graph_attr=None)], tmp_path / "test.pt")
    with pytest.raises(InputError, match=r"keys of .*test\.pt are .*graphs\.pt are .*graph_attr"):
        prepared(tmp_path, source=WITH_TEST)


def test_prepared_stores_and_their_shards_have_them(tmp_path, made, same):
    torch.save(InMemoryDataset.collate(made), tmp_path / "graphs.pt")
    store = prepared(tmp_path)
    assert set(KEYS) <= set(store.manifest.keys)
    assert store_summary(store)["branches"] == [0, 1]
    (shard,) = store.manifest.shards
    alone = GraphStore.open(store.path / shard.path)
    assert alone.manifest.branches == [0, 1]
    assert alone.manifest.statistics.degree_histogram == store.manifest.statistics.degree_histogram
    section = {"format": "hydragnn", "file": str(store.path)}
    again = prepare_store(DataConfig(source=section), CUTOFF, None, 0, tmp_path / "again")
    for split in store.splits:
        for i, graph in enumerate(store[split]):
            assert same(alone[split][i], graph)
            assert same(again[split][i], graph, ignore=("graph_id",))
            (origin,) = (g for g in made if torch.equal(g.pe, graph.pe))
            for key in KEYS:
                assert torch.equal(graph[key].flatten(), origin[key].flatten())


def charged(folder, kind):
    """The section of labelled structures, each of which says of itself a charge and a spin."""
    structures = frames(12)
    for i, atoms in enumerate(structures):
        atoms.info |= {"charge": i % 3 - 1, "spin": 1 + i % 2}
    if kind == "xyz":
        write(folder / "all.xyz", structures)
    elif kind == "json":
        records = [record(atoms) | atoms.info for atoms in structures]
        (folder / "all.json").write_text(json.dumps(records, default=float))
    else:
        rows = [(cif(one), one.get_potential_energy(), *one.info.values()) for one in structures]
        write_table(folder / "all.csv", ["cell", "energy", "charge", "spin"], rows)
    format = {"format": "ase"} if kind == "xyz" else {"format": kind}
    cell = {"structure": "cell"} if kind == "csv" else {}
    return {**format, **cell, "train": f"all.{kind}", "targets": {"energy": "eV"}}


@pytest.mark.parametrize("kind", ["xyz", "json", "csv"])
def test_structures_say_what_holds_for_all_of_them(tmp_path, kind):
    section = charged(tmp_path, kind) | {"graph_attr": ["spin", "charge"]}
    found = graphs(source(tmp_path, **section))
    expected = [[[1 + i % 2, i % 3 - 1]] for i in range(12)]
    assert [graph.graph_attr.tolist() for graph in found] == expected
    store = prepared(tmp_path, source=section)
    assert store.manifest.keys["graph_attr"].shape == (2,)
    assert store.manifest.provenance["graph_attr"] == ["spin", "charge"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (..., "has no input 'spin' (did you mean 'spins'?); correct data.source.graph_attr"),
        ("up", "has 'spin' = 'up', and the network reads one finite number"),
        ([1, 2], "and the network reads one finite number"),
        (1e300, "and the network reads one finite number"),
    ],
)
def test_a_structure_that_does_not_say_it_is_refused(tmp_path, value, said):
    (good, bad) = frames(2)
    good.info["spin"] = 1
    bad.info |= {"spins": 1} if value is ... else {"spin": value}
    write(tmp_path / "all.xyz", [good, bad])
    section = {"format": "ase", "train": "all.xyz", "targets": {"energy": "eV"}}
    refused(tmp_path, section | {"graph_attr": ["spin"]}, "all.xyz: structure 1", said)


def test_data_sets_say_the_same_of_their_structures(tmp_path):
    section = charged(tmp_path, "xyz")
    charged_one = {"name": "one", **section, "graph_attr": ["charge", "spin"]}
    named = [charged_one, {"name": "two", **section}]
    config = DataConfig(sources=named, path=tmp_path, split={"val": 0.2, "test": 0.2})
    assert config.graph_attr == ["charge", "spin"]
    with pytest.raises(InputError, match=r"key\(s\) graph_attr are not in every graph"):
        prepare_store(config, CUTOFF, None, 0, tmp_path / "store")


def test_encodings_are_computed_for_all_or_for_none(tmp_path, made):
    plain = list(map(without("pe", "rel_pe"), made))
    torch.save(plain, tmp_path / "graphs.pt")
    store = prepared(tmp_path, "computed", encodings=2)
    assert store.manifest.keys["pe"].node and store.manifest.keys["pe"].shape == (2,)
    assert store.manifest.keys["rel_pe"].edge
    assert store.manifest.provenance["laplacian_encodings"] == 2
    assert prepared(tmp_path, "computed", encodings=2).manifest == store.manifest
    prepared(tmp_path, "computed")  # nobody asks for them
    prepared(tmp_path, "without")
    for name, encodings in (("computed", 3), ("without", 2)):
        with pytest.raises(StoreError, match=r"\(Architecture\.pe_dim differ"):
            prepared(tmp_path, name, encodings=encodings)

    torch.save(made, tmp_path / "graphs.pt")
    store = prepared(tmp_path, "brought", encodings=3)
    assert "laplacian_encodings" not in store.manifest.provenance
    assert all(any(torch.equal(graph.pe, one.pe) for one in made) for graph in store["trainset"])
    prepared(tmp_path, "brought", encodings=3)

    torch.save([*made[:3], *plain[3:]], tmp_path / "graphs.pt")
    with pytest.raises(InputError, match="structure 3 has no key 'pe', but graphs before it have"):
        prepared(tmp_path, "mixed", encodings=3)
    torch.save(made * 4, tmp_path / "graphs.pt")
    torch.save(plain, tmp_path / "test.pt")
    with pytest.raises(InputError, match=r"of .*test\.pt are computed, .*graphs\.pt are their own"):
        prepared(tmp_path, "mixed", WITH_TEST, encodings=3)
