"""Structures as extended XYZ that can be read again, with what was predicted for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.ensemble.predictions_table import ERROR, Column, TargetValues


def extended_xyz(structures: Sequence[Atoms]) -> str:
    """Write structures with their results, information and columns as extended XYZ.

    The format ends a structure's information at a line break and a cell of a column at a blank:
    line breaks become blanks, and columns are left out that have blank or empty words, complex
    numbers or tensors.
    """
    text = StringIO()
    ase.io.write(text, [_writable(atoms) for atoms in structures], format="extxyz")
    return text.getvalue()


def with_predictions(
    structures: Sequence[Atoms],
    said: Mapping[str, Column],
    targets: Mapping[str, TargetValues],
) -> list[Atoms]:
    """Return copies of structures, without calculators, with their predictions.

    Parameters
    ----------
    structures
        Structures that were predicted.
    said
        Words and numbers of each structure for its `info`, by name; nothing where empty.
    targets
        Values of each target: in `info`, or those of atoms in `arrays`.
    """
    ends = np.cumsum([len(atoms) for atoms in structures])
    values = [(name, one.described.level == "node", one.arrays()) for name, one in targets.items()]
    copies = []
    for row, (atoms, end) in enumerate(zip(structures, ends, strict=True)):
        copied: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # ASE has no types
        known = {name: column[row] for name, column in said.items()}
        copied.info |= {name: v for name, v in known.items() if v is not None and v != ""}
        for name, of_atoms, arrays in values:
            place = slice(end - len(atoms), end) if of_atoms else row
            for suffix, array in arrays.items():
                value = array[place, 0] if array.shape[1] == 1 else array[place]
                if not (suffix in ("", ERROR) and np.isnan(value).all()):
                    (copied.arrays if of_atoms else copied.info)[f"{name}{suffix}"] = value
        copies.append(copied)
    return copies


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
