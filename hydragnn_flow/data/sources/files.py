"""From a name in the configuration to the files it means, and from files to ranges."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection
from pathlib import Path

from hydragnn_flow.config.graph_sources import FilesSection
from hydragnn_flow.data.sources.base import Role
from hydragnn_flow.errors import InputError


def files_by_role(
    section: FilesSection, folder: Path, suffixes: Collection[str] = ()
) -> dict[Role, list[Path]]:
    """The files of each role that has some, training first.

    Parameters
    ----------
    section
        Says what they are called.
    folder
        Directory of the data.
    suffixes
        Endings of the files to take from a directory or a glob; by default all.

    Raises
    ------
    InputError
        As :func:`find_files`, and where no file has such an ending.
    """
    names: dict[Role, str | None] = {
        "train": section.train,
        "val": section.val,
        "test": section.test,
    }
    return {
        role: _chosen(name, folder, f"data.source.{role}", suffixes)
        for role, name in names.items()
        if name is not None
    }


def find_files(name: str, folder: Path, key: str) -> list[Path]:
    """The files that a file name, a glob or a directory stands for.

    Hidden files are left out, unless they are named. Files come in the order a person would put
    them: ``run-2`` before ``run-10``.

    Parameters
    ----------
    name
        Relative to ``folder``, or absolute. ``**`` stands for any folders between.
    folder
        Directory of the data.
    key
        Key of the configuration that holds the name, for messages.

    Raises
    ------
    InputError
        Where there is no such file, or one cannot be read.
    """
    path = folder / name
    if path.is_dir():
        found = [file for file in path.iterdir() if file.is_file() and file.name[0] != "."]
        nothing = f"{path} ({key}) is a directory without files; name one that has some"
    elif glob.has_magic(name) and not path.exists():
        # Path.glob would find hidden files, and takes no absolute pattern.
        matches = glob.iglob(name, root_dir=folder, recursive=True)  # noqa: PTH207
        found = [file for match in matches if (file := folder / match).is_file()]
        nothing = f"{path} ({key}) matches no files; correct the pattern or the directory (--data)"
    else:
        found = [path] if path.is_file() else []
        nothing = (
            f"{path} ({key}) is not a file that can be read; "
            "correct the name or give the directory it is in with --data"
        )
    if not found:
        raise InputError(nothing)
    for file in found:
        if not os.access(file, os.R_OK):
            raise InputError(f"{file} ({key}) cannot be read; allow reading it or leave it out")
    return sorted(found, key=_natural)


def ranges(n: int, least: int, most: int) -> list[tuple[int, int]]:
    """Cut ``n`` structures into ranges of one size, the last may be smaller.

    Parameters
    ----------
    n
        Number of structures.
    least
        Size below which a range is not worth a task of its own.
    most
        Number of ranges at most: to enter a file at a structure costs a walk through those before.
    """
    size = max(least, -(-n // most))
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _chosen(name: str, folder: Path, key: str, suffixes: Collection[str]) -> list[Path]:
    found = find_files(name, folder, key)
    if not suffixes or found == [folder / name]:
        return found
    chosen = [path for path in found if path.suffix.lower() in suffixes]
    if not chosen:
        raise InputError(
            f"{folder / name} ({key}) has no files that end in {', '.join(sorted(suffixes))}; "
            "name a directory or pattern that has some"
        )
    return chosen


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Numbers in a path compare as numbers; the path itself decides between 1 and 01."""
    pieces = re.split(r"([0-9]+)", str(path))
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], str(path)
