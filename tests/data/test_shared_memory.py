"""One copy of a split for all processes of a node: made once, shared, and cleaned up."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading import node_cache
from hydragnn_flow.data.reading.node_cache import node_entry, release_all
from hydragnn_flow.errors import InputError, StoreError

USER = f"hydragnn_flow-{os.getuid()}"

READER = """
import sys, time
import numpy as np
from pathlib import Path
from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading import node_cache
node_cache._RAM = Path(sys.argv[2])
split = GraphStore.open(sys.argv[1])["trainset"]
total = float(split.batch(range(len(split))).pos.double().sum())
print(total, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def ram(tmp_path, monkeypatch) -> Path:
    """A directory of the test's own in the place of /dev/shm."""
    place = tmp_path / "ram"
    place.mkdir()
    monkeypatch.setattr(node_cache, "_RAM", place)
    return place


def entries(base: Path) -> list[str]:
    return sorted(path.name for path in (base / USER).glob("*") if path.is_dir())


def reader(store: Path, ram: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, str(store), str(ram)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_child(what: Callable[[], object]) -> int:
    """Run something in a fork of this process that ends at once after it; its wait status."""
    child = os.fork()
    if child == 0:
        try:
            what()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def opened(under: Path) -> list[str]:
    """Names of the files in a directory that this process has open."""
    found = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sorted(name for name in found if name.startswith(str(under)))


def finish(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def proportional_bytes(pid: int, directory: Path) -> int:
    """What a process's mappings of files in a directory count for, shared pages divided (PSS)."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0]:
            inside = len(fields) > 5 and str(directory) in fields[5]
        elif inside and fields[0] == "Pss:":
            total += 1024 * int(fields[1])
    return total


def forked_reader(store: Path) -> tuple[BaseProcess, float]:
    """A fork of this process that has read the training split, and what it found."""
    here, there = multiprocessing.Pipe()

    def read() -> None:
        split = GraphStore.open(store)["trainset"]
        there.send(float(split.batch(range(len(split))).pos.double().sum()))
        signal.pause()

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    return process, here.recv()


def test_processes_share_one_copy(written, ram):
    processes = [reader(written, ram) for _ in range(2)]
    totals = {process.stdout.readline() for process in processes}
    assert len(totals) == 1
    (name,) = entries(ram)
    size = sum(file.stat().st_size for file in (ram / USER / name).iterdir())
    pages = sum(4096 for _ in (ram / USER / name).iterdir())
    shared = sum(proportional_bytes(process.pid, ram) for process in processes)
    assert size / 2 < shared <= size + pages
    finish(processes[0])
    assert entries(ram) == [name]
    finish(processes[1])
    assert entries(ram) == []
    assert list((ram / USER).iterdir()) == []


def test_killed_processes_leave_nothing_for_good(written, ram):
    process, total = forked_reader(written)
    process.kill()
    process.join()
    (name,) = entries(ram)  # still warm: the next one finds it and cleans up
    made = (ram / USER / name).stat().st_mtime_ns
    again, same = forked_reader(written)
    assert same == total
    assert (ram / USER / name).stat().st_mtime_ns == made
    again.kill()
    again.join()
    # Another store's opening sweeps what nobody uses any more.
    entry = node_entry("other", 1, lambda path: None, [ram])
    assert entries(ram) == ["other"]
    entry.release()


def test_killed_while_making_it(ram):
    def die(path: Path) -> None:
        (path / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    status = in_child(lambda: node_entry("data", 1, die, [ram]))
    assert os.WTERMSIG(status) == signal.SIGKILL
    entry = node_entry("data", 1, lambda path: (path / "whole").touch(), [ram])
    assert [file.name for file in entry.path.iterdir()] == ["whole"]
    entry.release()
    assert list((ram / USER).iterdir()) == []


def make_three(path: Path) -> None:
    for name in "abc":
        (path / name).write_text(name)


@pytest.mark.parametrize("next_one", ["data", "other"])
def test_killed_while_deleting_it(ram, next_one):
    """Half an entry must not count as the whole."""

    def die_at_the_second_file() -> None:
        entry = node_entry("data", 1, make_three, [ram])
        unlink, done = os.unlink, []

        def unlink_one(*args, **options) -> None:
            if done:
                os.kill(os.getpid(), signal.SIGKILL)
            done.append(args)
            unlink(*args, **options)

        os.unlink = unlink_one
        entry.release()

    assert os.WTERMSIG(in_child(die_at_the_second_file)) == signal.SIGKILL
    assert [len(list(path.iterdir())) for path in (ram / USER).iterdir() if path.is_dir()] == [2]
    entry = node_entry(next_one, 1, make_three, [ram])
    assert entries(ram) == [next_one]
    assert sorted(file.name for file in entry.path.iterdir()) == ["a", "b", "c"]
    entry.release()
    assert list((ram / USER).iterdir()) == []


def test_what_a_killed_maker_left_needs_no_room(ram, tmp_path, monkeypatch):
    """It is deleted first, and does not fix where the entry goes."""
    from collections import namedtuple

    def die(path: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(lambda: node_entry("data", 1, die, [ram]))
    assert entries(ram) == ["data.unfinished"]
    usage = namedtuple("usage", "total used free")
    full = {ram: 0, tmp_path / "scratch": 1 << 30}
    monkeypatch.setattr(
        node_cache.shutil, "disk_usage", lambda path: usage(1, 1, full[Path(path).parent])
    )
    entry = node_entry("data", 1, make_three, list(full))
    assert entry.path.parent.parent == tmp_path / "scratch"
    assert list((ram / USER).iterdir()) == []
    entry.release()


def test_made_by_another_while_the_lock_changes(ram, monkeypatch):
    """Changing a shared lock to an exclusive one lets others in between."""
    flock, made = fcntl.flock, []

    def interrupted(file, operation: int) -> None:
        if operation & fcntl.LOCK_EX and not made:
            made.append(True)
            flock(file, fcntl.LOCK_UN)
            with monkeypatch.context() as patch:
                patch.setattr(fcntl, "flock", flock)
                in_child(lambda: (node_entry("data", 1, make_three, [ram]), os._exit(0)))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    entry = node_entry("data", 1, lambda path: pytest.fail("made twice"), [ram])
    assert made
    assert sorted(file.name for file in entry.path.iterdir()) == ["a", "b", "c"]
    entry.release()


def test_stores_nobody_holds_are_let_go(copied, ram, tmp_path):
    """A program that opens many and closes none must not run out of descriptors or of disk."""

    def use(**options) -> None:
        store = GraphStore.open(copied, **options)
        for name in store.splits:
            store[name].batch([0])

    scratch = tmp_path / "scratch"
    gc.disable()  # which would come to their help, some time
    try:
        use()
        assert opened(tmp_path) == []
        use(mode="random", scratch=scratch)
        assert not [name for name in opened(scratch) if ".lock" in name]
        assert entries(ram) == entries(scratch) == []
        split = GraphStore.open(copied, "random", scratch=scratch)["trainset"]
        assert len(entries(scratch)) == 1  # read by the split, though nobody holds the store
        split.close()
        del split
        assert entries(scratch) == []
    finally:
        gc.enable()


def test_memory_mode_keeps_no_file_of_the_store_open(copied):
    with GraphStore.open(copied) as store:
        for _ in range(2):
            store["trainset"].batch([0, 1])
            store["valset"].target("energy")
        assert opened(copied) == []


def test_a_process_that_leaves_at_once(written, ram):
    """Without Python's own clean-up, as a trainer process does."""

    def work() -> None:
        store = GraphStore.open(written)
        for name in store.splits:
            store[name].batch([0])
        assert len(entries(ram)) == 3
        release_all()

    assert in_child(work) == 0
    assert list((ram / USER).iterdir()) == []


def test_a_fork_gives_nothing_back(ram):
    entry = node_entry("data", 1, make_three, [ram])
    in_child(release_all)
    assert entries(ram) == ["data"]
    entry.release()
    assert entries(ram) == []


def test_made_once_though_all_want_it_at_once(ram, tmp_path):
    """Whoever comes while it is made waits for it."""
    log = tmp_path / "log"

    def make(path: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.1)
        (path / "data").write_text("42")

    has_it, all_have_it = os.pipe(), os.pipe()
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(all_have_it[1])
                entry = node_entry("data", 1, make, [ram])
                status = 0 if (entry.path / "data").read_text() == "42" else 2
                os.write(has_it[1], b".")
                os.read(all_have_it[0], 1)
                entry.release()
            finally:
                os._exit(status)
        children.append(child)
    os.close(has_it[1])
    for _ in children:
        os.read(has_it[0], 1)
    os.close(all_have_it[1])
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert log.read_text() == "made\n"
    assert list((ram / USER).iterdir()) == []


def test_no_room(written, ram, monkeypatch, tmp_path):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(node_cache.shutil, "disk_usage", lambda path: usage(1, 1, 0))
    with pytest.raises(StoreError, match=r"no room for .* mode 'stream' or 'random'"):
        GraphStore.open(written)["trainset"].batch([0])


def test_a_limit_while_it_is_written(written, ram):
    """As a full disk: an error, where writing to a map would be the end of the process."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot take the graphs .*File too large"):
            GraphStore.open(written)["trainset"].batch([0])
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


def test_someone_elses_directory(ram, tmp_path):
    (ram / USER).mkdir(mode=0o755)
    with pytest.raises(StoreError, match="open to others"):
        node_entry("data", 1, lambda path: None, [ram])
    entry = node_entry("data", 1, lambda path: None, [ram, tmp_path / "scratch"])
    assert entries(tmp_path / "scratch") == ["data"]
    entry.release()


def test_a_file_system_without_locks(ram, tmp_path, monkeypatch):
    flock = fcntl.flock

    def refuse(file, operation: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if str(Path(f"/proc/self/fd/{number}").readlink()).startswith(str(ram)):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    entry = node_entry("data", 1, make_three, [ram, tmp_path / "scratch"])
    assert entries(tmp_path / "scratch") == ["data"]
    entry.release()
    with pytest.raises(StoreError, match=r"locks \(Function not implemented\); name a scratch"):
        node_entry("data", 1, make_three, [ram])


def test_the_first_directory_with_room(written, ram, tmp_path, monkeypatch):
    """A scratch directory serves where memory for files is short."""
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    real = node_cache.shutil.disk_usage
    monkeypatch.setattr(
        node_cache.shutil,
        "disk_usage",
        lambda path: usage(1, 1, 0) if str(path).startswith(str(ram)) else real(path),
    )
    with GraphStore.open(written, scratch=tmp_path / "scratch") as store:
        store["trainset"].batch([0])
        assert entries(ram) == []
        assert len(entries(tmp_path / "scratch")) == 1
    assert entries(tmp_path / "scratch") == []


@pytest.mark.parametrize("mode", ["random", "stream"])
def test_staged_copy(written, tmp_path, mode):
    scratch = tmp_path / "scratch"
    original = GraphStore.open(written, "random")["trainset"]
    with GraphStore.open(written, mode, scratch=scratch) as store:
        (name,) = entries(scratch)
        copies = sorted(file.name for file in (scratch / USER / name).rglob("*.0"))
        assert copies == ["data.0", "md.0", "mmd.0"]
        assert np.array_equal(store["trainset"][3].pos, original[3].pos)
        # Which keys are read does not change what is copied.
        with GraphStore.open(written, mode, scratch=scratch, without=("y",)) as second:
            assert entries(scratch) == [name]
            assert np.array_equal(second["trainset"][3].pos, original[3].pos)
    assert entries(scratch) == []


@pytest.mark.parametrize("mode", ["random", "stream"])
def test_staged_copy_of_a_hydragnn_file(written, tmp_path, mode, same):
    """It is one directory, without checksums and, to the manifest, without files."""
    theirs, scratch = tmp_path / "theirs.bp", tmp_path / "scratch"
    shutil.copytree(written / "shard-00000.bp", theirs)
    original = GraphStore.open(written, "random")["trainset"]
    with GraphStore.open(theirs, mode, scratch=scratch) as store:
        (name,) = entries(scratch)
        assert (scratch / USER / name / "data.0").is_file()
        shutil.rmtree(theirs)
        for i in (3, 0):
            assert same(store["trainset"][i], original[i])
    assert entries(scratch) == []


def test_no_room_for_a_copy(written, tmp_path, monkeypatch):
    from collections import namedtuple

    theirs = tmp_path / "theirs.bp"
    shutil.copytree(written / "shard-00000.bp", theirs)
    least = sum(file.stat().st_size for file in theirs.iterdir())
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(node_cache.shutil, "disk_usage", lambda path: usage(1, 1, least))
    for path in (written, theirs):
        with pytest.raises(StoreError, match=r"no room .*larger scratch directory or leave it out"):
            GraphStore.open(path, "random", scratch=tmp_path / "scratch")


def test_no_such_mode(written):
    with pytest.raises(InputError, match="mode 'disk' is not one of memory, random, stream"):
        GraphStore.open(written, mode="disk")


def test_staging_verifies(copied, tmp_path):
    payload = copied / "shard-00000.bp" / "data.0"
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    payload.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"data\.0 has changed"):
        GraphStore.open(copied, "random", scratch=tmp_path / "scratch")
    assert entries(tmp_path / "scratch") == []
