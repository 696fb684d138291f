"""prepare_store: what it builds, reuses and refuses; its tasks killed, lost and orphaned."""

from __future__ import annotations

import errno
import importlib
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.geometry import find_mic
from pydantic import ValidationError

from hydragnn_flow.config import DataConfig
from hydragnn_flow.data import GraphStore, check_store, prepare_store, store_summary, write_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.preparing import run_task
from hydragnn_flow.data.reading.inspection import left_out
from hydragnn_flow.data.sources import emt_alloys
from hydragnn_flow.data.sources.file_names import ranges
from hydragnn_flow.data.sources.opening import open_source
from hydragnn_flow.ensemble.predictions.inputs import StructureGraphs
from hydragnn_flow.errors import CampaignStopped, InputError, NoWorkers, StoreError

XYZ = (
    "2\nenergy={energy} Properties=species:S:1:pos:R:3:forces:R:3 "
    'pbc="F F F"\nH 0 0 0 1 0 0\nH 0 0 {distance} -1 0 0\n'
)
MANY = 40


def generated(**changes: Any) -> DataConfig:
    source = {"format": "emt_alloys", "structures": 10, "atoms": [8, 16]}
    split = {"val": 0.2, "test": 0.1}
    return DataConfig.model_validate({"source": source | changes, "split": split})


def prepare(path: Path, config: DataConfig | None = None, **changes: Any) -> GraphStore:
    settings: dict[str, Any] = {"cutoff": 4.0, "max_neighbours": 12, "seed": 0} | changes
    return prepare_store(config or generated(), path=path, **settings)


def files(folder: Path, n_train: int = 10, n_test: int = 3) -> DataConfig:
    for name, n in (("train.xyz", n_train), ("test.xyz", n_test)):
        shortest = 0.7 if name == "train.xyz" else 1.7
        frames = [XYZ.format(energy=-i, distance=shortest + 0.01 * i) for i in range(n)]
        (folder / name).write_text("".join(frames))
    targets = {"energy": "eV", "forces": "eV/Å"}
    source = {"format": "ase", "train": "train.xyz", "test": "test.xyz", "targets": targets}
    return DataConfig.model_validate({"source": source, "path": folder, "split": {"val": 0.2}})


pytestmark = pytest.mark.usefixtures("many_tasks")


def test_builds_the_store_of_its_source(tmp_path):
    store = prepare(tmp_path / "s")
    assert [len(store[name]) for name in store.splits] == [7, 2, 1]
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
    progress = Mock()
    found = prepare(tmp_path / "s", config, progress=progress).manifest.truncation
    calls = [call.args for call in progress.call_args_list]
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
    config, progress = generated(structures=MANY), Mock()
    with pytest.raises(InputError, match=r"max_neighbours = 12 leaves out .* \(so far\).*: allow"):
        prepare(tmp_path / "s", config, whole_lists=True, progress=progress)
    assert {call.args[1] for call in progress.call_args_list} == {0}
    assert list(tmp_path.iterdir()) == []
    whole = prepare(tmp_path / "s", config, max_neighbours=60, whole_lists=True)
    assert whole.manifest.truncation.atoms == 0


def test_second_time_reuses_unless_settings_differ(tmp_path, monkeypatch):
    built = prepare(tmp_path / "s")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    other_split = DataConfig(source=generated().source, split={"val": 0.3, "test": 0.1})
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
    os.utime(second / "test.xyz", ns=(0, 0))
    with pytest.raises(InputError, match=r"inputs differ; newer than it: \S*second/train\.xyz\)"):
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
    no_locks = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=no_locks))
    with pytest.raises(StoreError, match=r"cannot lock files \(No locks available\)"):
        prepare(tmp_path / "s")


def test_a_file_that_is_the_test_set_may_be_among_those_to_train_on(tmp_path, monkeypatch):
    """All its structures are left out, so that it has nothing to put into a shard."""
    config = files(tmp_path, n_train=20, n_test=20)
    every = config.source.model_copy(update={"train": "*.xyz"})
    config = config.model_copy(update={"source": every})
    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr(preparing, "_SHARD_BYTES", 1)
    store = prepare(tmp_path / "s", config)
    assert [len(store[name]) for name in store.splits] == [16, 4, 20]


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The store of all those structures, prepared in one go."""
    return prepare(tmp_path_factory.mktemp("whole") / "s", generated(structures=MANY))


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


class Workers:
    """They run so many tasks, after which something else happens, and remember all of them."""

    def __init__(self, after=-1, then=die, run=run_task):
        self.after, self.then, self.run = after, then, run
        self.requests: list[dict[str, Any]] = []

    def __call__(self, requests):
        for number, request in requests.items():
            if len(self.requests) == self.after:
                self.then()
            self.requests.append(dict(request))
            self.run(request)
            yield number


def refuse():
    raise NoWorkers("site slurm: gets no workers: QOSMaxSubmitJob")


def killed(what):
    """Do something in a process of its own, which is killed meanwhile."""
    process = multiprocessing.get_context("fork").Process(target=what)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("after", "where"),
    [
        (0, ""),
        (2, ""),
        (4, ""),
        (9, "store.shard_writer.fsync_tree"),
        (9, "store.shard_writer.describe_files"),
        (9, "preparing.tasks.fsync_tree"),
        (9, "preparing.prepare.divide"),
        (9, "preparing.prepare.commit_store"),
        (9, "writer.save_manifest"),
        (9, "writer.fsync_tree"),
    ],
)
def test_killed_at_any_moment(tmp_path, whole, after, where):
    """Nothing half-written is ever taken for a store, and the next time goes on from there."""
    path = tmp_path / "s"

    def prepare_and_die():
        if where:
            module, name = where.rsplit(".", 1)
            setattr(importlib.import_module(f"hydragnn_flow.data.{module}"), name, die)
        prepare(path, generated(structures=MANY), workers=Workers(after))

    killed(prepare_and_die)
    assert not path.exists()
    done = list(tmp_path.glob(".s.preparing/*/*/record.pickle"))
    in_the_first_task = where.startswith(("store.shard", "preparing.tasks"))
    assert done or after == 0 or in_the_first_task
    workers = Workers()
    store = prepare(path, generated(structures=MANY), workers=workers)
    ran = {request["directory"] for request in workers.requests}
    assert not {str(entry.parent) for entry in done} & ran
    assert list(tmp_path.iterdir()) == [path]
    assert {**store.manifest.provenance} == {**whole.manifest.provenance}
    for name in store.splits:
        assert store[name].graph_id.tolist() == whole[name].graph_id.tolist()
        assert np.array_equal(store[name].target("energy"), whole[name].target("energy"))


def side_by_side(requests):
    """Run tasks side by side, which end in any order."""

    def run(number):
        run_task(requests[number])
        return number

    with ThreadPoolExecutor(3) as pool:
        for future in as_completed(pool.submit(run, number) for number in requests):
            yield future.result()


def test_the_store_is_the_same_however_it_was_divided_among_tasks(
    tmp_path, whole, monkeypatch, same
):
    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr(preparing, "_SHARD_BYTES", 50_000)
    many = prepare(tmp_path / "many", generated(structures=MANY), workers=side_by_side)
    assert len(whole.manifest.shards) == 1
    assert len(many.manifest.shards) > 3
    for name in whole.splits:
        assert all(same(left, right) for left, right in zip(whole[name], many[name], strict=True))
    left, right = whole.manifest.statistics, many.manifest.statistics
    assert left.degree_histogram == right.degree_histogram
    assert left.element_energies == pytest.approx(right.element_energies)
    assert left.energy_per_atom_std == pytest.approx(right.energy_per_atom_std)
    assert left.targets["forces"].std == pytest.approx(right.targets["forces"].std)


@pytest.mark.parametrize("after", [0, 3])
def test_a_scheduler_that_refuses_costs_no_finished_task(tmp_path, whole, after):
    with pytest.raises(InputError, match="gets no workers"):
        prepare(tmp_path / "s", generated(structures=200), workers=Workers(after, refuse))
    assert len(list(tmp_path.glob(".s.preparing/*/unit-*/record.pickle"))) == after
    assert any(tmp_path.iterdir()) == bool(after)
    store = prepare(tmp_path / "s", generated(structures=MANY))
    assert store["trainset"].graph_id.tolist() == whole["trainset"].graph_id.tolist()


def test_an_orphan_of_other_settings_does_no_harm(tmp_path):
    """It ends its task after the next driver has begun, for the settings of the one before."""
    old = Workers()
    prepare(tmp_path / "s", generated(structures=MANY), cutoff=3.0, workers=old)
    shutil.rmtree(tmp_path / "s")

    def run(request):
        if len(late.requests) == 1:
            with pytest.raises(StoreError, match="was deleted"):
                run_task(old.requests[0])
            # Nor where its directory is there still, as for one that has just been begun.
            Path(old.requests[0]["directory"]).parent.mkdir()
            run_task(old.requests[0])
        run_task(request)

    late = Workers(run=run)
    store = prepare(tmp_path / "s", generated(structures=MANY), cutoff=5.0, workers=late)
    expected = prepare(tmp_path / "t", generated(structures=MANY), cutoff=5.0)
    for name in store.splits:
        assert store[name].n_edges.tolist() == expected[name].n_edges.tolist()
    assert {entry.name for entry in tmp_path.iterdir()} == {"s", "t"}


def test_leftovers_of_a_finished_preparation_are_removed(tmp_path):
    prepare(tmp_path / "s")
    (tmp_path / ".s.preparing" / "0a0a" / ".unit-00000.host-1").mkdir(parents=True)
    prepare(tmp_path / "s")
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]


def test_few_structures_need_no_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_FEW", 10)
    assert len(prepare(tmp_path / "s", workers=Workers(0, refuse))["trainset"]) == 7


def test_two_at_once(tmp_path):
    """The second one is told, and does no harm."""
    started, proceed = threading.Event(), threading.Event()

    def run(request):
        started.set()
        proceed.wait(60)
        run_task(request)

    first = ThreadPoolExecutor(1).submit(prepare, tmp_path / "s", workers=Workers(run=run))
    started.wait(60)
    with pytest.raises(StoreError, match="another process is preparing"):
        prepare(tmp_path / "s")
    proceed.set()
    assert len(first.result(60)["trainset"]) == 7


def test_a_killed_writer_leaves_nothing_for_good(tmp_path):
    """The next one of the same store begins anew; what others have begun is left alone."""
    graphs = list(prepare(tmp_path / "t")["trainset"])

    def of_a_dying_process():
        yield from graphs
        die()

    killed(lambda: write_store(tmp_path / "s", {"trainset": of_a_dying_process()}))
    assert (tmp_path / ".s.writing" / "store").is_dir()
    for name in (".other.writing", "precious"):
        (tmp_path / name).mkdir()
    assert len(write_store(tmp_path / "s", {"trainset": graphs})["trainset"]) == len(graphs)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [".other.writing", "precious", "s", "t"]


def alloys(n: int = 60) -> list[ase.Atoms]:
    """Cells of four atoms whose energy is a sum over them, but for 0.05 eV/atom."""
    made, rng = [], np.random.default_rng(0)
    for _ in range(n):
        atoms = bulk("Cu", cubic=True, a=3.9)
        atoms.symbols = rng.choice(["Cu", "Au"], size=4)
        atoms.set_cell(atoms.cell.array * rng.uniform(0.97, 1.03), scale_atoms=True)
        atoms.rattle(0.05, rng=rng)
        energy = atoms.numbers.sum() / 10 + rng.normal(scale=0.2)
        results = {"energy": energy, "forces": rng.normal(size=(4, 3))}
        atoms.calc = SinglePointCalculator(atoms, **results, stress=rng.normal(size=6) / 100)
        atoms.info["gap"] = max(0.0, rng.normal())
        made.append(atoms)
    return made


def relabel(atoms: ase.Atoms, key: str, value: Any) -> None:
    atoms.calc.results[key] = value(atoms.calc.results[key])


def stretch(atoms: ase.Atoms, factor: float) -> None:
    atoms.set_cell(atoms.cell.array * factor, scale_atoms=True)


def copied(made: list[ase.Atoms], **changes: Any) -> None:
    made.append(made[4].copy())
    made[-1].calc = SinglePointCalculator(made[-1], **made[4].calc.results)
    made[-1].calc.results["energy"] += changes.pop("energy", 0.0)
    made[-1].info |= changes


def isolated(made: list[ase.Atoms], energy: float = 3.5) -> None:
    for symbol in ("Cu", "Au", "Ag"):
        atom = ase.Atoms(symbol, cell=[20] * 3)
        results = {"energy": energy, "forces": np.zeros((1, 3)), "stress": np.zeros(6)}
        atom.calc, atom.info["gap"] = SinglePointCalculator(atom, **results), 0.5
        made.append(atom)


def each(change: Callable[..., None], *values: Any) -> Callable[[list[ase.Atoms]], None]:
    def change_all(made: list[ase.Atoms]) -> None:
        for atoms in made:
            change(atoms, *values)

    return change_all


def judged(tmp_path: Path, change: Callable[[list[ase.Atoms]], None], **data: Any) -> GraphStore:
    made = alloys()
    change(made)
    for atoms in made:
        atoms.pbc = True
    ase.io.write(tmp_path / "a.xyz", made, format="extxyz")
    units = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³", "gap": "eV"}
    source = {"format": "ase", "train": "a.xyz", "targets": units}
    values = {"source": source, "path": tmp_path, "split": {"val": 0.2, "test": 0.2}, **data}
    return prepare(tmp_path / "s", DataConfig.model_validate(values), cutoff=5.0)


CLEAN: dict[str, Callable[[list[ase.Atoms]], None]] = {
    "as they are": lambda made: None,
    "all electrons": each(lambda a: relabel(a, "energy", lambda e: e - 600.0 * a.numbers.sum())),
    "isolated atoms": isolated,
    "copies": lambda made: copied(made),
    "copies with rounded labels": lambda made: copied(made, energy=1e-4),
    "a wide distribution": each(lambda a: a.info.update(gap=float(np.exp(a.info["gap"])))),
    "high pressure": each(stretch, 0.82),
    "some far apart": lambda made: each(stretch, 1.7)(made[:40]),
}


@pytest.mark.parametrize("what", CLEAN)
def test_clean_data_are_not_suspicious(what, tmp_path):
    found = judged(tmp_path, CLEAN[what], suspicious="refuse").manifest.provenance
    assert found["suspicious"] == {}


SUSPICIOUS: list[tuple[Callable[[list[ase.Atoms]], Any], str]] = [
    (
        lambda a: relabel(a[7], "energy", lambda e: e + 2000),
        r"structure 7: energy .*eV/atom is 500",
    ),
    (lambda a: relabel(a[7], "energy", lambda e: -9999.0), r"structure 7: energy -2499.75 eV/atom"),
    (lambda a: relabel(a[7], "energy", lambda e: e * 27.2), "structure 7: energy"),
    (lambda a: relabel(a[7], "forces", lambda f: f * 1000), r"structure 7: forces .*eV/Å is"),
    (lambda a: relabel(a[7], "stress", lambda s: s * 1602), "structure 7: stress"),
    (lambda a: a[7].info.update(gap=1e8), r"structure 7: gap 1e\+08 eV"),
    (
        lambda a: copied(a, gap=5.0),
        r"2 of 61, .*e (4|60): copies of it differ by .* in gap",
    ),
    (lambda a: copied(a, energy=0.4), r"structure 4: copies of it differ by 0.1 eV/atom in energy"),
    (lambda a: a[7].positions[:1].__setitem__(0, a[7].positions[1] + 0.3), r"7: .* 0.52 Å apart"),
    (lambda a: stretch(a[7], 3.0), r"structure 7: 4 of its 4 atoms have no neighbour"),
    (each(stretch, 1 / 0.529), "1.8 times .* positions and cells in Å"),
    (each(stretch, 0.25), "0.2. times .* positions and cells in Å"),
    (each(stretch, 10.0), "the median structure has atoms without neighbours"),
    (
        each(relabel, "stress", lambda s: s * 160.2),
        r"stress is .* eV/Å³ in the median .* not as virial",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), SUSPICIOUS)
def test_what_is_suspicious_is_refused_in_one_sentence(change, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence + r".*set data\.suspicious to") as caught:
        judged(tmp_path, change, suspicious="refuse")
    assert "\n" not in str(caught.value) and not (tmp_path / "s").exists()


def test_wrong_labels_are_told_of_and_do_not_change_the_scales(tmp_path, caplog):
    def spoil(made: list[ase.Atoms]) -> None:
        relabel(made[7], "energy", lambda e: e + 1e6)
        made[8].info["gap"] = 1e8
        isolated(made)

    caplog.set_level(logging.INFO)
    clean = judged(tmp_path, lambda made: None).manifest.statistics
    shutil.rmtree(tmp_path / "s")
    store = judged(tmp_path, spoil)
    found, statistics = store.manifest.provenance["suspicious"], store.manifest.statistics
    assert (
        found["structures"],
        found["of"],
        sum(map(len, map(store.__getitem__, store.splits))),
    ) == (2, 63, 63)
    assert [one["where"].split(": ")[1] for one in found["worst"]] == ["structure 8", "structure 7"]
    assert statistics.element_energies == pytest.approx(clean.element_energies | {47: 3.5}, abs=0.1)
    assert statistics.energy_per_atom_std == pytest.approx(clean.energy_per_atom_std, rel=0.3)
    assert statistics.targets["gap"].std == pytest.approx(clean.targets["gap"].std, rel=0.3)
    assert "suspicious structures, to be looked at (data.suspicious): 2 of 63" in caplog.text
    with pytest.raises(InputError, match=r"suspicious structures: 2 of 63, the worst is .*a\.xyz"):
        judged(tmp_path, spoil, suspicious="refuse")  # the store that exists
    with pytest.raises(StoreError, match="leave_out_suspicious"):
        judged(tmp_path, spoil, suspicious="leave_out")


@pytest.mark.parametrize("missing", ["mask", "leave_out"])
def test_labels_far_off_are_masked_except_for_the_test(missing, tmp_path):
    clean = judged(tmp_path, lambda made: None, missing=missing)
    spoilt = {name: int(clean[name].graph_id[0]) for name in clean.splits}
    shutil.rmtree(tmp_path / "s")

    def spoil(made: list[ase.Atoms]) -> None:
        for number in spoilt.values():
            relabel(made[number], "energy", lambda e: e + 1e6)

    store = judged(tmp_path, spoil, missing=missing)
    for name, number in spoilt.items():
        split = store[name]
        masked = [int(graph.graph_id) for graph in split if not graph.energy.isfinite()]
        assert masked == ([number] if missing == "mask" and name != "testset" else [])
        assert all(graph.forces.isfinite().all() for graph in split)
        assert sum(int(graph.y.isnan().sum()) for graph in split) == len(masked)
    assert bool(store.manifest.lacking) == (missing == "mask")
    spread = clean.manifest.statistics.energy_per_atom_std
    assert store.manifest.statistics.energy_per_atom_std == pytest.approx(spread, rel=0.3)


def test_suspicious_structures_can_be_left_out(tmp_path):
    spoil = SUSPICIOUS[0][0]
    store = judged(tmp_path, spoil, suspicious="leave_out")
    assert sum(len(store[name]) for name in store.splits) == 59
    assert 7 not in np.concatenate([store[name].graph_id for name in store.splits])
    assert store.manifest.provenance["suspicious"]["left_out"]
    assert judged(tmp_path, spoil, suspicious="leave_out").manifest == store.manifest
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(InputError, match="would leave most structures out: nearest atoms are"):
        judged(tmp_path, each(stretch, 0.25), suspicious="leave_out")


def test_structures_without_a_label_are_left_out_and_told_of(tmp_path):
    def unlabelled(made):
        for number in (3, 7):
            del made[number].calc.results["energy"]

    store = judged(tmp_path, unlabelled, missing="leave_out")
    (said,) = store.manifest.provenance["suspicious"]["all"]
    assert re.match(
        r"left out: 2 of 60 structures without a label, or with weight 0, the first: .*a\.xyz",
        said,
    )
    assert sum(split.graphs for split in store.manifest.splits.values()) == 58
    for key, said in (
        ("suspicious", "2 of 60 structures"),
        ("missing", "structure 3 has no label"),
    ):
        other = {"missing": "leave_out", "suspicious": "say", key: "refuse"}
        with pytest.raises(InputError, match=rf"{said}.*{key}"):
            judged(tmp_path, unlabelled, **other)
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
    (tmp_path / "most").mkdir()
    with pytest.raises(
        InputError, match=r"51 of 60 .* most, the first: .*9 has no label 'energy'.* mask"
    ):
        judged(
            tmp_path / "most",
            lambda made: [one.calc.results.pop("energy") for one in made[9:]],
            missing="leave_out",
        )


def lacking_some(made):
    for number, key in ((0, "stress"), (3, "energy"), (7, "stress"), (8, "forces")):
        del made[number].calc.results[key]


def test_missing_labels_are_masked_and_the_rest_counts(tmp_path):
    """Whichever structure lacks it, the first too; statistics are those of the labels there are."""
    store = judged(tmp_path, lacking_some)
    lacking = store.manifest.lacking
    assert sum(n for numbers in lacking.values() for n in numbers.values()) == 4
    assert store.manifest.masked == {"energy", "forces", "stress"}
    assert store.manifest.provenance["suspicious"] == {}
    train, targets = store["trainset"], store.manifest.statistics.targets
    for name in store.manifest.masked:
        values = train.target(name)
        known = values[np.isfinite(values).all(axis=1)]
        assert targets[name].share == pytest.approx(len(known) / len(values))
        np.testing.assert_allclose(targets[name].mean, known.mean(axis=0), rtol=1e-6)
    assert len(store.manifest.statistics.element_energies) == 2
    again = {"format": "hydragnn", "file": "s"}
    config = DataConfig.model_validate({"source": again, "path": tmp_path})
    copied = prepare(tmp_path / "copied", config, cutoff=5.0).manifest
    used = prepare(
        tmp_path / "used", config.model_copy(update={"in_place": True}), cutoff=5.0
    ).manifest
    assert copied.lacking == used.lacking == lacking
    strict = config.model_copy(update={"in_place": True, "missing": "refuse"})
    with pytest.raises(InputError, match=r"set data\.missing to mask$"):
        prepare(tmp_path / "strict", strict, cutoff=5.0)
    assert copied.statistics == used.statistics == store.manifest.statistics
    with pytest.raises(InputError, match=r"no label of .*masked: 1; correct it, or set data\.m"):
        judged(tmp_path, lacking_some, missing="refuse")


def test_few_structures_are_read_before_the_tasks_though_most_lack_a_label(tmp_path, monkeypatch):
    made = alloys(1000)
    for atoms in made[:990]:
        del atoms.info["gap"]
    ase.io.write(tmp_path / "a.xyz", made)
    source = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV", "gap": "eV"}}
    values = {"source": source, "path": tmp_path, "split": {"val": 0.2, "test": 0.2}}
    reader = open_source(DataConfig.model_validate(values), 0)
    take = Mock(side_effect=reader._labels.take)
    monkeypatch.setattr(reader._labels, "take", take)
    reader.chunks()
    assert take.call_count < 300 and [*reader.found_targets] == ["energy", "gap"]


def test_weights_are_stored_and_0_leaves_out(tmp_path):
    def weigh(made):
        for number, atoms in enumerate(made):
            atoms.info["importance"] = float(number % 4)

    source = {"format": "ase", "train": "a.xyz", "targets": {"energy": "eV"}}
    weighted = source | {"weight": "importance"}
    store = judged(tmp_path, weigh, source=weighted)
    train = store["trainset"]
    weights = train.column("loss_weight")
    assert weights.shape == (len(train), 1) and set(weights.ravel()) == {1.0, 2.0, 3.0}
    share = store.manifest.statistics.targets["energy"].share
    assert share == pytest.approx(weights.mean())
    shutil.rmtree(tmp_path / "s")
    assert judged(tmp_path, weigh, source=weighted, missing="refuse").manifest.splits
    assert sum(split.graphs for split in store.manifest.splits.values()) == 45
    shutil.rmtree(tmp_path / "s")
    for value in (-1.0, "heavy"):
        wrong = each(lambda atoms, w: atoms.info.update(importance=w), value)
        with pytest.raises(InputError, match=rf"structure 0 has the weight {value}, which is"):
            judged(tmp_path, wrong, source=weighted)


def test_reference_energies_are_those_given(tmp_path):
    fitted = judged(tmp_path, isolated).manifest.statistics
    assert fitted.reference_energies == {}
    for given, energies in (
        ("isolated", {29: 3.5, 79: 3.5, 47: 3.5}),
        ({"Cu": -3.0, "Au": -4.5, "Ag": -2.0}, {29: -3.0, 79: -4.5, 47: -2.0}),
    ):
        shutil.rmtree(tmp_path / "s")
        found = judged(tmp_path, isolated, element_energies=given).manifest.statistics
        references = found.reference_energies
        shifts = [references[number] - energy for number, energy in energies.items()]
        np.testing.assert_allclose(shifts, shifts[0])
        store = GraphStore.open(tmp_path / "s")
        left = [
            (float(graph.energy) - sum(references[z] for z in graph.x[:, 0].int().tolist()))
            / graph.num_nodes
            for graph in store["trainset"]
            if graph.num_nodes > 1
        ]
        assert np.mean(left) == pytest.approx(0.0, abs=1e-6)
        alone = [name for name in store.splits for n in store[name].n_atoms if n == 1]
        assert given != "isolated" or set(alone) == {"trainset"}
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(InputError, match="no energy is given of Ag"):
        judged(tmp_path, isolated, element_energies={"Cu": -3.0, "Au": -4.5})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("isolated", r"no training structure is an isolated atom of Cu; add it, or leave"),
        ({"Cu": -3.5}, r"no energy is given of Au"),
        ({"Cu": -3.5, "Au": math.nan}, "the energy of Au must be a finite number, got nan"),
        ({"Cu": -3.5, "Gold": -3.0}, "Gold is not the symbol of an element"),
        ({"x": {"Cu": -3.5}}, "for several sources those of each by its name .there is only one"),
        ("atoms", "must be isolated, or the energy of each element by its symbol"),
    ],
)
def test_reference_energies_that_will_not_do_are_refused(given, said, tmp_path):
    with pytest.raises((InputError, ValidationError), match=said):
        judged(tmp_path, lambda made: None, element_energies=given)


def test_files_without_a_label_are_left_out_wherever_they_are(tmp_path):
    for number, atoms in enumerate(alloys(20)):
        if number in (0, 7):
            atoms.calc = None
        ase.io.write(tmp_path / f"{number:02d}.xyz", atoms, format="extxyz")
    source = {"format": "ase", "train": "*.xyz", "targets": {"energy": "eV"}}
    values = {"source": source, "path": tmp_path, "split": {"val": 0.2, "test": 0.2}}
    store = prepare(tmp_path / "s", DataConfig.model_validate(values), cutoff=5.0)
    assert sum(split.graphs for split in store.manifest.splits.values()) == 18


def test_elements_without_energies_are_seen_but_not_by_potentials(tmp_path):
    def without_gold(made):
        for number, atoms in enumerate(made):
            atoms.numbers[:] = 29 if number % 3 else 79
            relabel(atoms, "energy", lambda e: -14.0 + 0.01 * number)  # noqa: B023
            if not number % 3:
                del atoms.calc.results["energy"]

    manifest = judged(tmp_path, without_gold).manifest
    assert manifest.statistics.elements == [29, 79] and manifest.unseen == set()
    assert [StructureGraphs(manifest, None, p).known for p in (False, True)] == [{29, 79}, {29}]
    older = manifest.statistics.model_copy(update={"elements": []})
    assert manifest.model_copy(update={"statistics": older}).unseen == {79}


def test_origins_read_back_to_the_same_atoms(tmp_path, monkeypatch):
    """Though structures are left out, divided, shuffled among tasks and joined with others."""
    made = alloys(80)
    for atoms in made:
        atoms.pbc = True
        atoms.info["name"] = f"{atoms.symbols} {atoms.get_potential_energy():.3f}"
    del made[3].calc.results["energy"]
    relabel(made[7], "energy", lambda e: e + 2000)
    for name, some in (("a-2", made[:20]), ("a-10", made[20:40]), ("test", made[40:50])):
        ase.io.write(tmp_path / f"{name}.xyz", some)
    ase.io.write(tmp_path / "b.db", made[50:])
    del ase.db.connect(tmp_path / "b.db")[4]
    one = {"format": "ase", "targets": {"energy": "eV", "forces": "eV/Å"}}
    sources = [
        {"name": "b", **one, "train": "b.db", "split": {"val": 0.2, "test": 0.2}},
        {"name": "a", **one, "train": "a-*.xyz", "test": "test.xyz", "split": {"val": 0.2}},
    ]
    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr(preparing, "_SHARD_BYTES", 20_000)
    config = DataConfig(sources=sources, path=tmp_path, suspicious="leave_out", missing="leave_out")
    store = prepare(tmp_path / "s", config, cutoff=5.0, workers=side_by_side)
    assert len(store.manifest.shards) > 3
    seen = set()
    for split in map(store.__getitem__, store.splits):
        known = split.origins_of(np.arange(len(split)))
        assert len(set(split.graph_id.tolist())) == len(split)
        for graph, file, frame, name in zip(split, *known.values(), strict=True):
            atoms = ase.io.read(file, index=frame)
            assert graph.x[:, 0].tolist() == atoms.numbers.tolist()
            moved, _ = find_mic(graph.pos.numpy() - atoms.positions, atoms.cell)
            assert np.abs(moved).max() < 1e-5
            assert name == (str(frame + 1 + (frame > 2)) if "b.db" in file else atoms.info["name"])
            seen.add((Path(file).name, int(frame)))
    assert len(seen) == 77 == sum(len(store[name]) for name in store.splits)
    assert not seen & {("a-2.xyz", 3), ("a-2.xyz", 7)}
    worst = store.manifest.provenance["suspicious"]["worst"]
    assert worst[0]["where"] == f"{tmp_path}/a-2.xyz: structure 7 (id {made[7].info['name']})"


def table_of_files(folder: Path, n: int = 13) -> DataConfig:
    """CGCNN's layout: a table without header, and a CIF for each of its rows."""
    made = alloys(n)
    for number, atoms in enumerate(made):
        atoms.pbc = True
        ase.io.write(folder / f"mp-{number}.cif", atoms)
    rows = [f"mp-{number},{atoms.get_potential_energy()}" for number, atoms in enumerate(made)]
    (folder / "id_prop.csv").write_text("\n".join(rows) + "\n")
    source = {"format": "csv", "train": "id_prop.csv", "structure": "id"}
    source |= {"targets": {"target": {"unit": "eV", "extensive": True}}}
    split = {"val": 0.2, "test": 0.2}
    return DataConfig.model_validate({"source": source, "path": folder, "split": split})


def test_the_origin_of_a_table_s_structure_is_the_file_that_its_row_names(tmp_path):
    config = table_of_files(tmp_path, 40)
    table = tmp_path / "id_prop.csv"
    table.write_text(table.read_text().replace("mp-17,", "mp-17,7"))
    store = prepare(tmp_path / "s", config)
    seen = set()
    for split in map(store.__getitem__, store.splits):
        origins = split.origins_of(np.arange(len(split)))
        for graph, file, frame, name in zip(split, *origins.values(), strict=True):
            atoms = ase.io.read(file, frame)
            assert graph.x[:, 0].tolist() == atoms.numbers.tolist()
            assert Path(file).name == f"{name}.cif" == f"mp-{int(graph.graph_id)}.cif"
            seen.add(file)
    assert len(seen) == 40
    (worst,) = store.manifest.provenance["suspicious"]["worst"]
    assert worst["where"] == f"{tmp_path}/mp-17.cif (id mp-17)"


def test_all_files_that_cannot_be_read_are_named_at_once(tmp_path, monkeypatch):
    config = table_of_files(tmp_path)
    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr("hydragnn_flow.data.sources.csv_tables.cut", lambda n: ranges(n, 2, 64))
    for number in range(1, 13):
        (tmp_path / f"mp-{number}.cif").write_text("damaged")
    ten = ", ".join(f"{tmp_path}/mp-{number}.cif" for number in range(1, 11))
    with pytest.raises(InputError) as caught:
        prepare(tmp_path / "s", config, workers=side_by_side)
    said = str(caught.value)
    assert said.startswith(f"12 structures cannot be read: {ten} and 2 more; the first: ")
    assert f"{tmp_path}/mp-1.cif cannot be read" in said
    assert said.endswith(f"with its row ({tmp_path}/id_prop.csv: structure 1)")
    for number in (1, 4):
        (tmp_path / f"mp-{number}.cif").unlink()
    with pytest.raises(InputError, match=r"2 structures .*: \S*e 1 names \S*mp-1, .*mp-4, .* row$"):
        prepare(tmp_path / "s", config)
    assert not any("s" in path.name for path in tmp_path.glob("*s*") if path.is_dir())


def test_all_of_a_directory_s_files_that_cannot_be_read_are_named_at_once(tmp_path):
    for number, atoms in enumerate(alloys(13)):
        ase.io.write(tmp_path / f"{number}.xyz", atoms)
    for number in (0, 5, 9):
        (tmp_path / f"{number}.xyz").write_text("damaged\n")
    source = {"format": "ase", "train": "*.xyz", "targets": {"energy": "eV"}}
    config = DataConfig(source=source, path=tmp_path, split={"val": 0.2, "test": 0.2})
    with pytest.raises(
        InputError, match=r"3 structures .*: \S*0\.xyz: .*5\.xyz: .*9\.xyz: .*; the"
    ):
        prepare(tmp_path / "s", config)


DAMAGE: list[tuple[Callable[[Path], Any], str]] = [
    (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cannot be read"),
    (lambda path: np.memmap(path, np.uint8, "r+").put(60, 63), "CRC"),
    (lambda path: path.unlink(), "is missing"),
    (lambda path: shutil.copy(path.with_name("testset.parquet"), path), "has 3 rows for 8 graphs"),
]


@pytest.mark.parametrize(("harm", "sentence"), DAMAGE)
def test_damaged_origins_are_found(harm, sentence, tmp_path):
    store = prepare(tmp_path / "s", files(tmp_path))
    assert store["trainset"].where(1).endswith("train.xyz: structure 1)")
    harm(tmp_path / "s" / "origins" / "trainset.parquet")
    with pytest.raises(StoreError, match=rf"trainset\.parquet .*{sentence}.*prepare it again"):
        check_store(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "origins")  # as in older stores
    assert check_store(tmp_path / "s")["graphs"] == 13
    with GraphStore.open(tmp_path / "s") as older:
        assert older["trainset"].where(1) == "trainset: graph 1"
