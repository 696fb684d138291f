"""Integrity of files: built next to their final name, renamed whole, verified before they are read.

BP5 has no checksum of its own, and a damaged file can hang ADIOS2, crash the process or be read as
wrong numbers; so a file that differs from the one written is not opened.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from hydragnn_flow.errors import StoreError
from hydragnn_flow.locks import Held, Unlockable, locked

# Other files in a .bp are timings, and files that a file system adds.
_OF_BP5 = ("data.", "md.", "mmd.")


class FileRecord(BaseModel):
    """Size and checksum of a file when it was written, or when it was first used in place."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    """Size of the file [bytes]."""
    crc32: int | None
    """CRC-32 of all bytes, as ``zlib.crc32``; None for the payload of a HydraGNN file, whose
    checksum would take as long as reading terabytes."""
    modified: int | None = None
    """Time of the last change [ns], for a file in place without a checksum."""


def describe_files(folder: Path, *, in_place: bool = False) -> dict[str, FileRecord]:
    """Return size and checksum of every file in a folder, by file name.

    Only BP5's own files of a HydraGNN ``.bp`` used ``in_place`` are described, with the times of
    their last change. The payload (arrays of graphs) gets no checksum, as it may be terabytes.
    """
    described = {}
    for path in sorted(folder.iterdir()):
        if not in_place or path.name.startswith(_OF_BP5):
            found = path.stat()
            described[path.name] = FileRecord(
                size=found.st_size,
                crc32=None if in_place and is_payload(path.name) else checksum(path),
                modified=found.st_mtime_ns if in_place else None,
            )
    return described


def is_payload(name: str) -> bool:
    """Return True if a file of this name in a BP5 directory holds payload: arrays of graphs."""
    return name.startswith("data.")


def verify_presence(
    folder: Path, records: Mapping[str, FileRecord], *, in_place: bool = False
) -> None:
    """Raise StoreError if a file is missing, or has another size or time of change than recorded.

    ``records`` has the record of each file in ``folder``, by name. ``in_place`` is True if the
    store does not own the files.
    """
    for name, record in records.items():
        path = folder / name
        if not path.is_file():
            raise damaged(path, "is missing", in_place=in_place)
        found = path.stat()
        if found.st_size != record.size:
            what = f"has {found.st_size} bytes instead of {record.size}"
            raise damaged(path, what, in_place=in_place)
        if record.modified not in (None, found.st_mtime_ns):
            raise damaged(path, "has changed since the store was prepared", in_place=in_place)


def verify_checksum(path: Path, record: FileRecord, *, in_place: bool = False) -> None:
    """Raise StoreError if the bytes of a file differ from its recorded checksum, if there is one.

    ``in_place`` is True if the store does not own the file.
    """
    if record.crc32 is not None and checksum(path) != record.crc32:
        what = "has changed since it was written (its checksum differs)"
        raise damaged(path, what, in_place=in_place)


def damaged(path: Path, what: str, *, in_place: bool = False) -> StoreError:
    """Return the StoreError for a damaged file of a store.

    Its message begins with ``path`` and ``what``, the damage. ``in_place`` is True if the store
    does not own the file, which must then not be deleted.
    """
    if in_place:  # it is not the store's to be deleted
        return StoreError(
            f"{path} {what}, and a store uses it in place; restore it from a copy, or delete that "
            "store, but not this file, and prepare it again"
        )
    return StoreError(
        f"{path} {what}: the store is damaged; delete it and prepare it again, or restore a copy"
    )


def fsync_tree(folder: Path) -> None:
    """Force a folder with all its files to disk.

    If the folder is renamed afterwards, its new name has whole files.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(parent) / name)
        fsync_path(Path(parent))


def fsync_path(path: Path) -> None:
    """Force one file, or the entries of one folder (a rename within it), to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path, begin: int = 0, end: int | None = None, before: int = 0) -> int:
    """Return the CRC-32 of a file's bytes in [begin, end), by default of all bytes.

    ``before`` is the CRC-32 of preceding data, which the result then includes.
    """
    value = before
    with path.open("rb") as file:
        file.seek(begin)
        left = path.stat().st_size - begin if end is None else end - begin
        while left > 0 and (chunk := file.read(min(left, 1 << 24))):
            value = zlib.crc32(chunk, value)
            left -= len(chunk)
    return value


Work = Literal["preparing", "writing"]


def building_of(path: Path, work: Work) -> Path:
    """Return the hidden directory, next to the store ``path``, in which the store is built.

    ``work``, ``preparing`` or ``writing``, is the end of the directory's name.
    """
    return path.with_name(f".{path.name}.{work}")


@contextmanager
def alone(path: Path, work: Work) -> Iterator[Path]:
    """Context manager: lock and yield the directory in which the store ``path`` is built.

    The directory is created if need be. Only one process at a time holds the lock. The directory
    stays when the context ends or the process is killed, so that the next process finds it.

    Raises
    ------
    StoreError
        If another process builds ``path`` or has just built it, or the directory cannot be made or
        locked.
    """
    building = building_of(path, work)
    busy = StoreError(f"another process is {work} {path}; wait for it, or choose another directory")
    with ExitStack() as stack:
        try:
            building.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(building / "lock", 0.0))
        except (Held, FileNotFoundError):  # deleted by a process that has just finished
            raise busy from None
        except Unlockable as error:
            raise StoreError(
                f"{path} is on a file system that cannot lock files ({error.strerror}); "
                "choose a directory on another"
            ) from error
        except OSError as error:
            raise StoreError(
                f"{path} cannot be created ({error.strerror}); choose a directory you can write to"
            ) from error
        if path.exists():
            raise busy
        yield building


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Return the StoreError for a path that cannot be written, as on a full disk."""
    return StoreError(
        f"{path} cannot be written ({error.strerror or error}); "
        "free space on its disk, delete what is there or choose another directory"
    )
