"""DimeNet's radial functions by degree, and the harmonics of edges gathered by atom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor

from hydragnn_flow.models.geometry import sum_by

ROW = 12
"""Edges in a row of :class:`Rows`: more would leave more places empty, fewer make more rows."""


def spherical_bessel(
    lengths: Sequence[float], cutoff: float, degrees: int, size: int
) -> NDArray[np.float64]:
    """Spherical Bessel functions j_l(z_ln d / c) that are zero at the cutoff c.

    Of mean square one in a sphere of that radius. Gasteiger et al., DimeNet, arXiv:2003.03123,
    equation 6.

    Parameters
    ----------
    lengths
        [n] in Å; a negative one continues the function.
    cutoff
        c [Å].
    degrees
        l = 0 … degrees - 1.
    size
        Functions of each degree.

    Returns
    -------
    NDArray[np.float64]
        [degrees, n, size].
    """
    zeros = _zeros(degrees, size)
    values = np.empty((degrees, len(lengths), size))
    for degree in range(degrees):
        arguments = np.abs(np.array(lengths))[:, None] / cutoff * zeros[degree]
        norm = math.sqrt(1.5) * np.abs(spherical_jn(degree + 1, zeros[degree]))
        parity = np.sign(np.array(lengths))[:, None] ** degree
        values[degree] = parity * spherical_jn(degree, arguments) / norm
    return values


def _zeros(degrees: int, size: int) -> NDArray[np.float64]:
    """First zeros [degrees, size]: between two of one degree lies one of the next."""
    found = np.arange(1, size + degrees) * math.pi
    zeros = [found[:size]]
    for degree in range(1, degrees):
        function = partial(spherical_jn, degree)
        found = np.array([brentq(function, low, high) for low, high in pairwise(found)])
        zeros.append(found[:size])
    return np.array(zeros)


class Rows(NamedTuple):
    """The edges of each atom in one or more rows of twelve places, the last filled up with zeros.

    Products of matrices then run over the edges of an atom. How many rows there are follows from
    the numbers of atoms and edges alone: some are left over, but a host need not wait to be told,
    and atoms of very unequal degree waste no more than others.

    Attributes
    ----------
    places
        Place of each edge, int64 [n_edges].
    owners
        Atom of each row, int64 [n_rows].
    n_atoms
        Number of atoms.
    """

    places: Tensor
    owners: Tensor
    n_atoms: int

    def fill(self, edges: Tensor) -> Tensor:
        """From [n_edges, d] to [n_rows, 12, d]."""
        n_rows = self.owners.shape[0]
        places = edges.new_zeros((n_rows * ROW, edges.shape[1]))
        return places.index_copy(0, self.places, edges).view(n_rows, ROW, edges.shape[1])

    def read(self, rows: Tensor) -> Tensor:
        """From [n_rows, 12, d] to [n_edges, d]."""
        return rows.flatten(0, 1).index_select(0, self.places)

    def of_owner(self, atoms: Tensor) -> Tensor:
        """From [n_atoms, …] to [n_rows, …]."""
        return atoms.index_select(0, self.owners)

    def sum(self, rows: Tensor) -> Tensor:
        """From [n_rows, …] to [n_atoms, …]."""
        return sum_by(rows, self.owners, self.n_atoms)


def rows_of(atoms: Tensor, n_atoms: int) -> Rows:
    """Find the places of edges that belong to atoms [n_edges]."""
    n_edges, device = atoms.shape[0], atoms.device
    belonging, order = torch.sort(atoms, stable=True)
    degrees = sum_by(torch.ones_like(atoms), atoms, n_atoms)
    rank = torch.arange(n_edges, device=device)
    rank = rank - (degrees.cumsum(0) - degrees).index_select(0, belonging)
    n_rows = (degrees + (ROW - 1)) // ROW
    ends = n_rows.cumsum(0)
    sorted_places = (ends - n_rows).index_select(0, belonging) * ROW + rank
    places = torch.empty_like(order).index_copy(0, order, sorted_places)
    most = (n_edges + n_atoms * (ROW - 1)) // ROW
    owners = torch.searchsorted(ends, torch.arange(most, device=device), right=True)
    # Rows left over have nothing but zeros in them, whoever owns them.
    return Rows(places, owners.clamp(max=max(n_atoms - 1, 0)), n_atoms)
