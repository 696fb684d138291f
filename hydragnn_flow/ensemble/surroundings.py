"""Surroundings of atoms: number of neighbours by distance, and how unusual it is.

An atom next to a vacancy or in a surface has bonds, elements and volumes that all occur in the
training data, but the numbers of its near and far neighbours do not occur together there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ELEMENTS = len(covalent_radii)
# Distances at which neighbours are counted, in shortest distances of their pair of elements. Finer
# ones find no more vacancies, and their counts vary more with temperature.
_FIRST, _STEP, _SHELLS = 0.8, 0.3, 6
# Means over fewer values than this are shrunk towards the mean of all elements.
_FEW = 5.0
# Directions with less variance, as a fraction of the largest, are dropped as noise.
_LEAST_VARIANCE = 1e-4


def neighbours_in_shells(receiver: Integers, distances: Floats, n_atoms: int) -> Floats:
    """Count the neighbours of each atom by distance, ``[n_atoms, n_shells]``.

    A neighbour between two shells counts for both, more for the nearer one.

    Parameters
    ----------
    receiver
        Atom at which each edge ends, ``[n_edges]``.
    distances
        Lengths of edges in shortest distances of their pair of elements, ``[n_edges]``.
    n_atoms
        Number of atoms in all structures.
    """
    place = (distances - _FIRST) / _STEP
    below = np.floor(place).astype(np.int64)
    above = place - below
    counts = np.zeros(n_atoms * _SHELLS)
    for shell, share in ((below, 1 - above), (below + 1, above)):
        there = (shell >= 0) & (shell < _SHELLS)
        where = receiver[there] * _SHELLS + shell[there]
        counts += np.bincount(where, share[there], len(counts))
    return counts.reshape(n_atoms, _SHELLS)


@dataclass(frozen=True)
class Surroundings:
    """Usual numbers of neighbours in shells by element, and their covariance."""

    usual: Floats
    """Mean number of neighbours by element, ``[119, n_shells]``."""
    whitening: Floats
    """Matrix from differences to independent numbers of variance 1, ``[n_shells, d]``."""

    @classmethod
    def found(cls, batches: Iterable[tuple[Integers, Floats]]) -> Surroundings:
        """Compute means and covariance, in memory that does not grow with the number of atoms.

        Parameters
        ----------
        batches
            Atomic numbers, and neighbours from :func:`neighbours_in_shells`.
        """
        n, sums = np.zeros(_ELEMENTS), np.zeros((_ELEMENTS, _SHELLS))
        squares = np.zeros((_SHELLS, _SHELLS))
        for numbers, counts in batches:
            n += np.bincount(numbers, minlength=_ELEMENTS)
            np.add.at(sums, numbers, counts)
            squares += counts.T @ counts
        total = max(float(n.sum()), 1.0)
        usual = (sums + _FEW * sums.sum(axis=0) / total) / (n + _FEW)[:, None]
        crossed = sums.T @ usual
        covariance = (squares - crossed - crossed.T + (usual.T * n) @ usual) / total
        variances, directions = np.linalg.eigh(covariance)
        varies = variances > _LEAST_VARIANCE * max(variances[-1], 1e-9)
        return cls(usual, directions[:, varies] / np.sqrt(variances[varies]))

    def distances(self, numbers: Integers, counts: Floats) -> Floats:
        """Compute the Mahalanobis distance of each atom's neighbours from the usual of its element.

        Parameters are those of :meth:`found`, of one batch.
        """
        away: Floats = np.linalg.norm((counts - self.usual[numbers]) @ self.whitening, axis=1)
        return away

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON; unknown elements are left out."""
        otherwise, counts = np.unique(self.usual, axis=0, return_counts=True)
        unknown = otherwise[counts.argmax()]
        known = np.flatnonzero((self.usual != unknown).any(axis=1)).tolist()
        return {
            "otherwise": unknown.tolist(),
            "usual": {str(z): self.usual[z].tolist() for z in known},
            "whitening": self.whitening.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Surroundings:
        """Read the values of :meth:`to_dict`."""
        usual = np.tile(np.array(values["otherwise"], dtype=float), (_ELEMENTS, 1))
        for z, of in values["usual"].items():
            usual[int(z)] = of
        whitening = np.array(values["whitening"], dtype=float).reshape(_SHELLS, -1)
        return cls(usual, whitening)
