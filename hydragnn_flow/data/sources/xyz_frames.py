"""Extended XYZ: skipping structures by their numbers of atoms, and reading them with ASE."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    import ase


def count_frames(file: Path) -> int:
    """Count the structures in a file.

    Raises
    ------
    InputError
        If the file ends within a structure, or lines are not in the order of the format.
    """
    return sum(1 for _ in _frames(file))


def read_frames(file: Path, start: int, stop: int | None) -> Iterator[ase.Atoms]:
    """Yield the structures in [start, stop) of a file; to its end if ``stop`` is None.

    The walk to ``start`` costs a hundredth of reading the structures that it skips.

    Raises
    ------
    InputError
        In the same cases as :func:`count_frames`.
    """
    from ase.io import iread

    for frame in islice(_frames(file), start, stop):
        yield from iread(StringIO(frame.decode()), index=slice(0, 1), format="extxyz")


def _frames(file: Path) -> Iterator[bytes]:
    from ase.io.formats import open_with_compression

    with open_with_compression(str(file), "rb") as lines:
        line, number = lines.readline(), 0
        while line.strip():
            where = f"{file}: structure {number}"
            n_atoms = int(line) if line.strip().isdigit() else None
            if n_atoms is None:
                said = line.strip()[:40].decode(errors="replace")
                raise InputError(
                    f"{where} begins with {said!r}, not with its number of atoms; "
                    "correct the number of atoms before it, or this line"
                )
            frame = [line, *islice(lines, n_atoms + 1)]
            if len(frame) < n_atoms + 2:
                raise InputError(
                    f"{where} cannot be read: the file ends before its {n_atoms} atoms do; "
                    "complete or remove it"
                )
            line = lines.readline()
            while line.lstrip().startswith(b"VEC"):  # a cell below the atoms
                frame.append(line)
                line = lines.readline()
            yield b"".join(frame)
            number += 1
        # ASE takes an empty line for the end and would skip all that follows.
        if any(rest.strip() for rest in lines):
            raise InputError(
                f"{file}: structure {number} comes after an empty line; remove the line"
            )
