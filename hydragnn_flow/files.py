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
    """Create a directory atomically at the end of a ``with`` block that fills a temporary one.

    Yields the temporary directory. A crash leaves the whole directory ``path`` or nothing. If
    another process has created ``path`` in the meantime, the directory of that process stays.
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
    """Delete the temporary files (directories) that killed writers of one have left beside it.

    A process that is still writing a deleted file gets a FileNotFoundError when it has finished.

    Parameters
    ----------
    path
        Path of the file that was to be written; its name may contain wildcards.
    seconds
        Minimum age of a temporary file for it to be deleted, since its last change [s].
    """
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime >= seconds:
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically; a crash leaves the old file or the new one."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        _sync(file.fileno())


def write_json(path: Path, values: Any) -> None:
    """Replace ``path`` atomically by a JSON file of ``values``, indented by one space."""
    write_text(path, json_text(values))


def json_text(values: Any) -> str:
    """Return values as JSON, indented by one space and with a newline at the end."""
    return json.dumps(values, indent=1) + "\n"


def copy_file(source: Path, target: Path) -> None:
    """Copy ``source`` to ``target`` atomically; a crash never leaves an incomplete copy."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            _sync(file.fileno())


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading as bytes.

    A device or FIFO is refused, because reading it may block or never end.

    Raises
    ------
    OSError
        If the file cannot be opened, or is a device, a FIFO or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def modified(path: Path) -> float:
    """Return the Unix time of a file's last change [s]; 0 if the file does not exist.

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
    """Return True if a file exists, False if it does not.

    From Python 3.14 on, `Path.exists` answers False for any error of the disk too, and a caller
    would then make anew a file that exists.

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
    """File to which records are appended; a record is on disk when :meth:`append` returns.

    The file is opened for each record, so that a shared file system may disconnect in between.

    Parameters
    ----------
    path
        Path of the file, which the first record creates.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sound_end: int | None = None
        self._is_new: bool | None = None

    def append(self, content: bytes) -> None:
        """Append a record, newline included, or leave the file unchanged if the disk refuses it.

        Half a record would make the next one unreadable.

        Raises
        ------
        OSError
            If the disk does not take the record; the call may be repeated.
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
    """Repeat an action on a file as long as its disk is full or out of reach.

    Parameters
    ----------
    action
        Function without arguments that changes nothing if it fails.
    tell
        Function called once, with the first error of the disk.
    seconds
        Longest time from the first error to the last attempt [s].

    Returns
    -------
    object
        Result of the action.

    Raises
    ------
    Exception
        If the action fails for another reason, or still fails after ``seconds``.
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
    """Return the OSError of a full or unreachable disk that is ``error`` or one of its causes.

    The result is None if there is no such error.
    """
    while error is not None and getattr(error, "errno", None) not in PASSING:
        error = error.__cause__
    return error if isinstance(error, OSError) else None


def same_file(descriptor: int, path: Path) -> bool:
    """Return True if the open file of a descriptor is still the file at ``path``.

    The result is False if the open file was deleted or replaced, as the holder of a lock may do
    while others wait for it.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def drop_torn_record(path: Path) -> int:
    """Remove a file's incomplete last line, left by a crash; return how many bytes were removed.

    The number is 0 if the file is missing or ends with a newline. Ledger and study of a run hold
    one JSON record per line. The next record would be appended to an incomplete line, and both
    records would be unreadable.
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
