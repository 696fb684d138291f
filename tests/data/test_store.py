"""Round trips through a store, HydraGNN's own file, and what a store refuses to write."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import adios2
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from hydragnn_flow.data import GraphStore, Target, check_store, store_summary, write_store
from hydragnn_flow.data.store.bp5 import Bp5File, Bp5Writer
from hydragnn_flow.data.store.manifest import load_manifest
from hydragnn_flow.errors import InputError


def test_vector_targets_of_graphs(graph, tmp_path):
    graphs = [graph(seed) for seed in range(3)]
    for i, data in enumerate(graphs):
        data.dipole = torch.full((1, 3), float(i))
    targets = {"dipole": Target(level="graph", dim=3, unit="e Å")}
    store = write_store(tmp_path / "s", {"trainset": graphs}, targets=targets)
    assert store["trainset"].batch([2, 1]).dipole.tolist() == [[2.0] * 3, [1.0] * 3]
    assert store["trainset"].target("dipole").shape == (3, 3)
    assert store.manifest.units["dipole"] == "e Å"


def test_a_locale_that_is_not_utf8(tmp_path):
    script = (
        "import numpy, sys; from pathlib import Path; path = Path(sys.argv[1])\n"
        "from hydragnn_flow.data.hydragnn_bp.child import read_all\n"
        "from hydragnn_flow.data.store.bp5 import Bp5File, Bp5Writer\n"
        "file = Bp5Writer(path); file.put('a', numpy.arange(3)); file.close()\n"
        "read_all(sys.argv[1], sys.stderr); print(Bp5File(path).read('a').sum(), end='')"
    )
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for name, said in (("Größe", b"3"), ("Gr\udcf6\udcdfe", b"is not named in UTF-8")):
        command = [sys.executable, "-c", script, os.fsencode(tmp_path / name)]
        ran = subprocess.run(command, env={**os.environ, **ascii_only}, capture_output=True)
        assert said in ran.stdout + ran.stderr
    assert (tmp_path / "Größe" / "md.0").is_file()


def test_manifest_and_summary_say_what_is_inside(store, written):
    manifest, summary, report = store.manifest, store_summary(store), check_store(written)
    assert manifest.targets["energy"] == Target(level="graph", dim=1, unit="eV")
    assert manifest.targets["forces"] == Target(level="node", dim=3, unit="eV/Å")
    assert (manifest.cutoff, manifest.max_neighbours) == (3.0, None)
    assert manifest.node_features == ["atomic_number"]
    assert load_manifest(written) == manifest
    json.dumps(summary)
    assert summary["splits"]["trainset"]["graphs"] == 12
    assert summary["elements"] == ["H", "C", "Cu", "Au"]
    assert summary["bytes"] == sum(f.stat().st_size for f in written.rglob("*") if f.is_file())
    assert report["graphs"] == 19
    files = {"blocks.npz", "data.0", "md.0", "md.idx", "mmd.0"}
    assert {Path(name).name for name in report["files"]} == files


def test_hydragnns_reader_would_understand(written, store):
    """Read one of our shards as HydraGNN does: variables by count and offset, one step."""
    with adios2.FileReader(str(written / "shard-00000.bp")) as file:
        assert file.read_attribute("total_ndata") == 19
        histogram = file.read_attribute("pna_deg").tolist()
        assert histogram == store.manifest.statistics.degree_histogram
        assert file.read_attribute("valset/ndata") == 3
        keys = file.read_attribute("valset/keys")
        assert set(keys) >= {"x", "pos", "edge_index", "edge_shifts", "y", "y_loc"}
        for i, data in enumerate(store["valset"]):
            for key in keys:
                dim = int(file.read_attribute(f"valset/{key}/variable_dim"))
                count = file.read(f"valset/{key}/variable_count")
                start = file.read(f"valset/{key}/variable_offset")
                values = file.read(f"valset/{key}")
                piece = np.take(values, np.arange(start[i], start[i] + count[i]), axis=dim)
                assert np.array_equal(piece, data[key].numpy()), key


@pytest.mark.parametrize("mode", ["memory", "random", "stream"])
def test_reads_hydragnns_own_file(shared_data, mode):
    """HydraGNN stacks edge_index by rows where all graphs have as many edges."""
    store = GraphStore.open(shared_data / "hydragnn_bp" / "hydragnn_cuau.bp", mode)
    assert store.splits == ("trainset", "valset", "testset")
    assert [len(store[name]) for name in store.splits] == [40, 10, 10]
    reference = np.load(shared_data / "hydragnn_bp" / "hydragnn_cuau_reference.npz")
    assert len(reference.files) == 90
    for name in reference:
        split, index, key = name.split("/")
        stored = store[split][int(index)][key].numpy()
        assert stored.dtype == reference[name].dtype
        assert np.array_equal(stored, reference[name]), name
    assert store.manifest.elements == [29, 79]
    targets = {"energy": Target(level="graph", dim=1), "forces": Target(level="node", dim=3)}
    assert store.manifest.targets == targets
    assert store["trainset"].graph_id.tolist() == list(range(40))
    assert (store["valset"].n_edges == 640).all()


def test_edge_shifts_follow_hydragnns_convention(shared_data):
    """The sign that HydraGNN's stored lengths demand is the one our neighbour lists have."""
    store = GraphStore.open(shared_data / "hydragnn_bp" / "hydragnn_cuau.bp")
    batch = store["testset"].batch([0, 3])
    sender, receiver = batch.edge_index
    vectors = batch.pos[receiver] - batch.pos[sender] + batch.edge_shifts
    assert (batch.edge_shifts.abs().sum(dim=1) > 0).any()
    assert torch.allclose(vectors.norm(dim=1), batch.edge_attr[:, 0], atol=1e-5)
    # Their edges arrive at the second row: capped to 20 at each atom, which the first row is not.
    assert (batch.edge_index[1].bincount() == 20).all()
    assert (batch.edge_index[0].bincount() != 20).any()


def test_arrays_adios2_would_scramble(tmp_path):
    """ADIOS2 writes the memory behind a view in the wrong order and refuses read-only arrays."""
    grid = np.arange(12.0).reshape(3, 4)
    constant = np.arange(3)
    constant.flags.writeable = False
    arrays = {"transposed": grid.T, "column": grid[:, 1], "constant": constant}
    writer = Bp5Writer(tmp_path / "a.bp")
    for name, array in arrays.items():
        writer.put(name, array)
    for part in (grid.T[:1], grid.T[1:1], grid.T[1:]):
        writer.append("grown", part, 0)
    writer.attribute("names", list(arrays))
    writer.close()
    with closing(Bp5File(tmp_path / "a.bp")) as file:
        assert file.attribute("names") == list(arrays)
        for name, array in arrays.items():
            assert np.array_equal(file.read(name), array), name
        assert np.array_equal(file.read("grown"), grid.T)
        with pytest.raises(InputError, match=r"a\.bp has no variable other"):
            file.read("other")
        with pytest.raises(InputError, match=r"a\.bp has no attribute other"):
            file.attribute("other")


def test_reads_a_store_of_version_3():
    """A store as an earlier state of this release wrote it, kept beside the tests."""
    store = GraphStore.open(Path(__file__).parent / "golden" / "store_v3")
    assert store.manifest.version == 3
    assert len(store["trainset"]) == 3
    for n, data in enumerate(store["trainset"], start=1):
        assert data.x[:, 0].tolist() == [29.0] * n
        assert data.pos.reshape(-1).tolist() == [0.5 * i for i in range(3 * n)]
        assert data.energy.tolist() == [-1.25 * n]
    assert store["valset"].target("forces").tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("energy", torch.tensor([torch.inf], dtype=torch.float64), "energy holds NaN or infinity"),
        ("pos", torch.full((4, 3), torch.inf), "pos holds NaN or infinity"),
        ("spin", torch.ones(4), ".*spin"),
        ("forces", torch.ones(4, 2), "forces is float32"),
        ("forces", torch.ones(4, 3).double(), "forces is float64"),
        ("pos", torch.ones(3, 3), "pos has another number of rows"),
        ("edge_index", 4, "edge_index names an atom"),
        ("energy", torch.tensor(1.0), "energy is no tensor of one dimension"),
        ("energy", 1.0, "energy is no tensor"),
        ("energy", torch.ones(1).half(), "energy is float16"),
        ("forces", torch.ones(4, 0), "forces is .*without values"),
    ],
)
def test_refuses_graphs_that_do_not_fit(graph, tmp_path, key, value, complaint):
    good, bad = ([graph(seed, n_atoms=4) for seed in (20, 34, 22)] for _ in range(2))
    assert bad[1].num_edges
    bad[1][key] = bad[1][key] + value if key == "edge_index" else value
    with pytest.raises(InputError, match=f"valset: graph 1: {complaint}"):
        write_store(tmp_path / "s", {"trainset": good, "valset": bad})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("weight", [[[-1.0]], [1.0], [[1.0, 2.0]], [[1.0], [1.0]]])
def test_refuses_weights_that_are_none(graph, tmp_path, weight):
    bad = graph(0)
    bad.loss_weight = torch.tensor(weight)
    with pytest.raises(InputError, match=r"trainset: graph 0: loss_weight .* not \[1, 1\] with a"):
        write_store(tmp_path / "s", {"trainset": [bad]})


GAP, ENERGY = Target(level="graph", dim=1), Target(level="node", dim=1)


@pytest.mark.parametrize(
    ("splits", "keys", "targets", "complaint"),
    [
        ({"trainset": 1}, {"batch_size": torch.ones(1)}, None, "'batch_size' is reserved"),
        ({"trainset": 1}, {"num_nodes": torch.ones(1)}, None, "'num_nodes' is reserved"),
        ({"trainset": 1}, {"a/b": torch.ones(1)}, None, "'a/b' has a slash"),
        (
            {"trainset": 1},
            {"dataset_name": torch.tensor([[-1]])},
            None,
            r"is -1 \(int64",
        ),
        ({"trainset": 1}, {"dataset_name": torch.ones(1)}, None, r"is 1.0 \(float32"),
        ({"trainset": 1}, {"dataset_name": torch.tensor([[0, 1]])}, None, "2 values for 1 graph"),
        ({"trainset": 1, "": 1}, {}, None, "is no name for a split"),
        ({"trainset": 1, "a/b": 1}, {}, None, "is no name for a split"),
        ({"valset": 1}, {}, None, "trainset has no graphs"),
        ({"trainset": 0, "valset": 1}, {}, None, "trainset has no graphs"),
        ({"trainset": 1}, {}, {"gap": GAP}, "target 'gap'"),
        ({"trainset": 1}, {}, {"energy": ENERGY}, "target 'energy'"),
        ({"trainset": 1}, {}, {"forces": Target(level="node", dim=2)}, "target 'forces'"),
    ],
)
def test_refuses_what_could_not_be_read_back(graph, tmp_path, splits, keys, targets, complaint):
    changed = Data(**(graph(1, n_atoms=3).to_dict() | keys))
    graphs = {name: [changed] * n for name, n in splits.items()}
    with pytest.raises(InputError, match=complaint):
        write_store(tmp_path / "s", graphs, targets=targets)
    assert list(tmp_path.iterdir()) == []


def test_refuses_an_existing_path(graph, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "precious").touch()
    with pytest.raises(InputError, match="exists"):
        write_store(tmp_path / "s", {"trainset": [graph(1)]})
    assert (tmp_path / "s" / "precious").exists()


def test_unknown_names(store):
    with pytest.raises(InputError, match="no split 'train'; it has trainset, valset, testset"):
        store["train"]
    with pytest.raises(InputError, match="'dipole' is not in the store; it has energy, forces"):
        store["trainset"].target("dipole")
