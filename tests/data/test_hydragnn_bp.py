"""HydraGNN's own files: they carry no checksums, and no damage may hang, crash or mislead."""

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import adios2.bindings as adios
import numpy as np
import psutil
import pytest

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.hydragnn_bp import trial_read
from hydragnn_flow.data.hydragnn_bp.manifests import bp_manifest
from hydragnn_flow.errors import StoreError

FILES = ("data.0", "md.0", "md.idx", "mmd.0")
KEYS = ["edge_index", "x", "pos", "edge_attr", "energy"]
GRAPHS = {"trainset": 12, "valset": 3, "testset": 4}


def make_split(graphs, seed, *, alike):
    """The values of some graphs, key by key; ``alike`` in atoms and edges."""
    rng = np.random.default_rng(seed)
    atoms = np.full(graphs, 6) if alike else rng.integers(4, 9, graphs)
    edges = np.full(graphs, 40) if alike else rng.integers(30, 60, graphs)
    return {
        "edge_index": [rng.integers(0, n, (2, e)) for n, e in zip(atoms, edges, strict=True)],
        "x": [rng.choice([29.0, 79.0], (n, 1)).astype(np.float32) for n in atoms],
        "pos": [rng.normal(size=(n, 3)).astype(np.float32) for n in atoms],
        # Most of the bytes, and no zeros.
        "edge_attr": [rng.uniform(2, 5, (e, 32)).astype(np.float32) for e in edges],
        "energy": [rng.normal(size=1).astype(np.float32) for _ in atoms],
    }


class Writer:
    """Writes as HydraGNN's AdiosWriter does, one rank of ``n_ranks``; the serial ADIOS2 is one."""

    def __init__(self, path, *, rank=0, n_ranks=1, stats=1, empty=False):
        self.context = adios.ADIOS()  # which must outlive what is made from it
        self.io = self.context.DeclareIO("write")
        self.io.SetEngine("BP5")
        self.io.SetParameter("StatsLevel", str(stats))
        self.engine = self.io.Open(str(path), adios.Mode.Write)
        self.rank, self.n_ranks, self.empty = rank, n_ranks, empty

    def write_split(self, split, values, *, flush):
        graphs = len(values["x"])
        bounds = np.linspace(0, graphs, self.n_ranks + 1).astype(int)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        self.io.DefineAttribute(f"{split}/ndata", np.array(graphs))
        self.io.DefineAttribute(f"{split}/keys", KEYS)
        for key in sorted(values):
            shapes = np.array([value.shape for value in values[key]])
            varying = np.flatnonzero((shapes != shapes[0]).any(axis=0))
            dim = int(varying[0]) if len(varying) else 0
            counts = shapes[:, dim]
            starts = np.cumsum(counts) - counts
            whole, block = (np.concatenate(some, dim) for some in (values[key], values[key][mine]))
            self.put(f"{split}/{key}", block, whole.shape, dim, int(starts[mine][0]))
            for name, numbers in (("variable_count", counts), ("variable_offset", starts)):
                self.put(f"{split}/{key}/{name}", numbers[mine], (graphs,), 0, int(mine.start))
            self.io.DefineAttribute(f"{split}/{key}/variable_dim", np.array(dim))
            if flush:
                self.engine.PerformDataWrite()

    def put(self, name, block, shape, dim, start):
        offset = [0] * block.ndim
        offset[dim] = start
        block = np.ascontiguousarray(block)
        place = (list(shape), offset, list(block.shape))
        variable = self.io.DefineVariable(name, block, *place, not self.empty)
        self.engine.Put(variable, block, adios.Mode.Sync)
        if self.empty:  # as of a further rank that has none of this key, such as no edges
            nothing = [0 if i == dim else extent for i, extent in enumerate(block.shape)]
            variable.SetSelection((offset, nothing))
            self.engine.Put(variable, np.empty(nothing, block.dtype), adios.Mode.Sync)

    def close(self, **attributes):
        for name, value in attributes.items():
            self.io.DefineAttribute(name, value)
        self.engine.Close()


def write_file(path, *, flush=False, **options):
    """A file of three splits; the graphs of the last are all of one size."""
    writer = Writer(path, **options)
    for seed, (split, graphs) in enumerate(GRAPHS.items()):
        values = make_split(graphs, seed, alike=split == "testset")
        writer.write_split(split, values, flush=flush)
    writer.close(total_ndata=np.array(sum(GRAPHS.values())), pna_deg=np.arange(9))
    (path / "profiling.json").unlink()
    return path


def write_file_of_two_writers(path):
    parts = [write_file(path.with_suffix(f".{i}"), rank=i, n_ranks=2) for i in range(2)]
    path.mkdir()
    formats: dict[bytes, bytes] = {}
    records, lengths = [], []
    for number, part in enumerate(parts):
        shutil.copy(part / "data.0", path / f"data.{number}")
        content, start = (part / "mmd.0").read_bytes(), 0
        while start < len(content):
            name, text = struct.unpack_from("<QQ", content, start)
            end = start + 16 + name + text
            formats[content[start + 16 : start + 16 + name]] = content[start:end]
            start = end
        content = (part / "md.0").read_bytes()
        _, *sizes = struct.unpack_from("<3Q", content)
        records.append((content[24 : 24 + sizes[0]], content[24 + sizes[0] :]))
        lengths.append(sizes)
    # The attributes of all ranks are alike, and written once.
    body = records[0][0] + records[1][0] + records[0][1]
    head = struct.pack("<4Q", lengths[0][0], lengths[1][0], lengths[0][1], 0)
    (path / "md.0").write_bytes(struct.pack("<Q", len(head + body)) + head + body)
    (path / "mmd.0").write_bytes(b"".join(formats.values()))
    writers, step = (2, 2, 2, 0, 1), (0, 8 + len(head + body), 0, 0, 0)
    index = (parts[0] / "md.idx").read_bytes()[:64]
    for kind, words in ((b"w", writers), (b"s", step)):
        index += kind + struct.pack(f"<Q{len(words)}Q", 8 * len(words), *words)
    (path / "md.idx").write_bytes(index)
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "one piece": write_file,
    "many pieces": lambda path: write_file(path, flush=True),
    "two writers": write_file_of_two_writers,
    "without Min and Max": lambda path: write_file(path, stats=0),
    "an empty block": lambda path: write_file(path, empty=True),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A file not to be changed."""
    return write_file(tmp_path_factory.mktemp("bp") / "good.bp")


@pytest.fixture
def copy(good, tmp_path):
    """A copy of it, to damage."""
    return Path(shutil.copytree(good, tmp_path / "copy.bp"))


def refused(path, match):
    """The file is refused in one sentence that names it."""
    with pytest.raises(StoreError, match=match) as error:
        bp_manifest(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", MAKERS)
def test_good_file(tmp_path, kind):
    """It is read without a trace: ADIOS2 would write timings where the temporary files are."""
    path = MAKERS[kind](tmp_path / f"traceless-{os.getpid()}.bp")
    with GraphStore.open(path, "random") as store:
        assert not list(Path("/tmp").glob(f"{path.name}_*"))
        assert store.splits == ("trainset", "valset", "testset")
        assert list(store.manifest.keys) == KEYS
        for seed, name in enumerate(store.splits):
            # Where no graph differs HydraGNN joins along the first dimension.
            values = make_split(GRAPHS[name], seed, alike=name == "testset")
            for key in KEYS:
                for graph, value in zip(store[name], values[key], strict=True):
                    assert graph[key].numpy().dtype == value.dtype
                    assert np.array_equal(graph[key].numpy(), value), (name, key)


def over_middle(content, new):
    start = max(0, (len(content) - len(new)) // 2)
    return (content[:start] + new + content[start + len(new) :])[: len(content)]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut at 50 %": lambda content: content[: len(content) // 2],
    "cut at 99.9 %": lambda content: content[: int(len(content) * 0.999)],
    "emptied": lambda content: b"",
    "16 bytes changed": lambda content: over_middle(content, random.Random(2).randbytes(16)),
    "4 kB of zeros": lambda content: over_middle(content, bytes(4096)),
    "another start": lambda content: random.Random(1).randbytes(64) + content[64:],
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(copy, damage, name):
    """ADIOS2 hangs or crashes in many of these cases, in a process of its own."""
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(DAMAGES[damage](content))
    try:
        found = bp_manifest(copy)
    except StoreError as error:
        assert str(copy) in str(error) and name in str(error) and "\n" not in str(error)
    else:  # ADIOS2 does not read all of its metadata
        assert name != "data.0" and damage not in ("cut at 50 %", "emptied")
        assert {split: size.graphs for split, size in found.splits.items()} == GRAPHS


def test_metadata_of_an_unknown_type(copy):
    """ADIOS2 complains, offers no variables, and crashes whoever asks for one."""
    content = (copy / "mmd.0").read_bytes()
    assert b"MetaArrayMM8" in content
    (copy / "mmd.0").write_bytes(content.replace(b"MetaArrayMM8", b"Meta?rrayMM8", 1))
    refused(copy, r"mmd\.0")


@pytest.mark.parametrize("name", ["data.0", "data.1", "md.0", "md.idx", "mmd.0"])
def test_damage_of_a_file_of_two_writers(tmp_path, name):
    path = write_file_of_two_writers(tmp_path / "two.bp")
    (path / name).write_bytes((path / name).read_bytes()[:-100])
    refused(path, "damaged")
    (path / name).unlink()
    refused(path, "damaged" if name == "data.1" else f"{name} is missing")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["md.0", "md.idx", "mmd.0"])
def test_small_changes_of_metadata(copy, name):
    """A changed byte, or eight, end in a sentence or in a manifest of the same graphs."""
    expected, content = bp_manifest(copy), (copy / name).read_bytes()
    draw = random.Random(name)
    for _ in range(25):
        start, length = draw.randrange(len(content)), draw.choice([1, 8])
        new = bytearray(content)
        new[start : start + length] = draw.randbytes(length)
        (copy / name).write_bytes(new[: len(content)])
        try:
            assert bp_manifest(copy).splits == expected.splits
        except StoreError as error:
            assert str(copy) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        (
            "edge_index",
            [np.full((2, 40), n) for n in (5, 6, 5)],
            "graph 1: edge_index names an atom",
        ),
        ("pos", [np.full((6, 3), n) for n in (0, 0, np.nan)], "NaN or infinity in trainset/pos"),
        ("pos", [np.zeros((n, 3)) for n in (5, 7, 6)], "graph 0: pos has another number of rows"),
    ],
)
def test_what_the_values_themselves_betray(tmp_path, key, values, said):
    """Numbers in the range they were written in, and impossible all the same."""
    writer = Writer(tmp_path / "file.bp", stats=0)
    writer.write_split("trainset", make_split(3, 0, alike=True) | {key: values}, flush=False)
    writer.close()
    refused(tmp_path / "file.bp", said)


def test_changed_values_are_seen_beside_an_empty_block(tmp_path):
    path = write_file(tmp_path / "file.bp", empty=True)
    content = (path / "data.0").read_bytes()
    values = np.concatenate(make_split(GRAPHS["valset"], 1, alike=False)["edge_attr"])
    largest = values.max().tobytes()
    assert content.count(largest) == 1
    (path / "data.0").write_bytes(content.replace(largest, np.float32(6).tobytes()))
    refused(path, r"data\.0 \(or md\.0\) holds valset/edge_attr from .* to 6\.0 instead of")


@pytest.mark.parametrize(
    ("name", "block", "shape", "said"),
    [
        ("trainset/x", np.arange(3), (1 << 50,), r"gives trainset/x the shape \[1125.*\], but 3"),
        # ADIOS2 calls int8 characters, and states their extremes as such.
        ("trainset/x", np.ones((3, 1), np.int8), (3, 1), "gives trainset/x the type char"),
        ("temperature", np.ones(3), (3,), "names no graphs of trainset"),
    ],
)
def test_variables_that_hold_no_graphs(tmp_path, name, block, shape, said):
    writer = Writer(tmp_path / "file.bp")
    writer.put(name, block, shape, 0, 0)
    writer.close()
    refused(tmp_path / "file.bp", rf"md\.0 {said}")


def test_systems_that_count_no_bytes_read_can_open_files(copy, monkeypatch):
    """psutil has no io_counters outside Linux and in some sandboxes, or finds their file empty."""
    monkeypatch.delattr(psutil.Process, "io_counters")
    trial_read._ask_child(copy, idle=600)


def test_what_is_no_file_of_hydragnn(tmp_path):
    refused(tmp_path / "nowhere.bp", r"md\.idx is missing or empty")
    (tmp_path / "text.bp").write_text("text")
    refused(tmp_path / "text.bp", r"md\.idx is missing or empty")
    writer = Writer(tmp_path / "steps.bp")
    block = np.ones(3)
    variable = writer.io.DefineVariable("trainset/x", block, [3], [0], [3], adios.ConstantDims)
    for _ in range(2):
        writer.engine.BeginStep()
        writer.engine.Put(variable, block, adios.Mode.Sync)
        writer.engine.EndStep()
    writer.close()
    refused(tmp_path / "steps.bp", r"md\.idx has 2 steps")


def test_child_that_waits_or_reads_nothing_is_noticed(copy):
    (copy / "data.0").write_bytes((copy / "data.0").read_bytes()[:100])
    with pytest.raises(StoreError, match=r"makes ADIOS2 read nothing for 0 s: md\.idx"):
        trial_read._ask_child(copy, idle=0.3)
    if not Path("/proc/self/io").exists():
        pytest.skip("needs Linux, which counts the reads of a process")
    with pytest.raises(StoreError, match=r"wait for bytes that are not there"):
        trial_read._ask_child(copy, idle=600)


def test_child_that_computes_for_ever_is_ended(copy, tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text("while True: pass")
    monkeypatch.setattr(trial_read, "_CHILD", tmp_path / "child.py")
    monkeypatch.setattr(trial_read, "_IDLE_CPU_SECONDS", 0.1)
    with pytest.raises(StoreError, match=r"makes ADIOS2 compute for 0 s without reading: md\.idx"):
        trial_read._ask_child(copy, idle=600)
