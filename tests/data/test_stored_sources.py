"""Stores and HydraGNN's files as sources, and HydraGNN's packed `y` as their targets."""

import os
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from graph_source_cases import CUTOFF, graphs, refused, source
from hypothesis import given
from hypothesis import strategies as st
from in_place_cases import vectors
from torch_geometric.data import Data

from hydragnn_flow.config import RunConfig, load_network
from hydragnn_flow.config.network import VariablesOfInterest
from hydragnn_flow.data import GraphStore, prepare_store, write_store
from hydragnn_flow.data.hydragnn_bp.packed import unpack_outputs
from hydragnn_flow.data.sources.base import Chunk
from hydragnn_flow.data.sources.hydragnn import HydragnnSource
from hydragnn_flow.errors import InputError
from hydragnn_flow.models import build_model

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


def test_a_process_opens_a_store_once_unless_it_has_changed(copied, monkeypatch):
    opened = Mock(side_effect=GraphStore.open)
    monkeypatch.setattr(GraphStore, "open", opened)
    section = {"format": "hydragnn", "file": copied.name}
    chunks = source(copied.parent, **section).chunks()
    for chunk in chunks:
        assert list(source(copied.parent, **section).read(chunk))
    assert opened.call_count == 1
    os.utime(copied / "manifest.json", (0, 0))
    assert source(copied.parent, **section).chunks() == chunks
    assert opened.call_count == 2


def outputs(names, types, **more):
    values = {"output_names": names.split(), "type": types.split(), **more}
    return VariablesOfInterest.model_validate(values)


@st.composite
def raw(draw):
    """Features as HydraGNN's raw files have them, outputs among them, and what these are."""
    n = draw(st.integers(1, 4))
    widths = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    dims = {"graph": draw(widths), "node": draw(widths)}
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    graph = [rng.normal(size=d) for d in dims["graph"]]
    node = [rng.normal(size=(n, d)) for d in dims["node"]]
    levels = draw(st.lists(st.sampled_from(["graph", "node"]), min_size=1, max_size=4))
    index = [draw(st.integers(0, len(dims[level]) - 1)) for level in levels]
    features = {"graph_feature_dims": dims["graph"], "node_feature_dims": dims["node"]}
    names = " ".join(f"t{i}" for i in range(len(levels)))
    asked = outputs(names, " ".join(levels), output_index=index, **features)
    arrays = {"x": np.concatenate(node, axis=1), "y": np.concatenate(graph)}
    expected = [(graph if lv == "graph" else node)[i] for lv, i in zip(levels, index, strict=True)]
    return arrays, asked, expected


@given(raw())
def test_features_are_found_by_their_index_and_pieces_by_their_order(case):
    """Packing as HydraGNN packs, into y and y_loc, and taking apart is the same as not packing."""
    arrays, indexed, expected = case

    def check(arrays, asked, expected):
        found = unpack_outputs(arrays, asked, len(arrays["x"]), "graph 0")
        assert list(found) == [f"t{i}" for i in range(len(expected))]
        for one, other in zip(found.values(), expected, strict=True):
            np.testing.assert_array_equal(one, other)

    check(arrays, indexed, expected)
    pieces = [np.reshape(values, -1) for values in expected]
    ends = np.cumsum([0, *map(len, pieces)])
    packed = {"x": arrays["x"], "y": np.concatenate(pieces)[:, None], "y_loc": ends[None]}
    plain = indexed.model_copy(update={"graph_feature_dims": None, "node_feature_dims": None})
    for asked in (indexed, plain):  # y_loc counts before the features
        check(packed, asked, expected)
    # A network may name the first of them only.
    fewer = outputs("t0", indexed.type[0], output_index=indexed.output_index[:1])
    check(packed, fewer, expected[:1])


def test_outputs_of_graphs_follow_one_another_without_y_loc():
    arrays = {"y": np.arange(5.0)[None]}
    two = outputs("a b", "graph graph", output_dim=[2, 3])
    found = unpack_outputs(arrays, two, 7, "graph 0")
    assert [values.tolist() for values in found.values()] == [[0, 1], [2, 3, 4]]
    assert len(unpack_outputs(arrays, outputs("a", "graph"), 7, "graph 0")["a"]) == 5


@pytest.mark.parametrize(
    ("asked", "y_loc", "said"),
    [
        (outputs("a b c", "graph node graph"), [0, 1, 7], "divides y into 2, but"),
        (outputs("a b", "node graph"), [0, 1, 7], "y holds 1 numbers for 'a', which are no values"),
        (outputs("a", "graph"), [0, 9], "does not divide the 7 numbers"),
        (outputs("a b", "graph node"), None, "has no y_loc to say where"),
        (outputs("a b", "graph graph"), None, r"is \[\]; correct it, or name keys"),
        (
            outputs("a", "graph", output_index=[1], graph_feature_dims=[7]),
            None,
            r"asks for graph feature 1, but graph_feature_dims = \[7\] and the 7 columns of y",
        ),
        (
            outputs("a", "node", output_index=[0], node_feature_dims=[2]),
            None,
            r"asks for node feature 0, but node_feature_dims = \[2\] and the 1 columns of x",
        ),
        (outputs("a", "graph"), "without y", "has no 'y'"),
    ],
)
def test_what_y_does_not_hold_is_refused(asked, y_loc, said):
    arrays = {"x": np.ones((2, 1))} | ({} if y_loc == "without y" else {"y": np.arange(7.0)})
    arrays |= {"y_loc": np.array([y_loc])} if isinstance(y_loc, list) else {}
    with pytest.raises(InputError, match=rf"^a\.bp: trainset: graph 3.*{said}.*$") as error:
        unpack_outputs(arrays, asked, 2, "a.bp: trainset: graph 3")
    assert "\n" not in str(error.value)


def network(names, types, **more):
    architecture = {"mpnn_type": "PNA", "hidden_dim": 4, "num_conv_layers": 1, "radius": CUTOFF}
    return load_network(
        {
            "Architecture": {**architecture, "output_heads": {"graph": {}, "node": {}}},
            "Variables_of_interest": {"output_names": names.split(), "type": types.split(), **more},
            "Training": {"num_epoch": 1, "batch_size": 2, "Optimizer": {"learning_rate": 1e-3}},
        }
    )


def hydragnn_file(folder):
    """A `.bp` as HydraGNN's drivers of molecules write them: raw features, and keys beside them."""
    graphs = []
    for n in (2, 3, 4):
        positions = torch.arange(3.0 * n).reshape(n, 3) / 3
        forces = torch.randn(n, 3)
        senders = torch.arange(n - 1)
        one = torch.cat([senders, senders + 1])
        graph = Data(
            x=torch.cat([torch.full((n, 1), 6.0), positions, forces], dim=1),
            pos=positions,
            edge_index=torch.stack([one, one.roll(n - 1)]),
            y=torch.tensor([float(-n), 0.5]),
            energy=torch.tensor([-10.0 * n]),
            forces=2 * forces,
        )
        graphs.append(graph)
    splits = {"trainset": graphs, "valset": graphs[:1], "testset": graphs[1:2]}
    store = write_store(folder / "made", splits, cutoff=CUTOFF)
    return f"made/{store.manifest.shards[0].path}"


RAW = {"graph_feature_dims": [1, 1], "node_feature_dims": [1, 3, 3]}


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_a_network_trains_on_what_hydragnn_would_read(tmp_path, names):
    """Not on the keys of the same names; each file has its own y, read by the network's outputs."""
    files = {name: f"{name}/{hydragnn_file(tmp_path / name)}" for name in names}
    sections = [{"name": name, "format": "hydragnn", "file": files[name]} for name in names]
    data = {"sources": sections}
    if len(names) == 1:
        data = {"source": {"format": "hydragnn", "file": files["one"]}}
    asked = network("energy forces", "graph node", output_index=[0, 2], **RAW)
    config = RunConfig.model_validate(
        {
            "name": "packed",
            "data": {**data, "path": str(tmp_path)},
            "network": asked.to_json(),
            "search": {"trials": 2, "space": {"Architecture.hidden_dim": {"int": [4, 8]}}},
            "ensemble": {"size": 2, "epochs": 1},
        }
    )
    store = prepare_store(config.data, CUTOFF, None, 0, tmp_path / "store")
    for graph in store["trainset"]:
        assert graph.energy.tolist() == [-len(graph.pos)]
        assert torch.equal(graph.forces, graph.x[:, 4:])
    levels = {name: target.level for name, target in store.manifest.targets.items()}
    assert levels == {"energy": "graph", "forces": "node"}
    assert store.manifest.branches == ([0, 1] if len(names) > 1 else [])
    build_model(config.network_with({}), store)
    # What a run writes down is read again.
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert prepare_store(again.data, CUTOFF, None, 0, tmp_path / "store").manifest == store.manifest


def test_named_targets_are_keys_where_the_graphs_have_them(tmp_path):
    targets = {"energy": "eV", "per_atom": {"unit": "eV/atom"}}
    section = HydragnnSource(format="hydragnn", file=hydragnn_file(tmp_path), targets=targets)
    asked = network("per_atom gap", "graph graph", output_index=[0, 1], **RAW)
    section = section.for_network(asked)
    assert section.target_levels == {"energy": None, "per_atom": "graph"}
    source = section.open(tmp_path, 0)
    for record in source.read(source.chunks()[0]):
        n = len(record.atoms)
        assert record.targets["energy"].tolist() == [-10.0 * n]
        assert record.targets["per_atom"].tolist() == [-n]
    assert source.found_targets["per_atom"].unit == "eV/atom"


def test_a_potential_reads_keys():
    section = HydragnnSource(format="hydragnn", file="any.bp")
    values = network("energy", "graph").to_json()
    values["Architecture"] |= {"mpnn_type": "EGNN", "enable_interatomic_potential": True}
    assert section.for_network(load_network(values)) is section


def test_the_name_of_an_input_is_refused_for_an_output():
    section = HydragnnSource(format="hydragnn", file="any.bp")
    with pytest.raises(ValueError, match="output_names: 'x' means something else"):
        section.for_network(network("sum x", "graph node"))
