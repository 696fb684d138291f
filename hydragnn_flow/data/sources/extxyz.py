"""Extended XYZ files, as ASE reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import ase
import numpy as np
from ase.io import iread
from numpy.typing import NDArray

from hydragnn_flow.data.sources.labelled import Labelled
from hydragnn_flow.errors import InputError


def read_extxyz(path: Path, names: Iterable[str]) -> list[Labelled]:
    """Read structures and the named labels.

    A label stands in the comment line (of the whole structure) or in a column (of each atom); ASE
    moves those it knows, such as energy and forces, to a calculator.

    Raises
    ------
    InputError
        Naming the file, and the structure where one cannot be read.
    """
    names = list(names)
    structures: list[Labelled] = []
    try:
        for atoms in iread(str(path), index=":", format="extxyz"):
            targets = {name: label for name in names if (label := _label(atoms, name)) is not None}
            atoms.calc = None
            structures.append(Labelled(atoms, targets, str(path), len(structures)))
    except Exception as error:  # ASE's parser raises whatever its lines run into
        raise InputError(
            f"{path}: structure {len(structures)} cannot be read ({error}); correct or remove it"
        ) from error
    return structures


def _label(atoms: ase.Atoms, name: str) -> NDArray[np.float64] | None:
    """A label in the shape of its level, [d] or [n_atoms, d]; None where there is none."""
    results = {} if atoms.calc is None else atoms.calc.results
    if name in atoms.arrays:
        return _per_atom(atoms.arrays[name])
    if name in results:
        value = np.asarray(results[name], dtype=np.float64)
        # Of what ASE moves, forces, charges and the like are per atom; energy, stress and dipole
        # are not, even where their three or six components meet as many atoms.
        whole = name in ("energy", "free_energy", "stress", "dipole", "magmom")
        return value.reshape(-1) if whole else _per_atom(value)
    if name in atoms.info:
        return np.asarray(atoms.info[name], dtype=np.float64).reshape(-1)
    return None


def _per_atom(value: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(value, dtype=np.float64).reshape(len(value), -1)
