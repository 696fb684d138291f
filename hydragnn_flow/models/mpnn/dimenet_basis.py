"""DimeNet's radial functions by degree, and tables of the edges of each atom."""

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

_ROW = 12
"""Number of edges in a row of :class:`EdgeTable`: more waste places, fewer make more rows."""


def spherical_bessel(
    lengths: Sequence[float], cutoff: float, degrees: int, size: int
) -> NDArray[np.float64]:
    """Compute spherical Bessel functions j_l(z_ln d / c) that are zero at the cutoff c.

    Their mean square is one in the sphere of radius c. Gasteiger et al., DimeNet, arXiv:2003.03123,
    equation 6.

    Parameters
    ----------
    lengths
        Lengths d [n] in Å; negative ones continue the function.
    cutoff
        Cutoff c of the neighbour list [Å].
    degrees
        Number of degrees: l = 0 … degrees - 1.
    size
        Number of functions of each degree.

    Returns
    -------
    NDArray[np.float64]
        Values [degrees, n, size].
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
    """Return the first zeros [degrees, size]; those of successive degrees interlace."""
    found = np.arange(1, size + degrees) * math.pi
    zeros = [found[:size]]
    for degree in range(1, degrees):
        function = partial(spherical_jn, degree)
        found = np.array([brentq(function, low, high) for low, high in pairwise(found)])
        zeros.append(found[:size])
    return np.array(zeros)


class EdgeTable(NamedTuple):
    """Edges of each atom in one or more rows of equal length, padded with zeros.

    Matrix products can then run over the edges of an atom.

    Attributes
    ----------
    places
        Flat index of each edge in the table, int64 [n_edges].
    owners
        Atom of each row, int64 [n_rows]; None if each atom has one row.
    shape
        Number of rows, and of places in each.
    n_atoms
        Number of atoms in the batch.
    """

    places: Tensor
    owners: Tensor | None
    shape: tuple[int, int]
    n_atoms: int

    def fill(self, edges: Tensor) -> Tensor:
        """Arrange [n_edges, d] as [n_rows, n_places, d]."""
        n_rows, n_places = self.shape
        places = edges.new_zeros((n_rows * n_places, edges.shape[1]))
        return places.index_copy(0, self.places, edges).view(n_rows, n_places, edges.shape[1])

    def read(self, rows: Tensor) -> Tensor:
        """Read [n_edges, d] from [n_rows, n_places, d]."""
        return rows.flatten(0, 1).index_select(0, self.places)

    def of_owner(self, atoms: Tensor) -> Tensor:
        """Return each row's atom: [n_atoms, …] to [n_rows, …]."""
        return atoms if self.owners is None else atoms.index_select(0, self.owners)

    def sum(self, rows: Tensor) -> Tensor:
        """Sum the rows of each atom: [n_rows, …] to [n_atoms, …]."""
        return rows if self.owners is None else sum_by(rows, self.owners, self.n_atoms)


def edge_table(atoms: Tensor, n_atoms: int, *, countable: bool) -> EdgeTable:
    """Return a table of edges by the atom that they belong to.

    Parameters
    ----------
    atoms
        Atom of each edge, int64 [n_edges].
    n_atoms
        Number of atoms in the batch.
    countable
        If true, numbers may be read from the device, and each atom gets one row of the longest
        length if that wastes little. Otherwise rows have twelve places, and their number follows
        from the numbers of atoms and edges: some are left over, but the host does not wait for the
        device.
    """
    n_edges, device = atoms.shape[0], atoms.device
    degrees = sum_by(torch.ones_like(atoms), atoms, n_atoms)
    rows_per_atom = (degrees + (_ROW - 1)) // _ROW
    n_rows, n_places, single = (n_edges + n_atoms * (_ROW - 1)) // _ROW, _ROW, False
    if countable and n_edges:
        n_rows, longest = int(rows_per_atom.sum()), int(degrees.max())
        # Largest ratio of places with one long row per atom to places in rows of twelve.
        single = n_atoms * longest <= 1.25 * n_rows * _ROW
        if single:
            rows_per_atom, n_rows, n_places = torch.ones_like(degrees), n_atoms, longest
    ends = rows_per_atom.cumsum(0)

    belonging, order = torch.sort(atoms, stable=True)
    rank = torch.arange(n_edges, device=device)
    rank = rank - (degrees.cumsum(0) - degrees).index_select(0, belonging)
    sorted_places = (ends - rows_per_atom).index_select(0, belonging) * n_places + rank
    places = torch.empty_like(order).index_copy(0, order, sorted_places)
    if single:
        return EdgeTable(places, None, (n_rows, n_places), n_atoms)
    owners = torch.searchsorted(ends, torch.arange(n_rows, device=device), right=True)
    # Surplus rows contain only zeros, so their owner does not matter.
    return EdgeTable(places, owners.clamp(max=max(n_atoms - 1, 0)), (n_rows, n_places), n_atoms)
