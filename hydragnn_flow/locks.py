"""Locks on files, which the operating system releases when their holder dies."""

from __future__ import annotations

import errno
import fcntl
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydragnn_flow.files import open_regular, same_file

SECONDS_BETWEEN_TRIES = 0.05
MOUNTS = Path("/proc/mounts")
# Mount options of Lustre and NFS that limit locks to processes of the same node.
_ON_THIS_NODE = {"localflock", "local_lock=flock", "local_lock=all"}
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class Held(Exception):
    """Error: another process holds the lock of a file."""


class Unlockable(OSError):
    """Error: the file system does not support locks."""


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the exclusive lock of a file for the length of a ``with`` block.

    Parameters
    ----------
    path
        File to lock; made if it is missing.
    seconds
        Longest time to wait until another process releases the lock [s].

    Raises
    ------
    Held
        If another process still holds the lock after ``seconds``.
    Unlockable
        If the file system does not support locks.
    """
    give_up = time.monotonic() + seconds
    while True:
        with path.open("ab") as lock:
            if take(lock.fileno()):
                # Its holder may have deleted the file, and another process made a new one.
                if same_file(lock.fileno(), path):
                    yield
                    return
            elif time.monotonic() > give_up:
                raise Held
        time.sleep(SECONDS_BETWEEN_TRIES)


def is_locked(path: Path) -> bool:
    """Return True if a process holds the exclusive lock of a file.

    To find out, the file is locked for an instant. False also if the file cannot be opened.
    """
    try:
        with open_regular(path) as lock:
            return not _flock(lock.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False


def local_locks(path: Path) -> str:
    """Return the mount option that makes file locks in a directory hold on this node only.

    The result is empty if there is no such option. With it, processes on two nodes can hold the
    same lock at once.
    """
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""  # not Linux
    path, place, options = path.resolve(), Path("/"), ""
    for line in lines:
        _, name, _, given, *_ = [*line.split(), "", "", "", ""]
        # Spaces in a name are escaped as octal numbers.
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name))
        if path.is_relative_to(mounted) and len(mounted.parts) >= len(place.parts):
            place, options = mounted, given
    return next(iter(_ON_THIS_NODE.intersection(options.split(","))), "")


def take(lock: int) -> bool:
    """Try to lock an open file exclusively; return False if another process has a lock of it.

    ``lock`` is the file's descriptor. A shared lock that this process got by :func:`take_shared`
    becomes exclusive; if another process holds a shared lock too, this process loses its own.

    Raises
    ------
    Unlockable
        If the file system does not support locks.
    """
    return _flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_shared(lock: int) -> None:
    """Take a shared lock of an open file, which several processes may hold at a time.

    ``lock`` is the file's descriptor. Waits while another process holds an exclusive lock.

    Raises
    ------
    Unlockable
        If the file system does not support locks.
    """
    _flock(lock, fcntl.LOCK_SH)


def _flock(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise Unlockable(error.errno, error.strerror) from None
        if error.errno not in _HELD:
            raise
        return False
    return True
