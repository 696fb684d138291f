"""prepare_store: what it builds, when it reuses, what it refuses."""

import errno
import os
import shutil
import subprocess

import numpy as np
import pytest
from prepare_cases import MANY, XYZ, files, generated, prepare

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, store_summary, write_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.reading.inspection import left_out
from hydragnn_flow.data.sources import emt_alloys
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.errors import CampaignStopped, InputError, StoreError

pytestmark = pytest.mark.usefixtures("many_tasks")


def test_builds_the_store_of_its_source(tmp_path):
    store = prepare(tmp_path / "s")
    sizes = {name: len(store[name]) for name in store.splits}
    assert sizes == {"trainset": 7, "valset": 2, "testset": 1}
    source = open_source(generated(), seed=0)
    structures = [record for chunk in source.chunks() for record in source.read(chunk)]
    ids = np.concatenate([store[name].graph_id for name in store.splits])
    assert sorted(ids) == list(range(10))
    for name in store.splits:
        for data in store[name]:
            structure = structures[int(data.graph_id)]
            assert data.x[:, 0].tolist() == structure.atoms.numbers.tolist()
            structure.atoms.wrap(eps=1e-6)
            assert data.pos.numpy() == pytest.approx(structure.atoms.positions, abs=1e-5)
            assert data.energy.numpy() == pytest.approx(structure.targets["energy"], rel=1e-6)
            assert data.forces.numpy() == pytest.approx(structure.targets["forces"], rel=1e-5)
    assert store.manifest.cutoff == 4.0
    assert store.manifest.max_neighbours == 12
    assert store.manifest.units["pos"] == "Å"


def test_progress_and_neighbours_left_out_are_counted_in_all_tasks(tmp_path):
    config = generated(structures=MANY)
    calls: list[tuple[str, int, int]] = []
    found = prepare(
        tmp_path / "s", config, max_neighbours=12, progress=lambda *call: calls.append(call)
    ).manifest.truncation
    read = [done for what, done, _ in calls if what == "structures"]
    assert (read[0], read[-1]) == (0, MANY)
    assert read == sorted(read)
    assert len(read) > 2
    assert ("shards", 1, 1) in calls
    every = prepare(tmp_path / "t", config, max_neighbours=None).manifest
    splits = every.splits.values()
    assert found.of_atoms == sum(size.atoms for size in splits)
    assert found.of_edges == sum(size.edges for size in splits)
    kept = GraphStore.open(tmp_path / "s", mode="random").manifest.splits.values()
    assert found.edges == found.of_edges - sum(size.edges for size in kept) > 0
    assert found.most >= max(len(every.statistics.degree_histogram) - 1, 13)
    assert 2.0 < found.nearest < 4.0
    assert every.truncation.atoms == 0


def test_cut_lists_are_refused_when_the_first_task_finds_them(tmp_path):
    config, read = generated(structures=MANY), []
    with pytest.raises(InputError, match=r"max_neighbours = 12 leaves out .* \(so far\).*: allow"):
        prepare(
            tmp_path / "s",
            config,
            whole_lists=True,
            progress=lambda what, done, total: read.append(done),
        )
    assert max(read) == 0
    assert list(tmp_path.iterdir()) == []
    whole = prepare(tmp_path / "s", config, max_neighbours=60, whole_lists=True)
    assert whole.manifest.truncation.atoms == 0


def test_second_time_reuses_unless_settings_differ(tmp_path, monkeypatch):
    built = prepare(tmp_path / "s")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    other_split = DataConfig.model_validate(
        generated().model_dump() | {"split": {"val": 0.3, "test": 0.1}}
    )
    for config, settings, named in (
        (generated(), {"seed": 1}, "seed"),
        (generated(), {"cutoff": 4.5}, "cutoff"),
        (generated(), {"max_neighbours": None}, "max_neighbours"),
        (generated(structures=11), {}, "source"),
        (other_split, {}, "split"),
    ):
        with pytest.raises(InputError, match=rf"other data or settings \({named} differ"):
            prepare(tmp_path / "s", config, **settings)
    monkeypatch.setattr(preparing, "open_source", None)
    again = prepare(tmp_path / "s")
    assert again.manifest == built.manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before


def test_files_count_by_their_content(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    prepare(tmp_path / "s", files(first))
    assert str(tmp_path) not in (tmp_path / "s" / "manifest.json").read_text()
    shutil.copytree(first, second)
    moved = files(second)
    prepare(tmp_path / "s", moved)
    with (second / "train.xyz").open("a") as file:
        file.write(XYZ.format(energy=1, distance=1))
    with pytest.raises(InputError, match=r"\(inputs differ"):
        prepare(tmp_path / "s", moved)


def test_what_cannot_be_prepared(tmp_path):
    with pytest.raises(InputError, match="train"):
        prepare(tmp_path / "s", files(tmp_path, n_train=1))
    config, path = files(tmp_path), tmp_path / "train.xyz"
    path.write_text(path.read_text() + XYZ.format(energy=1, distance="nan"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"train\.xyz: structure 10 .*not finite"):
        prepare(tmp_path / "s", config)
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match="cannot be created"):
        prepare(path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "precious").touch()
    with pytest.raises(InputError, match=r"manifest\.json is missing"):
        prepare(tmp_path / "t")
    assert (tmp_path / "t" / "precious").exists()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StoreError, match=r"cannot lock files \(No locks available\)"):
        prepare(tmp_path / "s")


def test_a_file_that_is_the_test_set_may_be_among_those_to_train_on(tmp_path, monkeypatch):
    """All its structures are left out, so that it has nothing to put into a shard."""
    files(tmp_path, n_train=20, n_test=20)
    (tmp_path / "test.xyz").rename(tmp_path / "a_test.xyz")
    (tmp_path / "train.xyz").rename(tmp_path / "b_train.xyz")
    source = {"format": "ase", "train": "*.xyz", "test": "a_test.xyz"}
    source["targets"] = {"energy": "eV", "forces": "eV/Å"}
    config = DataConfig.model_validate({"path": tmp_path, "source": source, "split": {"val": 0.2}})
    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr(preparing, "_SHARD_BYTES", 1)
    store = prepare(tmp_path / "s", config)
    sizes = {name: len(store[name]) for name in store.splits}
    assert sizes == {"trainset": 16, "valset": 4, "testset": 20}


def test_duplicates_stay_together_and_out_of_training(tmp_path):
    config = files(tmp_path, n_train=30)
    train = tmp_path / "train.xyz"
    copies = [XYZ.format(energy=-i, distance=0.7 + 0.01 * i) for i in range(3, 20)]
    tested = [XYZ.format(energy=-i, distance=1.7 + 0.01 * i) for i in range(3)]
    train.write_text(train.read_text() + "".join(copies + tested))
    store = prepare(tmp_path / "s", config)
    ids = {name: set(store[name].graph_id.tolist()) for name in store.splits}
    assert ids["testset"] == {0, 1, 2}
    assert ids["trainset"] | ids["valset"] == set(range(47))
    for copy, original in zip(range(30, 47), range(3, 20), strict=True):
        assert any({copy, original} <= ids[name] for name in ("trainset", "valset"))
    division = store.manifest.provenance["division"]
    assert division["left_out"] == {"train_duplicate_of_test": 3}
    assert division["graphs"]["testset"] == 3
    said = "structures to train on left out, as they are also in the test set: 3"
    assert left_out(store) == store_summary(store)["left_out"] == [said]
    assert store_summary(store)["duplicates"] == division["duplicates"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_full_disk(tmp_path, monkeypatch):
    """One sentence; with room made, the same call goes on."""
    # Where a shard of few graphs does not fit, ADIOS2 keeps its files open for good.
    monkeypatch.setattr(emt_alloys, "_PER_CHUNK", 64)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(small)])
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        with pytest.raises((StoreError, CampaignStopped), match=r"space|No space|small"):
            prepare(small / "s", generated(structures=200))
        assert not (small / "s").exists()
        with pytest.raises(StoreError, match="cannot be written"):
            write_store(small / "t", {"trainset": list(prepare(tmp_path / "u")["trainset"]) * 50})
        assert not (small / "t").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        assert len(prepare(small / "s", generated(structures=200))["trainset"]) == 140
    finally:
        subprocess.run(["umount", str(small)], check=True)
