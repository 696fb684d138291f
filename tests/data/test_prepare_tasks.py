"""Tasks of a preparation: killed, lost, orphaned, divided in another way."""

import importlib
import multiprocessing
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prepare_cases import MANY, generated, prepare

from hydragnn_flow.data import write_store
from hydragnn_flow.data.preparing import prepare as preparing
from hydragnn_flow.data.preparing import run_task
from hydragnn_flow.errors import InputError, NoWorkers, StoreError

pytestmark = pytest.mark.usefixtures("many_tasks")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The store of all those structures, prepared in one go."""
    return prepare(tmp_path_factory.mktemp("whole") / "s", generated(structures=MANY))


class Killed:
    """Workers whose process is killed at a moment of the preparation, after so many tasks."""

    def __init__(self, after):
        self.left = after

    def __call__(self, requests):
        for number, request in requests.items():
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            self.run(request)
            yield number

    def run(self, request):
        run_task(request)


class Recorded(Killed):
    """Workers who also remember what they were asked to do."""

    def __init__(self):
        super().__init__(-1)
        self.requests: list[dict[str, Any]] = []

    def run(self, request):
        self.requests.append(dict(request))
        super().run(request)


def _prepare_and_die(path, after, where):
    """In a process of its own: prepare, and be killed between tasks or as a step begins."""

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if where:
        module, name = where.rsplit(".", 1)
        setattr(importlib.import_module(f"hydragnn_flow.data.{module}"), name, die)
    prepare(path, generated(structures=MANY), workers=Killed(after))


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
        (9, "writer.commit"),
        (9, "store.integrity.fsync_tree"),
    ],
)
def test_killed_at_any_moment(tmp_path, whole, after, where):
    """Nothing half-written is ever taken for a store, and the next time goes on from there."""
    path = tmp_path / "s"
    process = multiprocessing.get_context("fork").Process(
        target=_prepare_and_die, args=(path, after, where)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not path.exists()
    done = list(tmp_path.glob(".s.preparing/*/*/record.pickle"))
    in_the_first_task = where.startswith(("store.shard", "preparing.tasks"))
    assert done or after == 0 or in_the_first_task
    workers = Recorded()
    store = prepare(path, generated(structures=MANY), workers=workers)
    ran = {request["directory"] for request in workers.requests}
    assert not {str(entry.parent) for entry in done} & ran
    assert list(tmp_path.iterdir()) == [path]
    assert {**store.manifest.provenance} == {**whole.manifest.provenance}
    for name in store.splits:
        assert store[name].graph_id.tolist() == whole[name].graph_id.tolist()
        assert np.array_equal(store[name].target("energy"), whole[name].target("energy"))


def test_the_store_is_the_same_however_it_was_divided_among_tasks(tmp_path, whole, monkeypatch):
    """And though tasks run side by side and end in any order."""

    def workers(requests):
        with ThreadPoolExecutor(3) as pool:
            futures = {pool.submit(run_task, request): n for n, request in requests.items()}
            for future in as_completed(futures):
                future.result()
                yield futures[future]

    monkeypatch.setattr(preparing, "_FEWEST", 1)
    monkeypatch.setattr(preparing, "_SHARD_BYTES", 50_000)
    many = prepare(tmp_path / "many", generated(structures=MANY), workers=workers)
    assert len(whole.manifest.shards) == 1
    assert len(many.manifest.shards) > 3
    for name in whole.splits:
        assert whole[name].graph_id.tolist() == many[name].graph_id.tolist()
        for left, right in zip(whole[name], many[name], strict=True):
            assert all(torch.equal(left[key], right[key]) for key in left.to_dict())
    left, right = whole.manifest.statistics, many.manifest.statistics
    assert left.degree_histogram == right.degree_histogram
    assert left.element_energies == pytest.approx(right.element_energies)
    assert left.energy_per_atom_std == pytest.approx(right.energy_per_atom_std)
    assert left.targets["forces"].std == pytest.approx(right.targets["forces"].std)


class Gone(Killed):
    """Workers of which some tasks are run, until the scheduler refuses all further ones."""

    def __call__(self, requests):
        yield from super().__call__(dict(islice(requests.items(), self.left)))
        raise NoWorkers("site slurm: gets no workers: QOSMaxSubmitJob")


def test_a_scheduler_that_refuses_costs_no_finished_task(tmp_path, whole):
    with pytest.raises(InputError, match="gets no workers"):
        prepare(tmp_path / "s", generated(structures=200), workers=Gone(3))
    assert len(list(tmp_path.glob(".s.preparing/*/unit-*/record.pickle"))) == 3
    store = prepare(tmp_path / "s", generated(structures=MANY))
    assert store["trainset"].graph_id.tolist() == whole["trainset"].graph_id.tolist()


def test_no_worker_from_the_start_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="gets no workers"):
        prepare(tmp_path / "s", workers=Gone(0))
    assert list(tmp_path.iterdir()) == []


def test_an_orphan_of_other_settings_does_no_harm(tmp_path):
    """It ends its task after the next driver has begun, for the settings of the one before."""
    old = Recorded()
    process = ThreadPoolExecutor(1).submit(
        prepare, tmp_path / "s", generated(structures=MANY), cutoff=3.0, workers=old
    )
    process.result(60)
    shutil.rmtree(tmp_path / "s")

    class Late(Recorded):
        def run(self, request):
            if not self.requests:
                with pytest.raises(StoreError, match="was deleted"):
                    run_task(old.requests[0])
                # Nor where its directory is there still, as for one that has just been begun.
                Path(old.requests[0]["directory"]).parent.mkdir()
                run_task(old.requests[0])
            super().run(request)

    store = prepare(tmp_path / "s", generated(structures=MANY), cutoff=5.0, workers=Late())
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
    assert len(prepare(tmp_path / "s", workers=Killed(0))["trainset"]) == 7


def test_two_at_once(tmp_path):
    """The second one is told, and does no harm."""
    started, proceed = threading.Event(), threading.Event()

    class Slow(Killed):
        def run(self, request):
            started.set()
            proceed.wait(60)
            super().run(request)

    first = ThreadPoolExecutor(1).submit(prepare, tmp_path / "s", workers=Slow(-1))
    started.wait(60)
    with pytest.raises(StoreError, match="another process is preparing"):
        prepare(tmp_path / "s")
    proceed.set()
    assert len(first.result(60)["trainset"]) == 7


def test_a_killed_writer_leaves_nothing_for_good(tmp_path):
    """The next one of the same store begins anew; what others have begun is left alone."""
    graphs = list(prepare(tmp_path / "t")["trainset"])

    def die():
        yield from graphs
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=lambda: write_store(tmp_path / "s", {"trainset": die()})
    )
    process.start()
    process.join()
    assert (tmp_path / ".s.writing" / "store").is_dir()
    for name in (".other.writing", "precious"):
        (tmp_path / name).mkdir()
    assert len(write_store(tmp_path / "s", {"trainset": graphs})["trainset"]) == len(graphs)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [".other.writing", "precious", "s", "t"]
