"""One copy of a split for all processes of a node: made once, shared, and cleaned up."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading import graph_store, local_shards, node_cache
from hydragnn_flow.data.reading.local_shards import files_to_send
from hydragnn_flow.data.reading.node_cache import node_entry, release_all
from hydragnn_flow.data.store.manifest import load_manifest
from hydragnn_flow.errors import InputError, StoreError
from hydragnn_flow.garbage import no_collection

USER = f"hydragnn_flow-{os.getuid()}"
FORK = multiprocessing.get_context("fork")


def entries(base: Path) -> list[str]:
    return sorted(path.name for path in (base / USER).glob("*") if path.is_dir())


def in_children(what: Callable[[], object], n: int = 1) -> list[int]:
    """Wait statuses of forks that do something side by side, and end at once after it."""
    children = []
    for _ in range(n):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                _held = what()  # until it ends
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    return [os.waitpid(child, 0)[1] for child in children]


pytestmark = pytest.mark.usefixtures("ram")


@pytest.fixture
def room(monkeypatch):
    """Sets how many bytes are free below a directory."""
    real = shutil.disk_usage

    def set_room(below, free):
        def usage(path):
            return SimpleNamespace(free=free) if str(path).startswith(str(below)) else real(path)

        monkeypatch.setattr(shutil, "disk_usage", usage)

    return set_room


def read_one(store, **options):
    GraphStore.open(store, **options)["trainset"].batch([0])


def forked_reader(store):
    """A fork of this process that has read the training split, and what it found."""
    here, there = FORK.Pipe()

    def read():
        split = GraphStore.open(store)["trainset"]
        there.send(float(split.batch(range(len(split))).pos.double().sum()))
        signal.pause()

    process = FORK.Process(target=read)
    process.start()
    return process, here.recv()


def test_processes_share_one_copy_and_killed_ones_leave_nothing_for_good(written, ram):
    """All map the files of one entry, whose pages the system keeps once."""
    totals, made = set(), set()
    for together in (2, 1):  # the last finds what the killed ones left: it is still warm
        readers = [forked_reader(written) for _ in range(together)]
        (name,) = entries(ram)
        made.add((ram / USER / name).stat().st_mtime_ns)
        arrays = {str(file) for file in (ram / USER / name).iterdir()}
        for process, total in readers:
            totals.add(total)
            lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
            assert arrays <= {line.split()[-1] for line in lines if line.split()[1] == "r--s"}
            process.kill()
            process.join()
    assert len(totals) == len(made) == 1
    # Another store's opening sweeps what nobody uses any more.
    entry = node_entry("other", 1, lambda path: None, [ram])
    assert entries(ram) == ["other"]
    entry.release()


def test_stores_nobody_holds_are_let_go(copied, ram, tmp_path):
    """A program that opens many and closes none must not run out of descriptors or of disk."""

    def opened(under):
        links = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return [name for name in map(str, map(Path.readlink, links)) if name.startswith(str(under))]

    scratch = tmp_path / "scratch"
    with no_collection():  # which would come to their help, some time
        read_one(copied)
        assert opened(tmp_path) == []
        read_one(copied, mode="random", scratch=scratch)
        assert not [name for name in opened(scratch) if ".lock" in name]
        assert entries(ram) == entries(scratch) == []
        split = GraphStore.open(copied, "random", scratch=scratch)["trainset"]
        assert len(entries(scratch)) == 1  # read by the split, though nobody holds the store
        split.close()
        del split
        assert entries(scratch) == []


def test_a_process_that_leaves_at_once(written, ram):
    """Without Python's own clean-up, as a trainer process does."""

    def work():
        store = GraphStore.open(written)
        for name in store.splits:
            store[name].batch([0])
        assert len(entries(ram)) == 3
        release_all()
        os._exit(0)  # before the store is let go

    assert in_children(work) == [0]
    assert list((ram / USER).iterdir()) == []


def test_a_limit_while_it_is_written(written, ram):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot take the graphs .*File too large"):
            read_one(written)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert entries(ram) == []


def test_the_limit_of_a_job(written, ram, tmp_path, monkeypatch):
    """Files in memory count against it, whatever /dev/shm has free."""
    job = tmp_path / "cgroup" / "job"
    (job / "step").mkdir(parents=True)
    (job / "step" / "memory.max").write_text("max\n")
    (job / "memory.max").write_text("1000000\n")
    (job / "memory.current").write_text("999000\n")
    for group in (job, job / "step"):
        (group / "memory.stat").write_text("anon 5\ninactive_file 500\n")
    (job / "step" / "memory.current").write_text("5\n")
    (tmp_path / "own").write_text("1:cpu:/x\n0::/job/step\n")
    monkeypatch.setattr(node_cache, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(node_cache, "_OWN", tmp_path / "own")
    assert node_cache.free_memory() == 1500
    with GraphStore.open(written, scratch=tmp_path / "scratch") as store:
        store["trainset"].batch([0])
        assert entries(ram) == []
        assert len(entries(tmp_path / "scratch")) == 1
    (job / "memory.max").write_text("max\n")
    assert node_cache.free_memory() == float("inf")


def test_the_first_directory_with_room(written, ram, tmp_path, room):
    """A scratch directory serves where memory for files is short."""
    scratch = tmp_path / "scratch"
    room(ram, 0)
    with GraphStore.open(written, scratch=scratch) as store:
        store["trainset"].batch([0])
        assert entries(ram) == []
        assert len(entries(scratch)) == 1
    assert entries(scratch) == []
    room("/", 0)
    with pytest.raises(StoreError, match=r"no room for .* mode 'stream' or 'random'"):
        read_one(written)
    theirs = Path(shutil.copytree(written / "shard-00000.bp", tmp_path / "theirs.bp"))
    room("/", sum(file.stat().st_size for file in theirs.iterdir()))
    for path in (written, theirs):
        with pytest.raises(StoreError, match=r"no room .*larger scratch directory.* without one"):
            GraphStore.open(path, "random", scratch=scratch)


@pytest.mark.parametrize("mode", ["random", "stream"])
@pytest.mark.parametrize("of_hydragnn", [False, True])
def test_staged_copy(written, tmp_path, mode, of_hydragnn, same):
    """HydraGNN's file is one directory, without checksums and, to the manifest, without files."""
    scratch, path = tmp_path / "scratch", tmp_path / "theirs.bp"
    shutil.copytree(written / "shard-00000.bp" if of_hydragnn else written, path)
    original = GraphStore.open(written, "random")["trainset"]
    with GraphStore.open(path, mode, scratch=scratch) as store:
        (name,) = entries(scratch)
        copies = sorted(file.name for file in (scratch / USER / name).rglob("*.0"))
        assert copies == ["data.0", "md.0", "mmd.0"]
        # Which keys are read does not change what is copied.
        with GraphStore.open(path, mode, scratch=scratch, without=("y",)) as second:
            assert entries(scratch) == [name]
            assert np.array_equal(second["trainset"][3].pos, original[3].pos)
        shutil.rmtree(path)
        assert all(same(store["trainset"][i], original[i]) for i in (3, 0))
    assert entries(scratch) == []


@pytest.fixture
def sent(written, tmp_path):
    """A scratch directory with a store's files where sbcast puts them."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / USER).mkdir(mode=0o700)
    for file, place in files_to_send(written):
        shutil.copyfile(file, tmp_path / "scratch" / place)
    return tmp_path / "scratch"


@pytest.mark.parametrize("mode", ["memory", "random", "stream"])
def test_a_store_that_was_sent_is_not_read_where_it_is(written, sent, tmp_path, room, mode):
    """Nor does it need room for a second time."""
    room(sent, 1)
    expected = GraphStore.open(written, "random")["trainset"][3].pos
    shared = shutil.copytree(written, tmp_path / "shared.gs")
    payload = shared / "shard-00000.bp" / "data.0"
    payload.write_bytes(bytes(payload.stat().st_size))
    with GraphStore.open(shared, mode, scratch=sent) as store:
        assert np.array_equal(store["trainset"][3].pos, expected)
        with GraphStore.open(shared, mode, scratch=sent) as second:  # what came is gone
            assert np.array_equal(second["trainset"][3].pos, expected)
    assert [path.name for path in (sent / USER).iterdir()] == []


def test_who_comes_while_what_was_sent_is_verified_waits_for_it(written, sent, monkeypatch):
    manifest, real, seen = load_manifest(written), local_shards.verify_checksum, []

    def verify(*arguments):
        seen.append(local_shards.is_here(written, manifest, sent))
        real(*arguments)

    monkeypatch.setattr(local_shards, "verify_checksum", verify)
    with GraphStore.open(written, scratch=sent):
        assert seen
        assert all(seen)
        assert local_shards.is_here(written, manifest, sent)


def test_a_disk_without_room_for_the_copies_is_not_needed_by_what_reads_into_memory(
    written, sent, monkeypatch, caplog
):

    def no_room(*arguments):
        raise StoreError("no room")

    monkeypatch.setattr(graph_store, "local_shards", no_room)
    with GraphStore.open(written, scratch=sent) as store:
        assert len(store["trainset"])
    assert "no room; the store is read from" in caplog.text
    with pytest.raises(StoreError, match="no room"):
        GraphStore.open(written, "random", scratch=sent)
    with pytest.raises(InputError, match="mode 'disk' is not one of memory, random, stream"):
        GraphStore.open(written, mode="disk")


@pytest.mark.parametrize("mode", ["memory", "random"])
@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_store_that_did_not_come_whole_is_read_where_it_is(written, sent, mode, damage):
    largest = max((sent / USER).glob("*.part"), key=lambda part: part.stat().st_size)
    size = largest.stat().st_size
    largest.unlink()
    if damage == "changed":
        largest.write_bytes(bytes(size))
    expected = GraphStore.open(written, "random")["trainset"][3].pos
    with GraphStore.open(written, mode, scratch=sent) as store:
        assert np.array_equal(store["trainset"][3].pos, expected)


def test_what_was_sent_and_never_used_is_deleted_after_a_day(sent, monkeypatch):
    node_entry("other", 1, lambda path: None, [sent])
    assert list((sent / USER).glob("*.sent"))
    monkeypatch.setattr(node_cache.time, "time", lambda: time.time_ns() / 1e9 + 90_000)
    node_entry("another", 1, lambda path: None, [sent])
    assert not list((sent / USER).glob("*.sent")) + list((sent / USER).glob("*.part"))


def test_staging_verifies(copied, tmp_path):
    payload = copied / "shard-00000.bp" / "data.0"
    payload.write_bytes(payload.read_bytes()[::-1])
    with pytest.raises(StoreError, match=r"data\.0 has changed"):
        GraphStore.open(copied, "random", scratch=tmp_path / "scratch")
    assert entries(tmp_path / "scratch") == []


USER_OF_AN_ENTRY = """
import sys
from pathlib import Path
from hydragnn_flow.data.reading.node_cache import node_entry

entry = node_entry("data", 1, lambda path: (path / "a").touch(), [Path(sys.argv[1])])
assert "torch" not in sys.modules
print(flush=True)
sys.stdin.readline()
"""


def test_the_last_process_deletes_it_as_it_ends(ram):
    command, pipe = [sys.executable, "-c", USER_OF_AN_ENTRY, str(ram)], subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline()
    for process, left in zip(processes, (["data"], []), strict=True):
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        assert entries(ram) == left
    assert list((ram / USER).iterdir()) == []


def make_three(path):
    for name in "abc":
        (path / name).write_text(name)


def made_whole_and_given_back(ram, name, make=make_three):
    entry = node_entry(name, 1, make, [ram])
    assert entries(ram) == [name]
    assert sorted(file.name for file in entry.path.iterdir()) == ["a", "b", "c"]
    entry.release()
    assert list((ram / USER).iterdir()) == []


def test_killed_while_making_it(ram):
    def die(path):
        (path / "half").write_text("half")
        signal.raise_signal(signal.SIGKILL)

    assert in_children(lambda: node_entry("data", 1, die, [ram])) == [signal.SIGKILL]
    made_whole_and_given_back(ram, "data")


@pytest.mark.parametrize("next_one", ["data", "other"])
def test_killed_while_deleting_it(ram, next_one):
    """Half an entry must not count as the whole."""

    def die_at_the_second_file():
        entry = node_entry("data", 1, make_three, [ram])
        unlink, done = os.unlink, []

        def unlink_one(*args, **options):
            if done:
                signal.raise_signal(signal.SIGKILL)
            done.append(args)
            unlink(*args, **options)

        os.unlink = unlink_one
        entry.release()

    assert in_children(die_at_the_second_file) == [signal.SIGKILL]
    assert [len(list(path.iterdir())) for path in (ram / USER).iterdir() if path.is_dir()] == [2]
    made_whole_and_given_back(ram, next_one)


def test_what_a_killed_maker_left_needs_no_room(ram, tmp_path, room):
    """It is deleted first, and does not fix where the entry goes."""
    in_children(lambda: node_entry("data", 1, lambda _: signal.raise_signal(signal.SIGKILL), [ram]))
    assert entries(ram) == ["data.unfinished"]
    room(ram, 0)
    entry = node_entry("data", 1, make_three, [ram, tmp_path / "scratch"])
    assert entry.path.parent.parent == tmp_path / "scratch"
    assert list((ram / USER).iterdir()) == []
    entry.release()


@pytest.mark.parametrize("swept", [True, False])
def test_made_by_another_while_the_lock_changes(ram, monkeypatch, swept):
    """Changing a shared lock to an exclusive one lets others in, who may delete its file."""
    flock, made = fcntl.flock, []

    def interrupted(file, operation):
        if operation & fcntl.LOCK_EX and not made:
            made.append(True)
            flock(file, fcntl.LOCK_UN)
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "flock", flock)
                if not swept:
                    patch.setattr(node_cache, "_sweep", lambda base, keep: None)
                in_children(lambda: node_entry("data", 1, make_three, [ram]))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    made_whole_and_given_back(ram, "data", lambda path: pytest.fail("made twice"))
    assert made


def test_a_fork_gives_nothing_back(ram):
    entry = node_entry("data", 1, make_three, [ram])
    assert in_children(release_all) == [0]
    assert entries(ram) == ["data"]
    entry.release()
    assert entries(ram) == []


def test_made_once_though_all_want_it_at_once(ram, tmp_path):
    """Whoever comes while it is made waits for it."""
    all_have_it = FORK.Barrier(6)

    def make(path):
        with (tmp_path / "log").open("a") as file:
            file.write("made\n")
        time.sleep(0.1)
        (path / "data").write_text("42")

    def use():
        entry = node_entry("data", 1, make, [ram])
        all_have_it.wait(60)
        assert (entry.path / "data").read_text() == "42"
        entry.release()

    assert in_children(use, 6) == [0] * 6
    assert (tmp_path / "log").read_text() == "made\n"
    assert list((ram / USER).iterdir()) == []


def of_someone_else(ram, monkeypatch):
    (ram / USER).mkdir(mode=0o755)


def without_locks(ram, monkeypatch):
    flock = fcntl.flock

    def refuse(file, operation):
        number = file if isinstance(file, int) else file.fileno()
        if str(Path(f"/proc/self/fd/{number}").readlink()).startswith(str(ram)):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize(
    ("make_useless", "said"),
    [
        (of_someone_else, "open to others"),
        (without_locks, r"locks \(Function not implemented\); name a scratch"),
    ],
)
def test_a_directory_of_no_use_is_passed_over(ram, tmp_path, monkeypatch, make_useless, said):
    make_useless(ram, monkeypatch)
    with pytest.raises(StoreError, match=said):
        node_entry("data", 1, make_three, [ram])
    entry = node_entry("data", 1, make_three, [ram, tmp_path / "scratch"])
    assert entries(tmp_path / "scratch") == ["data"]
    entry.release()
