"""Periodic neighbour lists, and structures moved near the origin so that float32 is enough.

A network sees only the vectors of edges: differences of two positions. Single precision resolves a
position to 6e-8 of its size, which is 0.001 Å at 10,000 Å. Atoms of a molecular dynamics without
wrapping travel that far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vesin import NeighborList


@dataclass(frozen=True)
class Neighbours:
    """Directed edges between the atoms of one structure.

    The vector of edge ``e`` is
    ``positions[receivers[e]] - positions[senders[e]] + shifts[e]``, the convention of HydraGNN.
    """

    senders: NDArray[np.int64]
    """Atom at which each edge begins, [n_edges]."""
    receivers: NDArray[np.int64]
    """Atom at which each edge ends, [n_edges]."""
    shifts: NDArray[np.float64]
    """Cartesian lattice vector added to the difference of positions [Å], [n_edges, 3]."""
    distances: NDArray[np.float64]
    """Length of each edge [Å], [n_edges]."""


def neighbour_list(
    positions: NDArray[np.float64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
    cutoff: float,
    max_neighbours: int | None = None,
) -> Neighbours:
    """Find all pairs of atoms closer than ``cutoff``, periodic images included.

    Parameters
    ----------
    positions
        Cartesian positions [Å], [n_atoms, 3]; they need not be inside the cell.
    cell
        Lattice vectors in rows [Å], [3, 3]; rows of directions that are not periodic are ignored.
    pbc
        Mask of periodic directions, [3].
    cutoff
        Maximum length of an edge [Å].
    max_neighbours
        Number of nearest neighbours to keep of each receiver; None keeps all. Neighbours as near as
        the last one kept are kept too: otherwise the graph would depend on the order of the atoms.

    Returns
    -------
    Neighbours
        Edges, one in each direction of a pair unless ``max_neighbours`` leaves it out, sorted by
        receiver, distance, sender and periodic image.
    """
    n_atoms = len(positions)
    search = NeighborList(cutoff=cutoff, full_list=True, n_threads=1)
    senders, receivers, images, distances = search.compute(
        points=positions, box=cell, periodic=pbc, quantities="ijSd"
    )
    senders = senders.astype(np.int64)
    receivers = receivers.astype(np.int64)
    images = images.reshape(-1, 3).astype(np.int64)

    order = np.lexsort((images[:, 2], images[:, 1], images[:, 0], senders, distances, receivers))
    if max_neighbours is not None:
        order = order[_nearest(receivers[order], distances[order], n_atoms, max_neighbours)]
    return Neighbours(
        senders=senders[order],
        receivers=receivers[order],
        shifts=images[order] @ np.where(pbc[:, None], cell, 0.0),
        distances=distances[order],
    )


def _nearest(
    receivers: NDArray[np.int64], distances: NDArray[np.float64], n_atoms: int, k: int
) -> NDArray[np.bool_]:
    """Return True for the edges to keep: the k nearest of each receiver, and ties, [n_edges].

    The edges must be sorted by receiver and distance.
    """
    degree = np.bincount(receivers, minlength=n_atoms)
    first = np.cumsum(degree) - degree
    furthest = np.full(n_atoms, np.inf)
    crowded = degree > k
    # Those within a millionth of the k-th count as equally near: wide enough for the rounding of
    # symmetry-equivalent distances, narrow enough not to reach the next shell.
    furthest[crowded] = distances[first[crowded] + k - 1] * (1.0 + 1e-6)
    kept: NDArray[np.bool_] = distances <= furthest[receivers]
    return kept


Vectors = NDArray[np.float64]

INEXACT = 1e-4
"""Largest error of a length in single precision, relative to the longest edge."""


def near_origin(
    positions: Vectors, cell: NDArray[np.float64], pbc: NDArray[np.bool_]
) -> tuple[Vectors, Vectors]:
    """Wrap atoms into the cell, and bring a distant structure to the origin.

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
        others the structure is moved if it is several times as far from the origin as it is long,
        by a multiple of a power of two, so that its coordinates keep their digits. A structure near
        the origin stays as it is.
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

    If it does not, the search for neighbours is not safe either: atoms that are a hundred thousand
    cutoffs apart crash the process.
    """
    return float(np.abs(positions).max()) * 2.0**-24 <= INEXACT * longest
