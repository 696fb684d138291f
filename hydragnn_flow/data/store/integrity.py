"""Sizes and checksums, verified in Python before ADIOS2 opens a file.

BP5 has no checksum of its own, and a damaged file can hang ADIOS2, crash the process or be read as
wrong numbers; so a file that differs from the one written is not opened.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from hydragnn_flow.errors import StoreError

_CHUNK = 1 << 24


class FileRecord(BaseModel):
    """Size and checksum of a file when it was written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    """Bytes."""
    crc32: int
    """CRC-32 of all bytes, as ``zlib.crc32``."""


def describe_files(folder: Path) -> dict[str, FileRecord]:
    """Size and checksum of every file in a folder, by name."""
    return {
        path.name: FileRecord(size=path.stat().st_size, crc32=checksum(path))
        for path in sorted(folder.iterdir())
    }


def is_payload(name: str) -> bool:
    """Whether a file of a BP5 directory holds data, not metadata; these are the long ones."""
    return name.startswith("data.")


def verify_presence(folder: Path, records: Mapping[str, FileRecord]) -> None:
    """Raise StoreError where a file is missing or has another size than recorded."""
    for name, record in records.items():
        path = folder / name
        if not path.is_file():
            raise damaged(path, "is missing")
        size = path.stat().st_size
        if size != record.size:
            raise damaged(path, f"has {size} bytes instead of {record.size}")


def verify_checksum(path: Path, record: FileRecord) -> None:
    """Raise StoreError where the bytes of a file are not those recorded."""
    if checksum(path) != record.crc32:
        raise damaged(path, "has changed since it was written (its checksum differs)")


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file of a store that cannot be trusted."""
    return StoreError(
        f"{path} {what}: the store is damaged; delete it and prepare it again, or restore a copy"
    )


def fsync_tree(folder: Path) -> None:
    """Force a folder with all its files to disk, so that a rename after it commits whole files."""
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


def checksum(path: Path, begin: int = 0, end: int | None = None) -> int:
    """CRC-32 of the bytes of a file from ``begin`` to ``end``."""
    value = 0
    with path.open("rb") as file:
        file.seek(begin)
        left = path.stat().st_size - begin if end is None else end - begin
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            value = zlib.crc32(chunk, value)
            left -= len(chunk)
    return value
