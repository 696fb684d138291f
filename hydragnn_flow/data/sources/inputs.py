"""Opening of a configuration's source, and the fingerprint of its files."""

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
"""Bytes of input up to which the content is part of the fingerprint."""
_CHUNK = 1 << 24


def open_source(config: DataConfig, seed: int) -> Source:
    """Return the reader of a configuration's data sets, without opening a file.

    Parameters
    ----------
    config
        Source, and directory of its files; by default the working directory.
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
            # Two data sets must not generate the same structures.
            opened[one.name] = one.source.open(config.folder, seed + number)
        except InputError:
            raise
        except Exception as error:  # a user's code may raise any exception
            raise InputError(
                f"data.source: {one.source.format} cannot be opened: "
                f"{' '.join(repr(error).split())}; correct its method open"
            ) from error
    if config.sources is None:
        (source,) = opened.values()
        return source
    return JoinedSources(opened)


def fingerprint(config: DataConfig) -> dict[str, Any]:
    """Compute a fingerprint of a source's files, to notice changes.

    Names, relative to the data's directory, and sizes always count. The content counts if all files
    together have 1 GiB or less; for larger input the times of the last change count instead,
    because reading terabytes at every start would cost more than it protects. Large input that is
    copied without its times therefore counts as other input.

    Returns
    -------
    dict
        Counts ``files`` and ``bytes``, and ``crc32``; all 0 if a source generates structures.

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
        # The source gives a better message: it knows the file's purpose and key.
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
