"""Files that survive a crash: replaced at once, or appended to line by line."""

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

# Errors of a disk that is full or away, and those of a shared file system that sockets also have.
DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
PASSING = (*DISKS, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN)
SECONDS_BETWEEN_TRIES = 1.0


_is_synced = ContextVar("is_synced", default=True)


@contextmanager
def unsynced() -> Iterator[None]:
    """Leave it to the system when what this thread writes in a ``with`` block is on disk.

    For files that can be made again, such as those of a simulation.
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
    """Replace ``path`` at once, at the end of a ``with`` block that writes a temporary file.

    A crash leaves the old file or the new one.

    Yields
    ------
    Path
        The temporary file, on the same disk.
    """
    # A name of its own: processes on several nodes, with the same number even, may write at once.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Make a directory at once, at the end of a ``with`` block that fills a temporary one.

    A crash leaves all of it or nothing. If another process is faster, its directory stays.
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
        The file, or files.
    seconds
        Time since the last change of those that are deleted [s].
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime >= seconds:
                left.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` at once; a crash leaves the old file or the new one."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        _sync(file.fileno())


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` by ``values`` as JSON at once."""
    write_text(path, json_text(values))


def json_text(values: Any) -> str:
    """What :func:`write_json` writes."""
    return json.dumps(values, indent=1) + "\n"


def copy_file(source: Path, target: Path) -> None:
    """Make ``target`` a copy of ``source`` at once; a crash leaves no part of one."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            _sync(file.fileno())


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read; one that has no end, or waits for a writer, is refused.

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
    """Unix time of a file's last change [s]; 0 if there is no file.

    Raises
    ------
    OSError
        If the disk does not say.
    """
    try:
        return path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def is_there(path: Path) -> bool:
    """Whether there is a file; an error of the disk is no answer.

    From Python 3.14 on `Path.exists` takes any error for an absence, and absent files are begun
    anew.

    Raises
    ------
    OSError
        If the disk does not say.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class AppendOnly:
    """A file that only grows, by records that are on disk when they are said to be.

    It is opened anew each time, so that a shared file system may go away and come back.

    Parameters
    ----------
    path
        The file; made by the first record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sound_end: int | None = None
        self._is_new: bool | None = None

    def append(self, content: bytes) -> None:
        """All of the content or, after an error, nothing: half a record would spoil the next.

        Raises
        ------
        OSError
            If the disk does not take it; the same call may be made again.
        """
        if self._is_new is None:
            self._is_new = not self._path.exists()
        with self._open() as file:
            if self._sound_end is not None:
                file.truncate(self._sound_end)
            # Asked for every time: a note from optuna-dashboard may have come in between.
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
    """Read or change a file, again and again while the disk is full or out of reach.

    Parameters
    ----------
    action
        What to do; where it fails it has changed nothing.
    tell
        Called once, with the first error.
    seconds
        How long to keep trying, from the first error on.

    Returns
    -------
    object
        What the action returned.

    Raises
    ------
    Exception
        If it fails for another reason, or still does at the end.
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
    """The error, or what it came of, if that is a disk's that is full or away: nobody's fault."""
    while error is not None and getattr(error, "errno", None) not in PASSING:
        error = error.__cause__
    return error if isinstance(error, OSError) else None


def same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that is at ``path`` now.

    A process that has waited for a lock on a file that its holder may delete has to ask this.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def drop_torn_record(path: Path) -> int:
    """Cut a last line that a crash left without its newline; returns the bytes removed.

    Both of the run's append-only files hold one JSON record per line. A record without its newline
    was never acted on; left in place, the next record would be glued to it and neither could be
    read again.
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
