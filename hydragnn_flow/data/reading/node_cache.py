"""Cache of a store on a node: files on fast local storage, arrays in shared memory.

An entry is a directory under this user's base directory. A process that uses it holds a shared lock
on a file next to it, which the system drops however the process ends. A process that finds no such
lock may delete the entry. While an entry is made or deleted, its directory is called
``.unfinished``, so that a directory with the entry's name is complete.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from hydragnn_flow.data.store.integrity import fsync_tree
from hydragnn_flow.errors import StoreError
from hydragnn_flow.files import same_file
from hydragnn_flow.locks import take, take_shared

_RAM = Path("/dev/shm")
_REMEDY = (
    "free some room, name a larger scratch directory, or read the store with mode 'stream' or "
    "'random' and without one"
)
_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_held: dict[int, weakref.finalize[[Path, int, int], NodeEntry]] = {}
"""Finalizers of the entries in use, by the descriptor of their lock."""


class NodeEntry:
    """Directory of cached graphs on this node, which this process uses until :meth:`release`.

    The directory is also released when this object is garbage-collected or the process ends.

    Attributes
    ----------
    path
        Path of the complete directory.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._release = weakref.finalize(self, _give_back, path, lock, os.getpid())
        _held[lock] = self._release

    def release(self) -> None:
        """Stop using the directory; the last process of the node that does so deletes it."""
        self._release()


def release_all() -> None:
    """Release all cache directories that this process uses, before an exit without clean-up."""
    for release in list(_held.values()):
        release()


def node_entry(
    name: str,
    size: int,
    make: Callable[[Path], None],
    directories: Sequence[Path],
) -> NodeEntry:
    """Return a directory of the node's cache, filled by this process unless it exists already.

    Parameters
    ----------
    name
        Name of the directory, which identifies its content.
    size
        Space that the content needs [bytes].
    make
        Function that fills the given directory, while other processes that want it wait.
    directories
        Base directories: the first that has the directory, or room for it, is used.

    Raises
    ------
    StoreError
        If there is no room, no right to write, or no way to lock files.
    """
    bases = _usable(directories)
    for base in bases:
        _sweep(base, keep=name)
    while True:
        path = _place(bases, name, size)
        lock = os.open(_lock_file(path), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _held_or_made(lock, path, make):
                return NodeEntry(path, lock)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        time.sleep(random.uniform(0.001, 0.02))


def _held_or_made(lock: int, path: Path, make: Callable[[Path], None]) -> bool:
    """Take a shared lock on the entry ``path``, after making the entry if need be.

    ``lock`` is the descriptor of its lock file. Return False if another process interfered: the
    caller tries again.
    """
    take_shared(lock)  # waits for a process that makes the entry
    if not path.is_dir():
        # Fails where another process is at this point too; then one of the two is first to come
        # back to it. Neither this change of lock nor the next is atomic: in between, someone else
        # may make the entry, or find it unused and delete it.
        if not take(lock):
            return False
        if same_file(lock, _lock_file(path)) and not path.is_dir():
            _make(path, make)
        take_shared(lock)
    return same_file(lock, _lock_file(path)) and path.is_dir()


def shared_memory() -> list[Path]:
    """Return the directories where processes can share arrays: ``/dev/shm``, then one on disk.

    ``/dev/shm`` is left out if it does not exist. The directory on disk is the one for temporary
    files, whose pages the system caches.
    """
    temporary = Path(tempfile.gettempdir())
    return [_RAM, temporary] if _RAM.is_dir() else [temporary]


def free_memory() -> float:
    """Return the memory that this job may still use by the limits of its control groups [bytes].

    Without a limit the result is infinite. Schedulers set limits for jobs and containers. Files in
    ``/dev/shm`` count towards the limit, though the free space there does not show it. Control
    groups of version 1 are not read.
    """
    if not _OWN.exists():
        return float("inf")
    lines = [line for line in _OWN.read_text("utf-8").splitlines() if line.startswith("0::/")]
    groups = [_GROUPS / line.removeprefix("0::/") for line in lines]
    return min(
        (_left(above) for group in groups for above in (group, *group.parents)),
        default=float("inf"),
    )


def _left(group: Path) -> float:
    try:
        limit = (group / "memory.max").read_text(encoding="utf-8").strip()
        used = int((group / "memory.current").read_text(encoding="utf-8"))
        stat = (group / "memory.stat").read_text(encoding="utf-8")
        numbers = dict(line.split() for line in stat.splitlines())
    except OSError:  # the root group, or no such group
        return float("inf")
    # The page cache counts as used, but can be freed.
    return float(limit) - used + int(numbers["inactive_file"]) if limit != "max" else float("inf")


def _place(bases: Sequence[Path], name: str, size: int) -> Path:
    """Return the path of an entry: where it exists or is being made, or in a base with room."""
    for base in bases:
        path = base / name
        if path.is_dir() or unfinished_of(path).is_dir():
            return path
    for base in bases:
        if _room(base) > size:
            return base / name
    places = " and ".join(str(base.parent) for base in bases)
    raise StoreError(
        f"{places}: no room for the {size / 2**30:.1f} GiB of graphs that the processes of this "
        f"node would share; {_REMEDY}"
    )


def _room(base: Path) -> float:
    """Return the bytes that ``base`` can take; in ``/dev/shm`` the job's memory limit counts."""
    free = shutil.disk_usage(base).free
    return min(free, free_memory()) if base.parent == _RAM else free


def _make(path: Path, make: Callable[[Path], None]) -> None:
    unfinished = unfinished_of(path)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        make(unfinished)
        fsync_tree(unfinished)  # a complete entry must survive a power cut
        unfinished.rename(path)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise StoreError(
            f"{path.parent} cannot take the graphs that the processes of this node would share "
            f"({error.strerror}); {_REMEDY}"
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _usable(directories: Sequence[Path]) -> list[Path]:
    """Return this user's directory in each of ``directories`` that can hold entries."""
    usable, problems = [], []
    for directory in directories:
        try:
            usable.append(_own(directory))
        except StoreError as error:
            problems.append(error)
    if not usable:
        raise problems[-1]
    return usable


def directory_of_user(base: Path) -> Path:
    """Return the path of this user's cache directory within the directory ``base``."""
    return base / f"hydragnn_flow-{os.getuid()}"


def _own(base: Path) -> Path:
    """Return this user's directory in ``base``, made if need be.

    StoreError is raised if it belongs to another user, is open to others, or cannot hold locks.
    """
    own = directory_of_user(base)
    try:
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = own.lstat()
    except OSError as error:
        raise StoreError(
            f"{own} cannot be created ({error.strerror}); name a scratch directory you can write to"
        ) from error
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or own.is_symlink():
        raise StoreError(
            f"{own} belongs to someone else or is open to others; delete it or name another "
            "scratch directory"
        )
    try:
        with tempfile.TemporaryFile(dir=own) as file:
            take_shared(file.fileno())
    except OSError as error:
        raise StoreError(
            f"{own} does not take files with locks ({error.strerror}); name a scratch directory on "
            "a disk of the node"
        ) from error
    return own


def _sweep(base: Path, keep: str) -> None:
    """Delete files that killed processes left in ``base``, but not a complete entry ``keep``."""
    for sent in (*base.glob("*.part"), *base.glob("*.sent")):
        with contextlib.suppress(OSError):
            if time.time() - sent.stat().st_mtime > 86_400:  # nobody used it for a day
                sent.unlink()
    for lock_file in base.glob("*.lock"):
        path = lock_file.with_suffix("")
        if path.name == keep and path.is_dir():
            continue
        try:
            lock = os.open(lock_file, os.O_RDWR)
        except FileNotFoundError:
            continue
        _delete_if_unused(path, lock)
        os.close(lock)


def _give_back(path: Path, lock: int, owner: int) -> None:
    _held.pop(lock, None)
    if os.getpid() == owner:  # a fork shares the lock, not the duty
        _delete_if_unused(path, lock)
    os.close(lock)


def _delete_if_unused(path: Path, lock: int) -> None:
    if not (take(lock) and same_file(lock, _lock_file(path))):
        return
    unfinished = unfinished_of(path)
    shutil.rmtree(unfinished, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(unfinished)  # a process killed from here on leaves no entry that looks complete
    shutil.rmtree(unfinished, ignore_errors=True)
    if not (path.exists() or unfinished.exists()):
        _lock_file(path).unlink(missing_ok=True)


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def unfinished_of(path: Path) -> Path:
    """Return the path that a cache directory has while it is being made or deleted."""
    return path.with_name(f"{path.name}.unfinished")
