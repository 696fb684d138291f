"""Periodic neighbour lists of structures."""

from __future__ import annotations

from dataclasses import dataclass

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
    """Index of the atom at which each edge begins, [n_edges]."""
    receivers: NDArray[np.int64]
    """Index of the atom at which each edge ends, [n_edges]."""
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
    """Return a mask, True for each edge to keep, [n_edges].

    Edges to keep come from the ``k`` nearest neighbours of each receiver, and from others as near
    as the last of these. The edges must be sorted by receiver and distance.
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
