"""One copy of a split for all processes of a node: made once, shared, and cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hydragnn_flow.data import GraphStore
from hydragnn_flow.data.reading import node_cache
from hydragnn_flow.data.reading.node_cache import node_entry
from hydragnn_flow.errors import StoreError

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


def test_four_processes_share_one_copy(written, ram):
    processes = [reader(written, ram) for _ in range(4)]
    totals = {process.stdout.readline() for process in processes}
    assert len(totals) == 1
    (name,) = entries(ram)
    size = sum(file.stat().st_size for file in (ram / USER / name).iterdir())
    pages = sum(4096 for _ in (ram / USER / name).iterdir())
    shared = sum(proportional_bytes(process.pid, ram) for process in processes)
    assert size / 2 < shared <= size + pages
    for process in processes[:3]:
        finish(process)
        assert entries(ram) == [name]
    finish(processes[3])
    assert entries(ram) == []
    assert list((ram / USER).iterdir()) == []


def test_killed_processes_leave_nothing_for_good(written, ram):
    process = reader(written, ram)
    total = process.stdout.readline()
    process.kill()
    process.wait()
    (name,) = entries(ram)  # still warm: the next one finds it and cleans up
    made = (ram / USER / name).stat().st_mtime_ns
    again = reader(written, ram)
    assert again.stdout.readline() == total
    assert (ram / USER / name).stat().st_mtime_ns == made
    again.kill()
    again.wait()
    # Another store's opening sweeps what nobody uses any more.
    entry = node_entry("other", 1, lambda path: None, [ram])
    assert entries(ram) == ["other"]
    entry.release()


def test_killed_while_making_it(ram):
    def die(path: Path) -> None:
        (path / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        node_entry("data", 1, die, [ram])
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    entry = node_entry("data", 1, lambda path: (path / "whole").touch(), [ram])
    assert [file.name for file in entry.path.iterdir()] == ["whole"]
    entry.release()
    assert list((ram / USER).iterdir()) == []


def test_made_once_though_all_want_it_at_once(ram, tmp_path):
    """Whoever comes while it is made waits for it."""
    log = tmp_path / "log"

    def make(path: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.1)
        (path / "data").write_text("42")

    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                entry = node_entry("data", 1, make, [ram])
                status = 0 if (entry.path / "data").read_text() == "42" else 2
                time.sleep(0.2)
                entry.release()
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert log.read_text() == "made\n"
    assert list((ram / USER).iterdir()) == []


def test_no_room(written, ram, monkeypatch, tmp_path):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(node_cache.shutil, "disk_usage", lambda path: usage(1, 1, 0))
    with pytest.raises(StoreError, match=r"no room for .* mode 'stream' or 'random'"):
        GraphStore.open(written)["trainset"].batch([0])


def test_someone_elses_directory(ram):
    (ram / USER).mkdir(mode=0o755)
    with pytest.raises(StoreError, match="open to others"):
        node_entry("data", 1, lambda path: None, [ram])


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
        with GraphStore.open(written, mode, scratch=scratch) as second:
            assert entries(scratch) == [name]
            assert np.array_equal(second["trainset"][3].pos, original[3].pos)
    assert entries(scratch) == []


def test_staging_verifies(copied, tmp_path):
    payload = copied / "shard-00000.bp" / "data.0"
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    payload.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"data\.0 has changed"):
        GraphStore.open(copied, "random", scratch=tmp_path / "scratch")
    assert entries(tmp_path / "scratch") == []
