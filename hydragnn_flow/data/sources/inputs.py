"""Opening the source of a configuration, and the fingerprint of its files."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data.sources.base import Source
from hydragnn_flow.data.sources.joined import JoinedSources
from hydragnn_flow.errors import InputError

_CONTENT_UP_TO = 1 << 30
"""Bytes of input whose content counts."""
_CHUNK = 1 << 24


def open_source(config: DataConfig, seed: int) -> Source:
    """The reader of a configuration's data sets; no file is opened yet.

    Parameters
    ----------
    config
        Source, and directory of its files; without one they are relative to the working directory.
    seed
        Seed of the run, for structures that are generated.

    Raises
    ------
    InputError
        If the section asks for what cannot be, or the method `open` of a user's section fails.
    """
    opened: dict[str, Source] = {}
    for number, one in enumerate(config.data_sets):
        try:
            # Structures that two data sets generate are not the same.
            opened[one.name] = one.source.open(config.folder, seed + number)
        except InputError:
            raise
        except Exception as error:  # whatever a user's code does
            raise InputError(
                f"data.source: {one.source.format} cannot be opened: "
                f"{' '.join(repr(error).split())}; correct its method open"
            ) from error
    if config.sources is None:
        (source,) = opened.values()
        return source
    return JoinedSources(opened)


def fingerprint(config: DataConfig) -> dict[str, Any]:
    """Describe the files a source reads, to notice when they are others.

    Names, relative to the data's directory, and sizes always count. Their content counts if all
    files together have 1 GiB or less; of larger input the times of the last change count instead,
    because to read terabytes at every start would cost more than it protects. Large input that is
    copied without its times is therefore taken for other input.

    Returns
    -------
    dict
        ``files``, ``bytes`` and ``crc32``, all of them 0 if a source generates structures.

    Raises
    ------
    InputError
        If a file is missing or cannot be read.
    """
    folder = config.path or Path()
    checksum = 0
    try:
        sizes = {file: file.stat() for file in open_source(config, 0).files()}
        total = sum(found.st_size for found in sizes.values())
        for file, found in sizes.items():
            name = os.path.relpath(file, folder)
            by_time = found.st_mtime_ns if total > _CONTENT_UP_TO else 0
            checksum = zlib.crc32(f"{name}\0{found.st_size}\0{by_time}\0".encode(), checksum)
            if total <= _CONTENT_UP_TO:
                checksum = _add_content(file, checksum)
    except OSError as error:
        # A source knows what a file is for, and who names it.
        open_source(config, 0).chunks()
        raise InputError(
            f"{error.filename} cannot be read ({error.strerror}); add it, allow reading it, or "
            "leave out what needs it"
        ) from None
    return {"files": len(sizes), "bytes": total, "crc32": checksum}


def _add_content(file: Path, checksum: int) -> int:
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
