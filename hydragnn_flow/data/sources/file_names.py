"""Files of a source: the section that names them, their search, and ranges of structures."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, get_args

from pydantic import AfterValidator, Field

from hydragnn_flow.config.sources import Level, Role, SourceSection, TargetConfig, Targets
from hydragnn_flow.errors import InputError


def _without_nul(name: str) -> str:
    if "\0" in name:
        raise ValueError(f"no file has a NUL in its name, got {name!r}")
    return name


FileName = Annotated[str, Field(min_length=1), AfterValidator(_without_nul)]


def _with_levels(targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    """Return the targets if each has a level; raise ValueError otherwise."""
    for name, target in targets.items():
        if target.level is None:
            raise ValueError(
                f"{name} needs a level, graph or node, as in "
                f"{name}: {{unit: {target.unit!r}, level: graph}}"
            )
    return targets


LevelledTargets = Annotated[Targets, AfterValidator(_with_levels)]
"""Targets of files whose arrays do not state their level."""


class FilesSection(SourceSection):
    """Configuration section `data.source` for formats with files: files by split, targets."""

    train: FileName
    """File, glob or directory for training. Splits without files of their own are drawn from it."""
    val: FileName | None = None
    """File, glob or directory for validation."""
    calibration: FileName | None = None
    """File, glob or directory of structures only for the weights and error bars of the ensemble."""
    test: FileName | None = None
    """File, glob or directory for the final test."""
    targets: Targets
    """Targets by name: the unit of each, or its unit and its key in the files."""

    def check_files(self, folder: Path) -> None:
        """Raise InputError if a file name of the section matches no file.

        The error is also raised if the first match cannot be read. ``folder`` is the directory of
        the data.
        """
        for role, name in _names(self).items():
            first = next(matching(name, folder), None)
            if first is None:
                raise no_file(name, folder, f"data.source.{role}")
            _check_readable(first, f"data.source.{role}")

    @property
    def roles(self) -> tuple[Role, ...]:
        """Splits (``train``, ``val``, …) for which the section names files."""
        return tuple(_names(self))

    @property
    def target_levels(self) -> dict[str, Level | None]:
        """Level (``graph`` or ``node``) of each target by name; None if the section gives none."""
        return {name: target.level for name, target in self.targets.items()}


def files_by_role(
    section: FilesSection, folder: Path, suffixes: Collection[str] = ()
) -> dict[Role, list[Path]]:
    """Return the data files for each role, the split that they are meant for.

    Training is first. Roles without files of their own are left out.

    Parameters
    ----------
    section
        Section with the names of the files.
    folder
        Directory of the data.
    suffixes
        Suffixes of the files to take from a directory or a glob; by default all.

    Raises
    ------
    InputError
        In the cases of :func:`find_files`, and if no file of a role has one of the suffixes.
    """
    found: dict[Role, list[Path]] = {}
    for role, name in _names(section).items():
        found[role] = find_files(name, folder, f"data.source.{role}")
        if suffixes and found[role] != [folder / name]:
            found[role] = [path for path in found[role] if path.suffix.lower() in suffixes]
        if not found[role]:
            raise InputError(
                f"{folder / name} (data.source.{role}) has no files that end in "
                f"{', '.join(sorted(suffixes))}; name a directory or pattern that has some"
            )
    return found


def find_files(name: str, folder: Path, key: str) -> list[Path]:
    """Return the files that a file name, a glob or a directory matches.

    Hidden files are left out, unless ``name`` is that of a hidden file. Files are in natural order:
    ``run-2`` before ``run-10``.

    Parameters
    ----------
    name
        Name relative to ``folder``, or absolute. ``**`` matches any folders between.
    folder
        Directory of the data.
    key
        Key of the configuration that holds the name, for messages.

    Raises
    ------
    InputError
        If no file matches, or any file that matches cannot be read.
    """
    found = list(matching(name, folder))
    if not found:
        raise no_file(name, folder, key)
    for file in found:
        _check_readable(file, key)
    return sorted(found, key=natural_order)


def ranges(n: int, least: int, most: int) -> list[tuple[int, int]]:
    """Return ranges [start, stop) of equal size that cover ``n`` structures.

    The last range may be smaller.

    Parameters
    ----------
    n
        Number of structures to divide.
    least
        Minimum size of a range: smaller ranges are not worth a task of their own.
    most
        Maximum number of ranges: reading a range costs a walk through all structures before it.
    """
    size = max(least, -(-n // most))
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def _names(section: FilesSection) -> dict[Role, str]:
    return {role: name for role in get_args(Role) if (name := getattr(section, role)) is not None}


def matching(name: str, folder: Path) -> Iterator[Path]:
    """Return the files that a file name, a glob or a directory matches, in no certain order."""
    path = folder / name
    if path.is_dir():
        return (file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
    if glob.has_magic(name) and not path.exists():
        # Path.glob would find hidden files, and takes no absolute pattern.
        matches = glob.iglob(name, root_dir=folder, recursive=True)  # noqa: PTH207
        return (file for match in matches if (file := folder / match).is_file())
    return iter([path] if path.is_file() else [])


def no_file(name: str, folder: Path, key: str) -> InputError:
    """Return the error for a file name that matches no file.

    ``key`` is the key of the configuration with the name, ``folder`` the directory of the data.
    """
    return InputError(
        f"{folder / name} ({key}) matches no files that can be read; correct the name, or give the "
        "directory it is in with --data"
    )


def _check_readable(file: Path, key: str) -> None:
    if not os.access(file, os.R_OK):
        raise InputError(f"{file} ({key}) cannot be read; allow reading it or leave it out")


def natural_order(path: Path) -> tuple[list[str | int], str]:
    """Return a sort key of a path that compares numbers in the path by value: 2 before 10.

    The text of the path decides between 1 and 01.
    """
    pieces = re.split(r"([0-9]+)", str(path))
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], str(path)
