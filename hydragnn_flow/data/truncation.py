"""Truncated neighbour lists: counted when they are made, reported, refused in potentials.

A list of the nearest few neighbours ends where the next one is just a little further away. When
atoms move, neighbours trade places at the end of the list, with their full weight: the energy
jumps, and its gradient does not include the jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.positions import INEXACT


@dataclass(frozen=True)
class Truncation:
    """Counts of neighbours within the cutoff that truncated neighbour lists leave out."""

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
        """Return True if a neighbour closer than ``cutoff`` is left out."""
        return self.nearest is not None and self.nearest < cutoff

    def sentence(self, cutoff: float, max_neighbours: int | None) -> str:
        """Return a sentence on the share of neighbours within the cutoff that is left out.

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
        """Return the error message that refuses truncated lists for a potential, with remedies.

        ``so_far`` is True if only some of the structures have been counted yet.
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
    """Return the counts for complete lists; ``kept`` has each atom's neighbours [n_atoms]."""
    return Truncation(of_atoms=len(kept), of_edges=int(kept.sum()), most=int(kept.max(initial=0)))


def _percentage(n: int, of: int) -> str:
    percent = 100 * n / max(of, 1)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"
