"""Edges of structures: neighbour lists, positions that resolve them, neighbours left out.

A network sees only the vectors of edges: differences of two positions. Single precision resolves a
position to 6e-8 of its distance from the origin, which is 0.001 Å at 10,000 Å. Atoms of a molecular
dynamics without wrapping travel that far.

A list of the nearest few neighbours ends where the next one is just a little further away. When
atoms move, neighbours trade places at the end of the list, with their full weight: the energy
jumps, and its gradient does not include the jump. Such lists are counted when they are made,
reported, and refused in potentials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float64]

INEXACT = 1e-4
"""Largest error of a length in single precision, relative to the longest edge."""


def near_origin(
    positions: Vectors, cell: NDArray[np.float64], pbc: NDArray[np.bool_]
) -> tuple[Vectors, Vectors]:
    """Wrap atoms into the periodic cell, and move a distant structure near the origin.

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
    """Return True if float32 resolves ``positions`` for edges of the length ``longest``.

    The rounding error of a position must be at most 1e-4 of ``longest``, a length in the unit of
    the positions. If the result is False, the search for neighbours is not safe either: atoms that
    are a hundred thousand cutoffs apart crash the process.
    """
    return float(np.abs(positions).max()) * 2.0**-24 <= INEXACT * longest


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
    from vesin import NeighborList  # here, as sections of sources import this module

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


@dataclass(frozen=True)
class Truncation:
    """Counts of neighbours within the cutoff that truncated neighbour lists leave out.

    A truncated list has only some of an atom's neighbours, such as the nearest few.
    """

    atoms: int = 0
    """Number of atoms with an incomplete list."""
    of_atoms: int = 0
    """Number of all atoms."""
    edges: int = 0
    """Number of neighbours left out."""
    of_edges: int = 0
    """Number of neighbours within the cutoff, left out or not."""
    most: int = 0
    """Largest number of neighbours of an atom within the cutoff."""
    nearest: float | None = None
    """Distance of the nearest neighbour left out [Å]; a smaller cutoff would leave out none. None
    if no neighbour is left out."""

    def __add__(self, other: Truncation) -> Truncation:
        distances = [d for d in (self.nearest, other.nearest) if d is not None]
        return Truncation(
            atoms=self.atoms + other.atoms,
            of_atoms=self.of_atoms + other.of_atoms,
            edges=self.edges + other.edges,
            of_edges=self.of_edges + other.of_edges,
            most=max(self.most, other.most),
            nearest=min(distances, default=None),
        )

    def reaches(self, cutoff: float) -> bool:
        """Return True if the lists leave out a neighbour closer than ``cutoff`` [Å]."""
        return self.nearest is not None and self.nearest < cutoff

    def sentence(self, cutoff: float, max_neighbours: int | None) -> str:
        """Return a sentence for users on the share of neighbours that the lists leave out.

        ``max_neighbours`` is the setting that left neighbours out; None if the data bring their own
        edges.
        """
        what = f"max_neighbours = {max_neighbours} leaves"
        if max_neighbours is None:
            what = "the edges that the data bring leave"
        edges = _percentage(self.edges, self.of_edges)
        atoms = _percentage(self.atoms, self.of_atoms)
        return (
            f"{what} out {edges} of the neighbours within the radius of {cutoff:g}, at {atoms} of "
            f"the atoms, which have up to {self.most}"
        )

    def refusal(self, cutoff: float, max_neighbours: int | None, *, so_far: bool = False) -> str:
        """Return the error message that rejects truncated neighbour lists for a potential.

        The message names remedies. ``so_far`` is True if only some of the structures have been
        counted yet.
        """
        more = " (so far)" if so_far else ""
        remedies = []
        if max_neighbours is not None:
            remedies.append(f"remove it or write {self.most} or more{more}")
        if self.nearest is not None:
            shorter = np.floor(self.nearest * 1000) / 1000  # must not be reached
            remedies.append(f"lower Architecture.radius to {shorter:g}{more}")
        remedies.append("or accept the jumps with Architecture.truncated_neighbours: allow")
        return (
            f"network: Architecture.enable_interatomic_potential needs whole neighbour lists, as "
            f"forces are not the gradient of an energy that jumps where neighbours change places, "
            f"but {self.sentence(cutoff, max_neighbours)}; {', '.join(remedies)}"
        )


def count_truncation(
    kept: NDArray[np.int64],
    lengths: NDArray[np.floating[Any]],
    receivers: NDArray[np.int64],
    distances: NDArray[np.float64],
    n_atoms: int,
) -> Truncation:
    """Count the neighbours within the cutoff that the neighbour lists of a structure leave out.

    The lists need not hold the nearest neighbours: other programs truncate them differently.

    Parameters
    ----------
    kept, lengths
        Receivers and lengths [Å] of the edges in the lists, [n_kept], in any order.
    receivers, distances
        Receivers and lengths [Å] of the edges from all neighbours within the cutoff, [n_edges],
        sorted by receiver and distance.
    n_atoms
        Number of atoms of the structure.
    """
    listed, found = np.bincount(kept, minlength=n_atoms), np.bincount(receivers, minlength=n_atoms)
    left_out = np.maximum(found - listed, 0)
    # Neighbours are compared by rank with those in the list. From the first missing one on, the
    # listed ones are farther.
    rank = np.arange(len(receivers)) - (np.cumsum(found) - found)[receivers]
    same_rank = np.full(len(receivers), np.inf)
    is_listed = rank < listed[receivers]
    place = (np.cumsum(listed) - listed)[receivers] + rank
    same_rank[is_listed] = lengths[np.lexsort((lengths, kept))][place[is_listed]]
    missing = (same_rank > distances * (1 + INEXACT)) & (left_out > 0)[receivers]
    return Truncation(
        atoms=int(np.count_nonzero(left_out)),
        of_atoms=n_atoms,
        edges=int(left_out.sum()),
        of_edges=int(np.maximum(found, listed).sum()),
        most=int(found.max(initial=0)),
        nearest=float(distances[missing].min()) if missing.any() else None,
    )


def whole(kept: NDArray[np.int64]) -> Truncation:
    """Return the counts for neighbour lists that are complete: no neighbour is left out.

    ``kept`` has the number of neighbours in the list of each atom, [n_atoms].
    """
    return Truncation(of_atoms=len(kept), of_edges=int(kept.sum()), most=int(kept.max(initial=0)))


def _percentage(n: int, of: int) -> str:
    percent = 100 * n / max(of, 1)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
