"""Surroundings of atoms: how many neighbours they have at which distance, and how unusual that is.

An atom beside a vacancy or in a surface has bonds, elements and volumes that all occur in the
training data, but not numbers of near and far neighbours that occur together there.
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
# A mean over fewer values than this leans on the mean of all elements.
_FEW = 5.0
# Variances of combinations that vary less, as a fraction of the largest, say nothing.
_LEAST_VARIANCE = 1e-4


def neighbours_in_shells(receiver: Integers, distances: Floats, n_atoms: int) -> Floats:
    """Number of neighbours of each atom by distance, ``[n_atoms, n_shells]``.

    A neighbour between two distances counts for both, the more the nearer it is.

    Parameters
    ----------
    receiver
        Atom of each edge.
    distances
        Of its ends, in shortest distances of their pair of elements, ``[n_edges]``.
    n_atoms
        Number of atoms.
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
    """Usual numbers of neighbours in shells by element, and how they vary together."""

    usual: Floats
    """Mean by element, ``[119, n_shells]``."""
    whitening: Floats
    """Takes differences from the mean to independent numbers of variance 1, ``[n_shells, d]``."""

    @classmethod
    def found(cls, batches: Iterable[tuple[Integers, Floats]]) -> Surroundings:
        """Find means and covariance, in memory that does not grow with the number of atoms.

        Parameters
        ----------
        batches
            Atomic numbers, and neighbours as of :func:`neighbours_in_shells`.
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
        """Mahalanobis distance of each atom's neighbours from those usual of its element.

        Parameters are those of :meth:`found`, of one batch.
        """
        away: Floats = np.linalg.norm((counts - self.usual[numbers]) @ self.whitening, axis=1)
        return away

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can say it; elements that are unknown are left out."""
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
        """The inverse of :meth:`to_dict`."""
        usual = np.tile(np.array(values["otherwise"], dtype=float), (_ELEMENTS, 1))
        for z, of in values["usual"].items():
            usual[int(z)] = of
        whitening = np.array(values["whitening"], dtype=float).reshape(_SHELLS, -1)
        return cls(usual, whitening)
