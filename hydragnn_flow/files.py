"""Files that survive a crash: replaced atomically, or appended to line by line."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")

# Errors of a full or unreachable disk; then also those that a shared file system and sockets have.
DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
PASSING = (*DISKS, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN)
SECONDS_BETWEEN_TRIES = 1.0


_is_synced = ContextVar("is_synced", default=True)


@contextmanager
def unsynced() -> Iterator[None]:
    """Skip fsync for files that this thread writes in a ``with`` block.

    Suitable for files that can be made again, such as those of a simulation.
    """
    token = _is_synced.set(False)
    try:
        yield
    finally:
        _is_synced.reset(token)


def _sync(descriptor: int) -> None:
    if _is_synced.get():
        os.fsync(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace ``path`` atomically at the end of a ``with`` block that writes a temporary file.

    A crash leaves the old file or the new one.

    Yields
    ------
    Path
        The temporary file, on the same disk.
    """
    # Unique name: processes on several nodes, even with the same number, may write at once.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Make a directory atomically at the end of a ``with`` block that fills a temporary one.

    A crash leaves all of it or nothing. If another process was faster, its directory stays.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sweep(path: Path, seconds: float = 0.0) -> None:
    """Delete temporary files left by killed writers of ``path``, whose name may have wildcards.

    A process that is still writing one gets a FileNotFoundError at its end.

    Parameters
    ----------
    path
        Path of the file, or a pattern for several.
    seconds
        Least time since the last change of a temporary file [s]; younger ones stay.
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime >= seconds:
                left.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically; a crash leaves the old file or the new one."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        _sync(file.fileno())


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` by ``values`` as JSON atomically."""
    write_text(path, json_text(values))


def json_text(values: Any) -> str:
    """Format values as in the files of :func:`write_json`."""
    return json.dumps(values, indent=1) + "\n"


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` atomically; a crash never leaves an incomplete copy."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            _sync(file.fileno())


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; refuse a device or a FIFO, which may block or never end.

    Raises
    ------
    OSError
        If it cannot be opened, or is a device, a FIFO or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def modified(path: Path) -> float:
    """Unix time of a file's last change [s]; 0 if the file does not exist.

    Raises
    ------
    OSError
        If the disk does not answer.
    """
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def is_there(path: Path) -> bool:
    """Return whether a file exists; raise an error of the disk instead of answering False.

    `Path.exists` takes any error for absence from Python 3.14 on, and the caller would make an
    absent file from scratch.

    Raises
    ------
    OSError
        If the disk does not answer.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class AppendOnly:
    """File that only grows; a record is on disk when :meth:`append` returns.

    The file is opened for each record, so that a shared file system may disconnect in between.

    Parameters
    ----------
    path
        The file; the first record creates it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sound_end: int | None = None
        self._is_new: bool | None = None

    def append(self, content: bytes) -> None:
        """Append all of the content or, after an error, nothing: half a record spoils the next.

        Raises
        ------
        OSError
            If the disk does not take it; the call may be repeated.
        """
        if self._is_new is None:
            self._is_new = not self._path.exists()
        with self._open() as file:
            if self._sound_end is not None:
                file.truncate(self._sound_end)
            # Determined every time: optuna-dashboard may have added a note in between.
            self._sound_end = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) :]
                _sync(file.fileno())
                if self._is_new:
                    _sync_folder(self._path.parent)
            except OSError:
                with suppress(OSError):
                    file.truncate(self._sound_end)
                    self._sound_end = None
                raise
            self._sound_end, self._is_new = None, False

    def _open(self) -> FileIO:
        return self._path.open("ab", buffering=0)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        _sync(folder)
    finally:
        os.close(folder)


def patiently(
    action: Callable[[], T],
    tell: Callable[[OSError], object] = lambda error: None,
    seconds: float = 600.0,
) -> T:
    """Repeat an action on a file while its disk is full or out of reach.

    Parameters
    ----------
    action
        Action that changes nothing if it fails.
    tell
        Function called once, with the first error.
    seconds
        Time after the first error in which to repeat the action [s].

    Returns
    -------
    object
        Result of the action.

    Raises
    ------
    Exception
        If the action fails for another reason, or still fails at the end.
    """
    give_up = 0.0
    while True:
        try:
            return action()
        except Exception as error:
            cause, now, is_first = passing(error), time.monotonic(), not give_up
            give_up = give_up or now + seconds
            if cause is None or now >= give_up:
                raise
            if is_first:
                tell(cause)
            time.sleep(SECONDS_BETWEEN_TRIES)


def passing(error: BaseException | None) -> OSError | None:
    """Return the error, or its cause, that a full or unreachable disk raised; None without any."""
    while error is not None and getattr(error, "errno", None) not in PASSING:
        error = error.__cause__
    return error if isinstance(error, OSError) else None


def same_file(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at ``path``.

    Needed after waiting for a lock on a file that the lock's holder may delete.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def drop_torn_record(path: Path) -> int:
    """Remove an incomplete last line that a crash left; return the number of bytes removed.

    Both append-only files of a run hold one JSON record per line. An incomplete record was never
    acted on; left in place, it would merge with the next record and make both unreadable.
    """
    if not is_there(path):
        return 0
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        keep = end
        while keep > 0:
            start = max(0, keep - 4096)
            file.seek(start)
            newline = file.read(keep - start).rfind(b"\n")
            if newline >= 0:
                keep = start + newline + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)
            _sync(file.fileno())
    return end - keep
