"""Structures as extended XYZ that can be read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import ase.io
from ase import Atoms
from numpy.typing import NDArray


def extended_xyz(structures: Sequence[Atoms]) -> str:
    """Structures with their results, information and columns as extended XYZ.

    The format ends a structure's information at a line break and a cell of a column at a blank:
    line breaks become blanks, and columns are left out that have blank or empty words, complex
    numbers or tensors.
    """
    text = StringIO()
    ase.io.write(text, [_writable(atoms) for atoms in structures], format="extxyz")
    return text.getvalue()


def numbered_frames(file: Path, key: str, first: int) -> Iterator[str]:
    """The structures of a file that :func:`extended_xyz` made, with their numbers under a key.

    Parameters
    ----------
    file
        The file.
    key
        Name of the number among what is said of a structure; it is not there yet.
    first
        Number of the first structure.
    """
    with file.open(encoding="utf-8", newline="\n") as lines:
        for number, n_atoms in enumerate(lines, first):
            said = next(lines).rstrip("\n")
            atoms = "".join(islice(lines, int(n_atoms)))
            yield f"{n_atoms}{said} {key}={number}\n{atoms}"


def _writable(atoms: Atoms) -> Atoms:
    writable: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # ASE has no types
    writable.calc = atoms.calc
    for key, value in atoms.info.items():
        if isinstance(value, str):
            writable.info[key] = " ".join(value.splitlines())
    for key, values in atoms.arrays.items():
        if not _is_column(values):
            del writable.arrays[key]
    return writable


def _is_column(values: NDArray[Any]) -> bool:
    if values.dtype.kind in "biuf":
        return values.ndim <= 2
    if values.dtype.kind in "OSU":
        return values.ndim == 1 and all(str(word).split() == [str(word)] for word in values)
    return False
