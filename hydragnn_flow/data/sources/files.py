"""From a name in the configuration to the files it means, and from files to ranges."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from hydragnn_flow.errors import InputError


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


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Numbers in a path compare as numbers; the path itself decides between 1 and 01."""
    pieces = re.split(r"([0-9]+)", str(path))
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], str(path)
