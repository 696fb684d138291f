"""Entries of a node are made once, by one process, and cleaned up by the last."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from node_cases import USER, entries, in_child

from hydragnn_flow.data.reading import node_cache
from hydragnn_flow.data.reading.node_cache import node_entry, release_all
from hydragnn_flow.errors import StoreError

pytestmark = pytest.mark.usefixtures("ram")

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
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", USER_OF_AN_ENTRY, str(ram)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout.readline()
    for process, left in zip(processes, (["data"], []), strict=True):
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
        assert entries(ram) == left
    assert list((ram / USER).iterdir()) == []


def test_killed_while_making_it(ram):
    def die(path):
        (path / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    status = in_child(lambda: node_entry("data", 1, die, [ram]))
    assert os.WTERMSIG(status) == signal.SIGKILL
    entry = node_entry("data", 1, lambda path: (path / "whole").touch(), [ram])
    assert [file.name for file in entry.path.iterdir()] == ["whole"]
    entry.release()
    assert list((ram / USER).iterdir()) == []


def make_three(path):
    for name in "abc":
        (path / name).write_text(name)


@pytest.mark.parametrize("next_one", ["data", "other"])
def test_killed_while_deleting_it(ram, next_one):
    """Half an entry must not count as the whole."""

    def die_at_the_second_file():
        entry = node_entry("data", 1, make_three, [ram])
        unlink, done = os.unlink, []

        def unlink_one(*args, **options):
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
    in_child(lambda: node_entry("data", 1, lambda _: os.kill(os.getpid(), signal.SIGKILL), [ram]))
    assert entries(ram) == ["data.unfinished"]
    room = {ram: 0, tmp_path / "scratch": 1 << 30}
    monkeypatch.setattr(node_cache, "_room", lambda base: room[base.parent])
    entry = node_entry("data", 1, make_three, list(room))
    assert entry.path.parent.parent == tmp_path / "scratch"
    assert list((ram / USER).iterdir()) == []
    entry.release()


def test_made_by_another_while_the_lock_changes(ram, monkeypatch):
    """Changing a shared lock to an exclusive one lets others in between."""
    flock, made = fcntl.flock, []

    def interrupted(file, operation):
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


def test_a_fork_gives_nothing_back(ram):
    entry = node_entry("data", 1, make_three, [ram])
    in_child(release_all)
    assert entries(ram) == ["data"]
    entry.release()
    assert entries(ram) == []


def test_made_once_though_all_want_it_at_once(ram, tmp_path):
    """Whoever comes while it is made waits for it."""
    log = tmp_path / "log"

    def make(path):
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.1)
        (path / "data").write_text("42")

    fork = multiprocessing.get_context("fork")
    all_have_it = fork.Barrier(6)

    def use():
        entry = node_entry("data", 1, make, [ram])
        all_have_it.wait(60)
        assert (entry.path / "data").read_text() == "42"
        entry.release()

    processes = [fork.Process(target=use) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert log.read_text() == "made\n"
    assert list((ram / USER).iterdir()) == []


def test_someone_elses_directory(ram, tmp_path):
    (ram / USER).mkdir(mode=0o755)
    with pytest.raises(StoreError, match="open to others"):
        node_entry("data", 1, lambda path: None, [ram])
    entry = node_entry("data", 1, lambda path: None, [ram, tmp_path / "scratch"])
    assert entries(tmp_path / "scratch") == ["data"]
    entry.release()


def test_a_file_system_without_locks(ram, tmp_path, monkeypatch):
    flock = fcntl.flock

    def refuse(file, operation):
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
