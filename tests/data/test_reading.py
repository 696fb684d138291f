"""Graphs come back as they were written in every mode and dtypes; batches equal PyG's own."""

import itertools
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.data import writer as writing
from hydragnn_flow.data.reading import split as stream
from hydragnn_flow.data.reading.index import SplitIndex
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.errors import StoreError

MODES = ("memory", "random", "stream")
DTYPES = ("hydragnn", "compact")
POOL = 40
SMALL_BLOCKS = 8_000  # bytes: some tens of graphs make several blocks


@pytest.fixture(scope="module")
def pool(graph):
    graphs = [graph(seed) for seed in range(POOL - 2)]
    graphs += [graph(100, n_atoms=1), graph(101, n_atoms=2)]
    # Keys whose name tells PyG to number them through, or to join them along another dimension.
    for i, data in enumerate(graphs):
        data.corner_index = torch.arange(data.num_nodes)
        data.face = torch.zeros((3, i % 3), dtype=torch.int64)
        data.spin = torch.full((data.num_nodes, 2, 2), float(i), dtype=torch.float64)
    return graphs


@pytest.fixture(scope="module", params=DTYPES)
def stored(request, pool, tmp_path_factory):
    path = tmp_path_factory.mktemp("pool") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BLOCK_BYTES", SMALL_BLOCKS)
        write_store(path, {"trainset": pool, "valset": pool[:3]}, dtypes=request.param)
    return path


@pytest.fixture(scope="module", params=MODES)
def split(request, stored):
    store = GraphStore.open(stored, request.param)
    assert len(store["trainset"].block_bounds) > 5
    return store["trainset"]


def assert_equal(ours, theirs):
    assert list(ours.to_dict()) == list(theirs.to_dict())
    for key, value in theirs.to_dict().items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), key
    assert ours.num_graphs == theirs.num_graphs
    assert ours.num_nodes == theirs.num_nodes
    for book in ("_slice_dict", "_inc_dict"):
        mine, reference = getattr(ours, book), getattr(theirs, book)
        assert mine.keys() == reference.keys()
        for key in reference:
            assert torch.equal(mine[key], reference[key]), (book, key)


@example(seeds=[0, 1], n_val=0, n_atoms=1, dtypes="hydragnn", block_bytes=1 << 22)  # no edges
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    n_val=st.integers(0, 2),
    n_atoms=st.sampled_from([None, 1]),
    dtypes=st.sampled_from(DTYPES),
    block_bytes=st.sampled_from([1, 3000, 1 << 22]),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip(graph, same, seeds, n_val, n_atoms, dtypes, block_bytes):
    splits = {
        "trainset": [graph(seed, n_atoms) for seed in seeds],
        "valset": [graph(seed + 1) for seed in seeds[:n_val]],
        "testset": [],
    }
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BLOCK_BYTES", block_bytes)
        path = Path(folder) / "s"
        write_store(path, {k: iter(v) for k, v in splits.items()}, dtypes=dtypes)
        for mode in MODES:
            with GraphStore.open(path, mode) as store:
                assert store.splits == ("trainset", "valset", "testset")
                for name, graphs in splits.items():
                    split = store[name]
                    assert len(split) == len(graphs)
                    assert split.n_atoms.tolist() == [data.num_nodes for data in graphs]
                    assert split.n_edges.tolist() == [data.num_edges for data in graphs]
                    assert split.graph_id.tolist() == [int(data.graph_id) for data in graphs]
                    assert all(same(a, b) for a, b in zip(split, graphs, strict=True))
                    if graphs:
                        batch = split.batch(range(len(graphs)))
                        assert_equal(batch, Batch.from_data_list(graphs))
                    energies = [[float(data.energy)] for data in graphs]
                    assert split.target("energy").dtype == np.float64
                    assert split.target("energy").tolist() == energies
                    forces = np.concatenate([np.empty((0, 3)), *(data.forces for data in graphs)])
                    assert np.array_equal(split.target("forces"), forces)


@given(parts=st.lists(st.lists(st.integers(0, POOL - 1), min_size=1, max_size=9), max_size=8))
@settings(max_examples=10)
def test_batches_equal_pyg_in_any_order_and_come_apart_again(split, pool, same, parts):
    batches = split.batches(np.array(part) for part in parts)
    for batch, part in zip(batches, parts, strict=True):
        graphs = [pool[i] for i in part]
        assert_equal(batch, Batch.from_data_list(graphs))
        assert_equal(split.batch(part), batch)
        assert all(same(a, b) for a, b in zip(batch.to_data_list(), graphs, strict=True))
        assert same(batch[len(part) - 1], graphs[-1])


def test_selections_out_of_range(split):
    """ADIOS2 would return zeros."""
    assert split[-1].num_nodes == split[POOL - 1].num_nodes
    none = rf"trainset has {POOL} graphs, so there is no graph"
    for wrong in ([POOL], [1, -POOL - 1]):
        with pytest.raises(StoreError, match=none):
            split.batch(wrong)
    with pytest.raises(StoreError, match="trainset: a batch needs at least one graph"):
        split.batch([])
    with pytest.raises(IndexError, match=none):
        split[POOL]
    with pytest.raises(StoreError, match=none):
        next(split.batches([np.array([0, POOL])]))
    with pytest.raises(TypeError):
        split.batch(np.ones(POOL, dtype=bool))


def test_batches_are_copies_and_may_be_left_early(split, pool):
    batch = split.batch([0, 1])
    batch.pos += 1.0
    batch.edge_index += 1
    split[0].pos.zero_()
    for indices in ([0, 1], np.array([3, -1]), torch.tensor([3, -1])):
        assert_equal(split.batch(indices), Batch.from_data_list([pool[i] for i in indices]))
    batches = split.batches(np.arange(POOL).reshape(-1, 4))
    assert_equal(next(batches), Batch.from_data_list(pool[:4]))
    batches.close()
    assert_equal(split.batch([0]), Batch.from_data_list(pool[:1]))


def test_threads_read_side_by_side(split, pool):
    """Through one ADIOS2 engine unguarded, some get each other's numbers."""

    def read(seed):
        for chosen in np.random.default_rng(seed).integers(0, POOL, (40, 5)):
            expected = torch.cat([pool[i].pos for i in chosen])
            assert torch.equal(split.batch(chosen).pos, expected)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))


def test_keys_left_out(stored, pool):
    with GraphStore.open(stored, without=("y", "y_loc", "spin")) as store:
        assert set(store["trainset"][0].keys()) == set(pool[0].keys()) - {"y", "y_loc", "spin"}


def test_stream_holds_no_more_than_a_window(stored, monkeypatch):
    """A pass in the order of the blocks must not collect them all."""
    split = GraphStore.open(stored, "stream")["trainset"]
    load, loaded, most = stream.StreamReader._load, weakref.WeakSet(), []

    class Block(dict):
        __hash__ = object.__hash__

    def counting(self, number):
        block = Block(load(self, number))
        loaded.add(block)
        most.append(len(loaded))
        return block

    monkeypatch.setattr(stream.StreamReader, "_load", counting)
    monkeypatch.setattr(stream, "_AHEAD", 1)
    bounds = split.block_bounds.tolist()
    for _ in split.batches(np.arange(a, b) for a, b in itertools.pairwise(bounds)):
        pass
    assert len(most) == len(bounds) - 1 >= 5
    assert max(most) <= 3


def test_compact_is_smaller_and_widens_where_it_must(graph, same, tmp_path):
    """A shard ends where a number no longer fits its type; the next one is wider."""
    graphs = [graph(seed) for seed in range(30)]
    for number, data in enumerate(graphs):
        data.label = torch.full((data.num_nodes, 1), 1000 * number**3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "BLOCK_BYTES", 3000)
        store = write_store(tmp_path / "c", {"trainset": graphs}, dtypes="compact")
    assert len(store.manifest.shards) == 2
    expected = Batch.from_data_list([graphs[i] for i in (29, 0, 3)])
    for mode in MODES:
        with GraphStore.open(tmp_path / "c", mode) as store:
            assert all(same(a, b) for a, b in zip(store["trainset"], graphs, strict=True))
            assert_equal(store["trainset"].batch([29, 0, 3]), expected)
    wide = write_store(tmp_path / "w", {"trainset": graphs})
    assert len(wide.manifest.shards) == 1


def test_more_shards_than_files_may_be_open(graph, same, tmp_path, monkeypatch):
    monkeypatch.setattr("hydragnn_flow.data.store.shard_writer._MOST_BLOCKS", 1)
    monkeypatch.setattr("hydragnn_flow.data.reading.shard_file._most_open", lambda: 3)
    monkeypatch.setattr(writing, "BLOCK_BYTES", 1)
    graphs = [graph(seed) for seed in range(12)]
    store = write_store(tmp_path / "s", {"trainset": graphs})
    shards = [shard.path for shard in store.manifest.shards]
    assert shards[::11] == ["shard-00000.bp", "shard-00011.bp"]

    def descriptors():
        files = [f for f in Path("/proc/self/fd").iterdir() if f.exists()]
        return sum(str(tmp_path) in str(f.readlink()) for f in files)

    for mode in MODES:
        with GraphStore.open(tmp_path / "s", mode) as store:
            assert all(same(a, b) for a, b in zip(store["trainset"], graphs, strict=True))
            (batch,) = store["trainset"].batches([np.arange(12)[::-1]])
            assert_equal(batch, Batch.from_data_list(graphs[::-1]))
            assert descriptors() <= 3
    assert descriptors() == 0


def test_one_graph_is_read_without_the_others(stored, monkeypatch):
    """The blocks of the others are neither verified nor read."""
    verified = []
    verify = SplitIndex.verify
    monkeypatch.setattr(
        SplitIndex, "verify", lambda self, block: (verified.append(block), verify(self, block))
    )
    for mode in ("random", "stream"):
        split = GraphStore.open(stored, mode)["trainset"]
        assert len(split.block_bounds) > 5
        verified.clear()
        split[POOL - 1]
        assert verified == [len(split.block_bounds) - 2]


def test_bounds_are_checked_before_adios2_reads(stored):
    with closing(Bp5File(stored / "shard-00000.bp")) as file:
        pos, edges = file.variable("trainset/pos"), file.variable("trainset/edge_index")
        out, rows = np.empty((2, 3), dtype=np.float32), pos.shape[0]
        pos.read_into(out, rows - 2)
        for variable, into, place in (
            (pos, out, (rows - 1,)),
            (pos, out, (-1,)),
            (edges, np.empty(3, edges.dtype), (0, 2)),
            (edges, np.empty(3, edges.dtype), (0, -1)),
            (pos, np.empty((2, 2), dtype=np.float32), (0,)),
            (pos, np.empty((2, 3), dtype=np.float64), (0,)),
            (pos, np.empty((3, 2), dtype=np.float32).T, (0,)),
        ):
            with pytest.raises(StoreError, match="does not fit an array of"):
                variable.read_into(into, *place)
