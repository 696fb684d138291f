"""Positions near the origin, where single precision resolves them best.

A network sees only the vectors of edges: differences of two positions. Single precision resolves a
position to 6e-8 of its distance from the origin, which is 0.001 Å at 10,000 Å. Atoms of a molecular
dynamics without wrapping travel that far.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]


INEXACT = 1e-4
"""Largest error of a length in single precision, relative to the longest edge."""


def near_origin(
    positions: Vectors, cell: NDArray[np.float64], pbc: NDArray[np.bool_]
) -> tuple[Vectors, Vectors]:
    """Return positions with atoms wrapped into the cell, and a distant structure near the origin.

    Parameters
    ----------
    positions
        Positions of the atoms, [n_atoms, 3] Å, finite.
    cell
        Lattice vectors in rows [3, 3] Å; rows of directions that are not periodic are ignored.
    pbc
        Mask of periodic directions, [3].

    Returns
    -------
    positions
        Moved positions, [n_atoms, 3] Å. Along periodic directions each atom is in the cell. Along
        other directions the structure is moved if it is several times as far from the origin as it
        is long, by a multiple of a power of two, so that its coordinates keep their digits. A
        structure near the origin stays as it is.
    wrapped
        Lattice vector subtracted from each atom's position, [n_atoms, 3] Å.
    """
    lattice = cell[pbc]
    inverse = np.linalg.pinv(lattice)
    # The absolute position along periodic directions has no meaning.
    open_part = positions - (positions @ inverse) @ lattice
    low, high = open_part.min(axis=0), open_part.max(axis=0)
    centre, extent = (low + high) / 2, float((high - low).max())
    away = float(np.abs(centre).max())
    # The extent of one atom, or of a plane of atoms, is rounding error of double precision.
    step = 2.0 ** math.floor(math.log2(extent)) if extent > 1e-12 * away else 1.0
    # A distance of four times the length costs two binary digits.
    if away > max(4 * extent, step):
        positions = positions - np.round(centre / step) * step
    # Rounding may put an atom outside the cell by a millionth of a lattice vector.
    wrapped: Vectors = np.floor(positions @ inverse + 1e-6) @ lattice
    return positions - wrapped, wrapped


def are_resolved(positions: NDArray[np.floating[Any]], longest: float) -> bool:
    """Return True if float32 resolves ``positions`` to 1e-4 of ``longest``, a length in their unit.

    If the result is False, the search for neighbours is not safe either: atoms that are a hundred
    thousand cutoffs apart crash the process.
    """
    return float(np.abs(positions).max()) * 2.0**-24 <= INEXACT * longest
