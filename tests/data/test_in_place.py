"""Data used where they are: the same graphs and statistics as of a copy, and nothing written."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from data_set_cases import same_statistics
from in_place_cases import (
    SIZES,
    TARGETS,
    alloy_graphs,
    as_hydragnn,
    config,
    hydragnn_file,
    prepared,
    three_sets,
    vectors,
    without,
)
from pydantic import ValidationError

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import (
    GraphStore,
    check_store,
    prepare_store,
    run_task,
    store_summary,
    write_store,
)
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.reading.local_shards import files_to_send
from hydragnn_flow.errors import InputError, StoreError

N = sum(SIZES.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("in-place")


@pytest.fixture(scope="module")
def sources(folder):
    return three_sets(folder)


@pytest.fixture(scope="module")
def copies(folder, sources):
    return prepared(folder, sources, "copies.gs", in_place=False)


@pytest.fixture(scope="module")
def there(folder, sources):
    return prepared(folder, sources, "there.gs")


@pytest.fixture
def own(folder, sources, tmp_path):
    """The files once more, to change."""
    for one in sources:
        shutil.copytree(folder / one["file"], tmp_path / one["file"])
    return tmp_path


def same(left, right):
    keys = ("x", "cell", "pbc", "edge_index", "edge_attr", "energy", "forces", "dataset_name")
    return all(
        left[key].dtype == right[key].dtype and torch.equal(left[key], right[key]) for key in keys
    ) and torch.allclose(vectors(left), vectors(right), atol=1e-5)


def of_one(folder, section, path, *, in_place=True, cutoff=4.0, most=None):
    """A store of one data set."""
    values = {"source": section, "path": folder, "in_place": in_place}
    return prepare_store(DataConfig.model_validate(values), cutoff, most, 0, path)


def near(left, right):
    assert left.degree_histogram == right.degree_histogram
    assert left.by_branch.keys() == right.by_branch.keys()
    same_statistics(left, right)
    for branch, found in left.by_branch.items():
        same_statistics(found, right.by_branch[branch])


def test_manifest_says_what_that_of_copies_says(there, copies):
    left, right = there.manifest, copies.manifest
    near(left.statistics, right.statistics)
    same_in_both = {"targets", "units", "cutoff", "max_neighbours", "truncation", "elements"}
    same_in_both |= {"node_features", "branches", "branch_names", "splits"}
    assert left.model_dump(include=same_in_both) == right.model_dump(include=same_in_both)
    for key in left.keys.keys() - {"edge_index"}:
        assert left.keys[key] == right.keys[key], key
    assert right.keys.keys() - left.keys.keys() == {"graph_id", "y", "y_loc"}
    assert left.provenance["own_edges"] == right.provenance["own_edges"]
    assert sorted(file.name for file in there.path.iterdir()) == ["manifest.json"]


@pytest.mark.parametrize("mode", ["memory", "random", "stream"])
def test_graphs_are_those_of_copies_in_their_order(there, copies, mode):
    with GraphStore.open(there.path, mode) as store:
        assert store.splits == copies.splits
        for name in store.splits:
            left, right = store[name], copies[name]
            assert len(left) == len(right) == 3 * SIZES[name]
            assert left.graph_id.tolist() == right.graph_id.tolist()
            assert left.branch is not None and right.branch is not None
            assert left.branch.tolist() == right.branch.tolist()
            assert left.branch_runs.pairs == [(branch, SIZES[name]) for branch in range(3)]
            assert left.n_edges.tolist() == right.n_edges.tolist()
            for target in TARGETS:
                assert np.array_equal(left.target(target), right.target(target))
            assert all(same(a, b) for a, b in zip(left, right, strict=True))
            chosen = [np.array([4, 0, 8]), np.array([1, 7])]
            for batch, graphs in zip(left.batches(chosen), chosen, strict=True):
                assert same(batch, right.batch(graphs))
                assert torch.equal(batch.ptr, right.batch(graphs).ptr)


def test_file_of_hydragnn_itself(shared_data, tmp_path):
    section = {"format": "hydragnn", "file": "hydragnn_cuau.bp"}
    folder = shared_data / "hydragnn_bp"
    there, copy = (
        of_one(folder, section, tmp_path / name, in_place=in_place, cutoff=5.0, most=20)
        for name, in_place in (("there", True), ("copy", False))
    )
    left, right = there["trainset"], copy["trainset"]
    assert left.branch is None
    assert left[3].pbc.tolist() == [1, 1, 1]
    assert torch.allclose(vectors(left[3]), vectors(right[3]), atol=1e-5)
    assert torch.equal(left[3].energy, right[3].energy)
    assert there.manifest.truncation == copy.manifest.truncation
    assert there.manifest.provenance["own_edges"] is False


def test_molecules_without_cells_get_empty_ones(tmp_path):
    crystals = list(map(as_hydragnn, alloy_graphs(N, 0)))
    hydragnn_file(tmp_path / "crystals.bp", crystals)
    molecules = []
    for graph in map(without("cell", "edge_shifts"), crystals):
        inside = (crystals[len(molecules)].edge_shifts == 0).all(dim=1)
        graph.edge_index, graph.edge_attr = graph.edge_index[:, inside], graph.edge_attr[inside]
        molecules.append(graph)
    hydragnn_file(tmp_path / "molecules.bp", molecules)
    sources = [
        {"name": name, "format": "hydragnn", "file": f"{name}.bp", "targets": TARGETS}
        for name in ("crystals", "molecules")
    ]
    left = prepared(tmp_path, sources)["trainset"]
    right = prepared(tmp_path, sources, "copy.gs", in_place=False)["trainset"]
    assert all(same(a, b) for a, b in zip(left, right, strict=True))
    assert left[0].pbc.any() and not left[SIZES["trainset"]].pbc.any()


def test_targets_are_named_and_units_given(folder, tmp_path):
    targets = {"total": {"unit": "eV", "key": "energy"}, "pull": {"unit": "eV/Å", "key": "forces"}}
    section = {"format": "hydragnn", "file": "one.bp", "targets": targets}
    store = of_one(folder, section, tmp_path / "s")
    with GraphStore.open(folder / "one.bp", "random") as file:
        graph, theirs = store["valset"][1], file["valset"][1]
        assert graph.total.item() == theirs.energy.item()
        assert torch.equal(graph.pull, theirs.forces)
    assert store.manifest.targets["total"].unit == "eV"
    assert not {"energy", "forces"} & store.manifest.keys.keys()


def packed(graphs):
    """With a ``y`` of outputs of atoms, of the graph, of atoms again, and one not asked for."""
    found = []
    for number, graph in enumerate(graphs):
        n = len(graph.pos)
        spread = torch.arange(n, dtype=torch.float32)
        pieces = [graph.forces, graph.energy[:, None] * torch.ones(2), spread, torch.ones(number)]
        graph = without("energy", "forces")(graph)
        graph.y = torch.cat([piece.reshape(-1) for piece in pieces])[:, None].float()
        ends = np.cumsum([0, *(piece.numel() for piece in pieces)])
        graph.y_loc = torch.from_numpy(ends)[None]
        found.append(graph)
    return found


def test_targets_in_y_are_read_from_there(tmp_path):
    """In all modes, and through a store in place too; what follows them in y does not matter."""
    graphs = packed(list(map(as_hydragnn, alloy_graphs(N, 3))))
    hydragnn_file(tmp_path / "a.bp", graphs)
    names = {"pull": "node", "pair": "graph", "count": "node"}
    asked = {"output_names": list(names), "type": list(names.values())}
    targets = {name: {"unit": "eV", "level": level} for name, level in names.items()}
    section = {"format": "hydragnn", "file": "a.bp", "targets": targets, "outputs": asked}
    there = of_one(tmp_path, section, tmp_path / "there.gs")
    copied = of_one(tmp_path, section, tmp_path / "copy.gs", in_place=False)
    nested = {"format": "hydragnn", "file": "there.gs"}
    again = of_one(tmp_path, nested, tmp_path / "again.gs")
    copy = copied["trainset"]
    assert there.manifest.targets == copied.manifest.targets
    for made, mode in ((there, "memory"), (there, "random"), (there, "stream"), (again, "random")):
        with GraphStore.open(made.path, mode) as store:
            for chosen in ([0], [2, 3, 4], [7, 0, 1, 5]):
                left, right = store["trainset"].batch(chosen), copy.batch(chosen)
                for name in names:
                    assert left[name].dtype == right[name].dtype
                    assert torch.equal(left[name], right[name]), (mode, name)
    graphs[4].y_loc[0, 1:3] += 1
    hydragnn_file(tmp_path / "b.bp", graphs)
    refused(tmp_path, [{"name": "b", **section, "file": "b.bp"}], "trainset: graph 4: y_loc is")


def test_a_store_in_place_can_be_used_in_place(there, tmp_path):
    """Its shards are those of the first files, its branches those that it said."""
    store = of_one(None, {"format": "hydragnn", "file": str(there.path)}, tmp_path / "s")
    assert store.manifest.in_place == there.manifest.in_place
    for name in store.splits:
        assert all(same(a, b) for a, b in zip(store[name], there[name], strict=True))


def test_nothing_is_copied_to_a_node_and_what_is_said_of_it(there, folder, tmp_path):
    assert files_to_send(there.path) == []
    with GraphStore.open(there.path, "random", scratch=tmp_path) as store:
        assert len(store["trainset"].batch([0, 9]).ptr) == 3
    assert not list(tmp_path.iterdir())
    summary = store_summary(there)
    used = [Path(path).relative_to(folder).parts[0] for path in summary["in_place"]]
    assert used == ["one.bp", "two.bp", "three.gs"]
    assert summary["bytes"] < 20_000 < summary["bytes_in_place"]
    checked = check_store(there.path)
    assert checked["graphs"] == 3 * N
    unverified = [Path(file).parts[-2:] for file in checked["unverified"]]
    assert unverified == [("one.bp", "data.0"), ("two.bp", "data.0")]
    assert any(file.endswith("shard-00000.bp/data.0") for file in checked["files"])


def test_changed_files_are_named(own, sources):
    """At opening; ADIOS2, which changed metadata may crash, does not see them."""
    store = prepared(own, sources)
    data, metadata = own / "two.bp" / "data.0", own / "one.bp" / "md.0"
    content, changed = data.read_bytes(), bytearray(metadata.read_bytes())
    times = {file: (file.stat().st_atime_ns, file.stat().st_mtime_ns) for file in (data, metadata)}

    def refused_for(file, what):
        match = rf"{file} .*{what}.* in place; .*but not this file"
        with pytest.raises(StoreError, match=match):
            GraphStore.open(store.path)

    data.unlink()
    refused_for(r"two\.bp/data\.0", "missing")
    data.write_bytes(content[:-8])
    refused_for(r"two\.bp/data\.0", "bytes instead of")
    data.write_bytes(content)
    refused_for(r"two\.bp/data\.0", "has changed since the store was prepared")
    os.utime(data, ns=times[data])
    assert GraphStore.open(store.path, "random")["testset"][5]
    changed[len(changed) // 2] ^= 0xFF
    metadata.write_bytes(changed)
    os.utime(metadata, ns=times[metadata])
    refused_for(r"one\.bp/md\.0", "checksum differs")


def cut_off(after, ran):
    """Workers that run so many tasks, after which the preparation is cut off."""

    def workers(requests):
        for number, request in requests.items():
            if len(ran) == after:
                raise KeyboardInterrupt
            ran.append(request["directory"])
            run_task(request)
            yield number

    return workers


@pytest.mark.parametrize("after", [2, 7])
def test_a_preparation_goes_on_where_it_was_cut_off(
    folder, sources, there, tmp_path, monkeypatch, after
):
    monkeypatch.setattr(preparing, "_FEW_BYTES", 0)
    monkeypatch.setattr(preparing, "_GRAPHS_PER_TASK", 3)
    chosen, path, first, second = config(folder, sources), tmp_path / "s", [], []
    with pytest.raises(KeyboardInterrupt):
        prepare_store(chosen, 4.0, None, 0, path, workers=cut_off(after, first))
    assert not path.exists()
    store = prepare_store(chosen, 4.0, None, 0, path, workers=cut_off(None, second))
    assert len({*first, *second}) == len(first + second) == 3 + 3 * (3 + 1 + 1)
    near(store.manifest.statistics, there.manifest.statistics)
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_reused_but_not_for_copies_and_changed_graphs_of_a_store_are_noticed(own, sources):
    store = prepared(own, sources)
    assert prepared(own, sources).manifest == store.manifest
    with pytest.raises(StoreError, match=r"other data or settings \(in_place differ\)"):
        prepared(own, sources, in_place=False)
    file = own / "three.gs" / "shard-00000.bp" / "data.0"
    content = bytearray(file.read_bytes())
    content[100] ^= 0xFF
    file.write_bytes(content)
    with (
        GraphStore.open(store.path, "random") as opened,
        pytest.raises(StoreError, match=r"data\.0 .*checksum differs.*in place"),
    ):
        list(opened["trainset"])


def refused(folder, sources, message, cutoff=4.0):
    with pytest.raises(InputError, match=message) as caught:
        prepare_store(config(folder, sources), cutoff, None, 0, folder / "s")
    assert "\n" not in str(caught.value)
    assert not (folder / "s").exists()


def test_what_networks_could_not_read_is_named(own, sources):
    one, two, three = sources
    refused(own, sources, r"one\.bp: trainset: graph \d+ has an edge of length", cutoff=2.0)
    gap = {**one, "targets": {"gap": "eV"}}
    refused(own, [gap], r"one\.bp: its graphs have no 'gap'")
    hartree = {**one, "targets": {"energy": "hartree", "forces": "eV/Å"}}
    refused(
        own,
        [hartree, three],
        "targets of three are energy .* in eV.* those of one are energy .* in hartree",
    )
    graphs = list(map(as_hydragnn, alloy_graphs(N, 7)))
    hydragnn_file(own / "bare.bp", list(map(without("edge_shifts"), graphs)))
    refused(own, [{**one, "file": "bare.bp"}], r"bare\.bp: .* no edge_shifts")
    for graph in graphs:
        graph.edge_attr = graph.edge_attr.repeat(1, 2)
    hydragnn_file(own / "wide.bp", graphs)
    refused(own, [one, {**two, "file": "wide.bp"}], r"rows of edge_attr of two are \[2\]")
    for graph in graphs:
        graph.pos = graph.pos + 1e5
    hydragnn_file(own / "far.bp", graphs)
    refused(own, [{**one, "file": "far.bp"}], r"far\.bp: trainset: graph 0 is so far")


def test_wrong_labels_are_named_and_do_not_change_the_scales(tmp_path):
    graphs = alloy_graphs(60, 7)
    section = {"format": "hydragnn"}
    for name, energy in (("clean", 0.0), ("wrong", 1e6)):
        graphs[3].energy = graphs[3].energy + energy
        splits = {"trainset": graphs[:40], "valset": graphs[40:50], "testset": graphs[50:]}
        write_store(tmp_path / f"{name}.gs", splits, units=TARGETS, cutoff=4.0)
    clean, wrong = (
        of_one(tmp_path, {**section, "file": f"{name}.gs"}, tmp_path / name).manifest
        for name in ("clean", "wrong")
    )
    (worst,) = wrong.provenance["suspicious"]["worst"]
    assert worst["where"].endswith("wrong.gs: trainset: graph 3") and "energy" in worst["why"]
    assert clean.provenance["suspicious"] == {}
    known = clean.statistics.element_energies
    assert wrong.statistics.element_energies == pytest.approx(known, abs=0.1)
    with pytest.raises(ValidationError, match="in_place: the files keep all their structures"):
        DataConfig.model_validate(
            {"source": {**section, "file": "x.bp"}, "in_place": True, "suspicious": "leave_out"}
        )
