"""Files on fast local storage that all processes of a node share, made once and cleaned up.

An entry is a directory under a base directory of this user's. Whoever uses it holds a shared lock
on a file beside it, which the system drops however the process ends; whoever finds nobody holding
one may delete the entry.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hydragnn_flow.errors import StoreError
from hydragnn_flow.files import same_file

_RAM = Path("/dev/shm")


class NodeEntry:
    """One entry in use; :meth:`release` gives it back, at the latest the end of the process does.

    Attributes
    ----------
    path
        Its directory, complete.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._owner = os.getpid()
        atexit.register(self.release)

    def release(self) -> None:
        """Stop using the entry; the last process of the node to do so deletes it."""
        atexit.unregister(self.release)
        if self._lock < 0 or os.getpid() != self._owner:  # a fork shares the lock, not the duty
            return
        _delete_if_unused(self.path, self._lock)
        os.close(self._lock)
        self._lock = -1


def node_entry(
    name: str, size: int, make: Callable[[Path], None], directories: Sequence[Path]
) -> NodeEntry:
    """Get an entry, making it where no process of this node has made it yet.

    Parameters
    ----------
    name
        What identifies its content.
    size
        Bytes it needs.
    make
        Called with the directory to fill; while it runs, other processes that want the entry wait.
    directories
        Where to keep it: the first that has it or has room for it.

    Raises
    ------
    StoreError
        Where there is no room or no right to write.
    """
    bases = [_own(directory) for directory in directories]
    for base in bases:
        _sweep(base, keep=name)
    while True:
        path = _place(bases, name, size)
        lock = os.open(_lock_file(path), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for whoever is making the entry
            if same_file(lock, _lock_file(path)) and not path.is_dir():
                # Fails where another process is at this point too; then one of the two is first
                # to come back to it.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _make(path, make)
                # Not atomic: someone may find nobody using the entry and delete it in between.
                fcntl.flock(lock, fcntl.LOCK_SH)
            if same_file(lock, _lock_file(path)) and path.is_dir():
                return NodeEntry(path, lock)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        time.sleep(random.uniform(0.001, 0.02))


def shared_memory() -> list[Path]:
    """Directories whose files are memory: ``/dev/shm``, or what the page cache keeps there."""
    temporary = Path(tempfile.gettempdir())
    return [_RAM, temporary] if _RAM.is_dir() else [temporary]


def _place(bases: Sequence[Path], name: str, size: int) -> Path:
    """Where the entry is, or else where there is room for it."""
    for base in bases:
        if (base / name).is_dir() or (base / f"{name}.unfinished").is_dir():
            return base / name
    for base in bases:
        if shutil.disk_usage(base).free > size:
            return base / name
    places = " and ".join(str(base.parent) for base in bases)
    raise StoreError(
        f"{places}: no room for the {size / 2**30:.1f} GiB of graphs that the processes of this "
        "node would share; free some, name another scratch directory, or read the store with mode "
        "'stream' or 'random'"
    )


def _make(path: Path, make: Callable[[Path], None]) -> None:
    unfinished = path.with_name(f"{path.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir()
        make(unfinished)
        unfinished.rename(path)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise StoreError(
            f"{path.parent} cannot take the graphs that the processes of this node would share "
            f"({error.strerror}); free some room or name another scratch directory"
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _own(base: Path) -> Path:
    """This user's directory under ``base``, which nobody else can have put there."""
    own = base / f"hydragnn_flow-{os.getuid()}"
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
    return own


def _sweep(base: Path, keep: str) -> None:
    """Delete what killed processes left behind."""
    for lock_file in base.glob("*.lock"):
        path = lock_file.with_suffix("")
        if path.name == keep:
            continue
        try:
            lock = os.open(lock_file, os.O_RDWR)
        except FileNotFoundError:
            continue
        _delete_if_unused(path, lock)
        os.close(lock)


def _delete_if_unused(path: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if same_file(lock, _lock_file(path)):
        shutil.rmtree(path.with_name(f"{path.name}.unfinished"), ignore_errors=True)
        shutil.rmtree(path, ignore_errors=True)
        _lock_file(path).unlink(missing_ok=True)


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
