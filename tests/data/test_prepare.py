"""prepare_store: what it builds, when it reuses, what it refuses, and being killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.data.sources import read_source
from hydragnn_flow.data.splits import split_indices
from hydragnn_flow.errors import InputError

XYZ = (
    "2\nenergy={energy} Properties=species:S:1:pos:R:3:forces:R:3 "
    'pbc="F F F"\nH 0 0 0 1 0 0\nH 0 0 {distance} -1 0 0\n'
)


def generated(**changes: Any) -> DataConfig:
    source = {"format": "emt_alloys", "structures": 10, "atoms": [8, 16]}
    split = {"val": 0.2, "test": 0.1}
    return DataConfig.model_validate({"source": source | changes, "split": split})


def prepare(path: Path, config: DataConfig | None = None, **changes: Any) -> GraphStore:
    settings: dict[str, Any] = {"cutoff": 4.0, "max_neighbours": 12, "seed": 0} | changes
    return prepare_store(config or generated(), path=path, **settings)


def files(folder: Path, n_train: int = 10, n_test: int = 3) -> DataConfig:
    for name, n in (("train.xyz", n_train), ("test.xyz", n_test)):
        frames = [XYZ.format(energy=-i, distance=0.7 + 0.01 * i) for i in range(n)]
        (folder / name).write_text("".join(frames))
    source = {"format": "extxyz", "train": "train.xyz", "test": "test.xyz"}
    return DataConfig.model_validate({"source": source, "path": folder, "split": {"val": 0.2}})


def test_builds_the_store_of_its_source(tmp_path):
    store = prepare(tmp_path / "s")
    assert {name: len(store[name]) for name in store.splits} == {
        "trainset": 7,
        "valset": 2,
        "testset": 1,
    }
    structures = read_source(generated(), seed=0).train
    ids = np.concatenate([store[name].graph_id for name in store.splits])
    assert sorted(ids) == list(range(10))
    for name in store.splits:
        for data in store[name]:
            structure = structures[int(data.graph_id)]
            assert data.x[:, 0].tolist() == structure.atoms.numbers.tolist()
            assert data.pos.numpy() == pytest.approx(structure.atoms.positions, abs=1e-5)
            assert data.energy.numpy() == pytest.approx(structure.targets["energy"], rel=1e-6)
            assert data.forces.numpy() == pytest.approx(structure.targets["forces"], rel=1e-5)
    assert store.manifest.cutoff == 4.0
    assert store.manifest.max_neighbours == 12
    assert store.manifest.units["pos"] == "Å"


def test_a_test_file_is_the_test_split(tmp_path):
    store = prepare(tmp_path / "s", files(tmp_path))
    assert store["testset"].graph_id.tolist() == [0, 1, 2]
    assert store["testset"].target("energy")[:, 0].tolist() == [0.0, -1.0, -2.0]
    both = [*store["trainset"].graph_id, *store["valset"].graph_id]
    assert sorted(both) == list(range(10))
    assert len(store["valset"]) == 2


def test_progress_counts_up(tmp_path):
    calls: list[tuple[str, int, int]] = []
    prepare(tmp_path / "s", progress=lambda *call: calls.append(call))
    for what in ("structures", "neighbour lists"):
        assert [done for name, done, _ in calls if name == what] == list(range(1, 11))
    assert {total for _, _, total in calls} == {10}


def test_second_time_reuses(tmp_path, monkeypatch):
    built = prepare(tmp_path / "s")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    monkeypatch.setattr("hydragnn_flow.data.prepare.read_source", None)
    again = prepare(tmp_path / "s")
    assert again.manifest == built.manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before


@pytest.mark.parametrize(
    ("config", "settings", "named"),
    [
        (generated(), {"seed": 1}, "seed"),
        (generated(), {"cutoff": 4.5}, "cutoff"),
        (generated(), {"max_neighbours": None}, "max_neighbours"),
        (generated(structures=11), {}, "source"),
        (generated().model_copy(update={"split": {"val": 0.3, "test": 0.1}}), {}, "split"),
    ],
)
def test_refuses_the_store_of_other_settings(tmp_path, config, settings, named):
    prepare(tmp_path / "s")
    config = DataConfig.model_validate(config.model_dump(warnings=False))
    with pytest.raises(InputError, match=rf"other data or settings \({named} differ"):
        prepare(tmp_path / "s", config, **settings)


def test_files_count_by_their_content(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    prepare(tmp_path / "s", files(first))
    shutil.copytree(first, second)
    moved = files(second)
    prepare(tmp_path / "s", moved)
    with (second / "train.xyz").open("a") as file:
        file.write(XYZ.format(energy=1, distance=1))
    with pytest.raises(InputError, match=r"\(inputs differ"):
        prepare(tmp_path / "s", moved)


def test_no_path_of_this_machine_in_the_store(tmp_path):
    (tmp_path / "data").mkdir()
    prepare(tmp_path / "s", files(tmp_path / "data"))
    assert str(tmp_path) not in (tmp_path / "s" / "manifest.json").read_text()


def test_refuses_what_is_no_store(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "precious").touch()
    with pytest.raises(InputError, match=r"manifest\.json is missing"):
        prepare(tmp_path / "s")
    assert (tmp_path / "s" / "precious").exists()


def test_reuse_verifies_the_payload(tmp_path):
    prepare(tmp_path / "s")
    payload = tmp_path / "s" / "shard-00000.bp" / "data.0"
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    payload.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"data\.0 has changed"):
        prepare(tmp_path / "s")


def test_bad_structure_is_named_and_nothing_is_left(tmp_path):
    config = files(tmp_path)
    path = tmp_path / "train.xyz"
    path.write_text(path.read_text() + XYZ.format(energy=1, distance="nan"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"train\.xyz: structure 10 .*not finite"):
        prepare(tmp_path / "s", config)
    assert sorted(tmp_path.iterdir()) == before


def test_too_few_structures(tmp_path):
    with pytest.raises(InputError, match="nothing to train on"):
        prepare(tmp_path / "s", files(tmp_path, n_train=1))


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be created"):
        prepare(tmp_path / "file" / "s")


def _prepare_and_die(path: Path, where: str) -> None:
    """In a process of its own: prepare, and be killed as the named step begins."""
    import hydragnn_flow.data.store.staging
    import hydragnn_flow.data.store.writer

    module, name = where.split(".")

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(getattr(hydragnn_flow.data.store, module), name, die)
    prepare(path)


@pytest.mark.parametrize(
    "where", ["writer.write_shard", "writer.describe_files", "writer.commit", "staging.fsync_tree"]
)
def test_killed_while_writing(tmp_path, where):
    path = tmp_path / "s"
    process = multiprocessing.get_context("fork").Process(
        target=_prepare_and_die, args=(path, where)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    store = prepare(path)
    assert list(tmp_path.iterdir()) == [path]
    assert sum(len(store[name]) for name in store.splits) == 10


def test_leftovers_of_others(tmp_path):
    """What a living process, another machine or another store has begun is left alone."""
    host = socket.gethostname()
    dead = multiprocessing.get_context("fork").Process(target=int)
    dead.start()
    dead.join()
    kept = [
        f".s.tmp-{host}-{os.getpid()}-0a0a0a0a",
        f".s.tmp-another-host-{dead.pid}-0a0a0a0a",
        f".other.tmp-{host}-{dead.pid}-0a0a0a0a",
        "precious",
    ]
    removed = [f".s.tmp-{host}-{dead.pid}-0a0a0a0a", ".s.tmp-another-host-1-0b0b0b0b"]
    for name in kept + removed:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    os.utime(tmp_path / removed[1], (0, 0))
    prepare(tmp_path / "s")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "s"])


@given(
    n=st.integers(3, 500),
    val=st.floats(0.01, 0.4),
    test=st.none() | st.floats(0.01, 0.4),
    seed=st.integers(0, 2**32),
)
def test_splits_divide(n, val, test, seed):
    splits = split_indices(n, val, test, seed)
    assert sorted(i for part in splits.values() for i in part) == list(range(n))
    assert splits["trainset"]
    assert abs(len(splits["valset"]) - val * n) <= 1
    assert abs(len(splits["testset"]) - (test or 0) * n) <= 1
    assert splits == split_indices(n, val, test, seed)


def test_splits_follow_the_seed():
    assert split_indices(100, 0.1, 0.1, 0) != split_indices(100, 0.1, 0.1, 1)
    first, second = (set(split_indices(1000, 0.5, None, seed)["valset"]) for seed in (0, 1))
    assert 400 < len(first ^ second) < 600
