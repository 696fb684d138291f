"""HydraGNN's own reader opens what we write: ``pytest --hydragnn=PATH-OF-A-CHECKOUT``.

What it needs to find in a file is checked without it by
``test_store.py::test_hydragnns_reader_would_understand``.
"""

import sys
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from hydragnn_flow.data import write_store

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def hydragnn(request):
    """HydraGNN's module of the reader."""
    checkout = request.config.getoption("--hydragnn")
    if checkout is None:
        pytest.skip("needs a checkout of HydraGNN, named by --hydragnn=PATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        from peers.hydragnn import load_reader

        yield load_reader(checkout)
    # The stand-ins for MPI and for HydraGNN's packages are for these tests alone.
    for name in [name for name in sys.modules if name.split(".")[0] in ("hydragnn", "mpi4py")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def graphs(graph):
    """Three splits; HydraGNN's writer would stack the edges of the last one by rows."""
    made = [graph(seed) for seed in range(40)]
    alike = [data for data in made if data.num_edges == 12]
    others = [data for data in made if data.num_edges not in (0, 12)]
    assert len(alike) > 2
    return {"trainset": others[:20], "valset": others[20:], "testset": alike}


@pytest.fixture(scope="module")
def store(graphs, tmp_path_factory):
    # A name that HydraGNN knows, the third of its list.
    path = tmp_path_factory.mktemp("shards") / "mptrj"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydragnn_flow.data.writer.BLOCK_BYTES", 6000)
        patch.setattr("hydragnn_flow.data.store.shard_writer._MOST_BLOCKS", 3)
        written = write_store(path, graphs)
    shards = written.manifest.shards
    assert sum(shard.splits["trainset"].graphs > 0 for shard in shards) > 1
    assert any(sum(size.graphs > 0 for size in shard.splits.values()) > 1 for shard in shards)
    assert all(len(written[name].block_bounds) > 2 for name in ("trainset", "valset"))
    return written


@pytest.mark.parametrize("preload", [True, False])
def test_each_shard_is_a_file_of_hydragnns(hydragnn, store, graphs, same, preload):
    left = {split: iter(of_split) for split, of_split in graphs.items()}
    histogram = [0] * len(store.manifest.statistics.degree_histogram)
    for shard in store.manifest.shards:
        file = str(store.path / shard.path)
        for split in (split for split, size in shard.splits.items() if size.graphs):
            dataset = hydragnn.AdiosDataset(file, split, hydragnn.MPI.COMM_SELF, preload=preload)
            assert len(dataset) == shard.splits[split].graphs
            for index in range(len(dataset)):
                data = dataset[index]
                assert data.dataset_name.tolist() == [[2]]
                assert same(data, next(left[split]), ignore=("dataset_name",))
            assert dataset.dataset_name == "mptrj"
        for degree, atoms in enumerate(dataset.pna_deg.tolist()):
            histogram[degree] += atoms
    assert not any(list(rest) for rest in left.values())
    assert histogram == store.manifest.statistics.degree_histogram


@pytest.mark.parametrize("split", ["trainset", "valset", "testset"])
@pytest.mark.parametrize("preload", [True, False])
def test_shards_make_one_data_set(hydragnn, store, graphs, same, preload, split):
    """HydraGNN can open only the shards that hold graphs of the split."""
    shards = [shard for shard in store.manifest.shards if shard.splits[split].graphs]
    files = [str(store.path / shard.path) for shard in shards]
    dataset = hydragnn.AdiosMultiDataset(files, split, hydragnn.MPI.COMM_SELF, preload=preload)
    assert len(dataset) == len(graphs[split])
    for found, expected in zip_longest(dataset, graphs[split]):
        assert same(found, expected)


def test_graphs_without_edges(hydragnn, graph, same, tmp_path):
    """From memory alone: ADIOS2's Python interface divides by the size of what it reads."""
    graphs = [graph(seed, n_atoms=n) for seed, n in ((0, 8), (1, 1), (2, 8))]
    graphs[1] = graphs[1].edge_subgraph(graphs[1].edge_index[0] < 0)
    store = write_store(tmp_path / "store", {"trainset": graphs})
    file = str(store.path / store.manifest.shards[0].path)
    dataset = hydragnn.AdiosDataset(file, "trainset", hydragnn.MPI.COMM_SELF, preload=True)
    for found, expected in zip_longest(dataset, graphs):
        assert same(found, expected)


@pytest.mark.parametrize("preload", [True, False])
def test_graphs_with_branches(hydragnn, graphs, same, tmp_path, preload):
    """Its reader takes the branch from the name of a file, and fails at a key of it."""
    branched = [graph.clone() for graph in graphs["trainset"]]
    for number, graph in enumerate(branched):
        graph.dataset_name = torch.tensor([[number % 2]])
    store = write_store(tmp_path / "qm7x", {"trainset": branched})
    file = str(store.path / store.manifest.shards[0].path)
    dataset = hydragnn.AdiosDataset(file, "trainset", hydragnn.MPI.COMM_SELF, preload=preload)
    for found, expected in zip_longest(dataset, graphs["trainset"]):
        assert same(found, expected)
    assert dataset[0].dataset_name.tolist() == [[1]]
