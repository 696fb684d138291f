"""Distances, neighbours and volumes of structures, and what is usual in training data.

Each quantity is compared with the mean for its elements in the training data, so that one range
serves copper and gold. Means of rare elements and pairs are shrunk towards values from covalent
radii.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray
from torch_geometric.data import Batch

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ELEMENTS = len(covalent_radii)
# Number of distances at which neighbours are counted. More find no more vacancies, and their counts
# vary more with temperature.
_SHELLS = 6
# Means over fewer values than this are shrunk towards the mean of all elements.
_FEW = 5.0


@dataclass(frozen=True)
class Environments:
    """Atoms, edges between neighbours, and volumes of a batch of structures, as NumPy arrays."""

    numbers: Integers
    """Atomic number of each atom, [n_atoms]."""
    graph: Integers
    """Index of the structure of each atom, [n_atoms]."""
    n_atoms: Integers
    """Number of atoms of each structure, [n]."""
    sender: Integers
    receiver: Integers
    """Atom at which each edge ends, [n_edges]; ``sender`` is where it begins."""
    lengths: Floats
    """Lengths of the edges [Å], [n_edges]."""
    volumes: Floats
    """Volume of each structure [Å³], [n]; NaN if it is not periodic in three directions."""
    finite: NDArray[np.bool_]
    """Mask of structures that are periodic in no direction, [n]."""

    @classmethod
    def of(cls, batch: Batch) -> Environments:
        """Extract the arrays from a batch of graphs whose node feature 0 is the atomic number."""
        sender, receiver = batch.edge_index.cpu().numpy()
        positions = batch.pos.detach().cpu().numpy().astype(np.float64)
        vectors = positions[receiver] - positions[sender] + batch.edge_shifts.cpu().numpy()
        graph = batch.batch.cpu().numpy()
        n = int(batch.num_graphs)
        periodic, volumes = np.zeros((n, 3), bool), np.full(n, np.nan)
        if "pbc" in batch and "cell" in batch:
            periodic = batch.pbc.cpu().numpy().reshape(n, 3) != 0
            cells = batch.cell.cpu().numpy().astype(np.float64).reshape(n, 3, 3)
            volumes = np.where(periodic.all(axis=1), np.abs(np.linalg.det(cells)), np.nan)
        numbers = batch.x[:, 0].cpu().numpy().astype(np.int64)
        return cls(
            np.where((numbers > 0) & (numbers < _ELEMENTS), numbers, 0),
            graph,
            np.bincount(graph, minlength=n),
            sender,
            receiver,
            np.linalg.norm(vectors, axis=1),
            volumes,
            np.asarray(~periodic.any(axis=1)),
        )

    @cached_property
    def pairs(self) -> Integers:
        """Integer code of the two elements that each edge connects, in either order, [n_edges]."""
        ends = self.numbers[self.sender], self.numbers[self.receiver]
        return np.minimum(*ends) * _ELEMENTS + np.maximum(*ends)

    @cached_property
    def closeness(self) -> Floats:
        """Logarithm of each edge's length over the sum of its atoms' covalent radii, [n_edges]."""
        radii = covalent_radii[self.numbers]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.lengths / (radii[self.sender] + radii[self.receiver])))

    @cached_property
    def fractions(self) -> Floats:
        """Fraction of each element among the atoms of each structure, [n, 119]."""
        where = self.graph * _ELEMENTS + self.numbers
        counts = np.bincount(where, minlength=len(self.n_atoms) * _ELEMENTS)
        return counts.reshape(-1, _ELEMENTS) / self.n_atoms[:, None]


@dataclass(frozen=True)
class Usual:
    """Usual distances, volumes and numbers of neighbours of elements in the training data."""

    closeness: Floats
    """Mean closeness of a structure's closest edge between two elements, by code of the pair,
    [119²]."""
    volume: Floats
    """Mean volume of an atom [Å³], by atomic number, [119]."""
    surroundings: Surroundings
    """Usual counts of neighbours by distance."""

    @classmethod
    def found(cls, batches: Callable[[], Iterable[Environments]]) -> Usual:
        """Compute what is usual for each element and pair of elements, from all structures.

        Memory does not grow with their number.

        Parameters
        ----------
        batches
            Function that yields all structures in batches, perhaps from disk; it is called twice.
        """
        n, sums = np.zeros(_ELEMENTS**2), np.zeros(_ELEMENTS**2)
        squares, products = np.zeros((_ELEMENTS, _ELEMENTS)), np.zeros(_ELEMENTS)
        for one in batches():
            pairs, closeness = _closest_of_pairs(one)
            n += np.bincount(pairs, minlength=len(n))
            sums += np.bincount(pairs, closeness, len(n))
            known = np.isfinite(one.volumes)
            squares += one.fractions[known].T @ one.fractions[known]
            products += one.fractions[known].T @ (one.volumes / one.n_atoms)[known]
        closeness = _shrunk(sums, n)
        shells = ((one.numbers, _shells(one, closeness)) for one in batches())
        return cls(closeness, _volumes(squares, products), Surroundings.found(shells))

    def closer(self, one: Environments) -> Floats:
        """Return the logarithm of each edge's length over the usual one of its elements, [n_edges].

        It is the edge's closeness minus :attr:`closeness` of its two elements.
        """
        return one.closeness - self.closeness[one.pairs]

    def strangeness(self, one: Environments) -> Floats:
        """Return how unusual each atom's numbers of neighbours are for its element, [n_atoms].

        The value is the distance without unit that :meth:`Surroundings.distances` computes.
        """
        return self.surroundings.distances(one.numbers, _shells(one, self.closeness))

    def quantities(self, one: Environments) -> dict[str, Floats]:
        """Return the quantities of structures to compare with training data, [n] by name.

        ``shortest`` is the smallest :meth:`closer` of the structure's edges, ``surroundings`` the
        largest :meth:`strangeness` of its atoms, and ``volume`` the logarithm of its volume divided
        by the usual volume of its elements. ``atoms`` is the number of atoms of a structure that is
        periodic in no direction. Undefined values are NaN.
        """
        n = len(one.n_atoms)
        return {
            "shortest": extreme(np.fmin, self.closer(one), one.graph[one.receiver], n),
            "surroundings": extreme(np.fmax, self.strangeness(one), one.graph, n),
            "volume": np.log(one.volumes / one.n_atoms / (one.fractions @ self.volume)),
            "atoms": np.where(one.finite, one.n_atoms, np.nan),
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert the usual values to a dict for JSON.

        Elements and pairs that do not occur are left out of closeness and surroundings.
        """
        usual = self.surroundings.usual
        pairs = np.flatnonzero(self.closeness != self.closeness[0]).tolist()
        elements = np.flatnonzero((usual != usual[0]).any(axis=1)).tolist()
        return {
            "closeness": {
                "otherwise": float(self.closeness[0]),
                "pairs": {
                    "-".join(map(str, divmod(pair, _ELEMENTS))): float(self.closeness[pair])
                    for pair in pairs
                },
            },
            "volume": self.volume.tolist(),
            "surroundings": {
                "otherwise": usual[0].tolist(),
                "usual": {str(z): usual[z].tolist() for z in elements},
                "whitening": self.surroundings.whitening.tolist(),
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Usual:
        """Restore the usual values from the dict that :meth:`to_dict` returned."""
        closeness = np.full(_ELEMENTS**2, values["closeness"]["otherwise"])
        for pair, value in values["closeness"]["pairs"].items():
            one, other = map(int, pair.split("-"))
            closeness[one * _ELEMENTS + other] = value
        around = values["surroundings"]
        usual = np.tile(np.array(around["otherwise"], dtype=float), (_ELEMENTS, 1))
        for z, of in around["usual"].items():
            usual[int(z)] = of
        whitening = np.array(around["whitening"], dtype=float).reshape(_SHELLS, -1)
        volume = np.array(values["volume"], dtype=float).reshape(_ELEMENTS)
        return cls(closeness, volume, Surroundings(usual, whitening))


@dataclass(frozen=True)
class Surroundings:
    """Usual numbers of neighbours at several distances, for each element, with covariance.

    An atom next to a vacancy or in a surface has bonds, elements and volumes that all occur in the
    training data, but its counts of near and far neighbours do not occur together there.
    """

    usual: Floats
    """Mean count of neighbours by atomic number and distance, ``[119, n_shells]``."""
    whitening: Floats
    """Matrix ``[n_shells, d]`` that maps differences from ``usual`` to d uncorrelated values of
    variance 1."""

    @classmethod
    def found(cls, batches: Iterable[tuple[Integers, Floats]]) -> Surroundings:
        """Compute the usual neighbour counts and their covariance from the atoms of all batches.

        Memory does not grow with the number of atoms.

        Parameters
        ----------
        batches
            For each batch, the atomic numbers ``[n_atoms]`` and the neighbours of these atoms from
            :func:`neighbours_in_shells`.
        """
        n, sums = np.zeros(_ELEMENTS), np.zeros((_ELEMENTS, _SHELLS))
        squares = np.zeros((_SHELLS, _SHELLS))
        for numbers, counts in batches:
            n += np.bincount(numbers, minlength=_ELEMENTS)
            np.add.at(sums, numbers, counts)
            squares += counts.T @ counts
        usual = _shrunk(sums, n)
        crossed = sums.T @ usual
        covariance = squares - crossed - crossed.T + (usual.T * n) @ usual
        covariance /= max(float(n.sum()), 1.0)
        variances, directions = np.linalg.eigh(covariance)
        varies = variances > 1e-4 * max(variances[-1], 1e-9)  # the others are noise
        return cls(usual, directions[:, varies] / np.sqrt(variances[varies]))

    def distances(self, numbers: Integers, counts: Floats) -> Floats:
        """Compute how far each atom's neighbour counts are from its element's mean, ``[n_atoms]``.

        The result is a Mahalanobis distance without unit.

        Parameters
        ----------
        numbers
            Atomic number of each atom, ``[n_atoms]``.
        counts
            Neighbours of each atom from :func:`neighbours_in_shells`.
        """
        away: Floats = np.linalg.norm((counts - self.usual[numbers]) @ self.whitening, axis=1)
        return away


def _shrunk(sums: Floats, n: Floats) -> Floats:
    """Return the mean of each element or pair, shrunk towards the mean of all.

    ``sums`` are those over ``n`` values ``[k]`` of each of k elements or pairs, ``[k, ...]``.
    """
    n = n.reshape(-1, *[1] * (sums.ndim - 1))
    return np.asarray((sums + _FEW * sums.sum(axis=0) / max(n.sum(), 1.0)) / (n + _FEW))


def neighbours_in_shells(receiver: Integers, distances: Floats, n_atoms: int) -> Floats:
    """Count the neighbours of each atom at several distances (shells), ``[n_atoms, n_shells]``.

    A neighbour between two shells counts in part for each, more for the
    nearer shell.

    Parameters
    ----------
    receiver
        Atom at which each edge ends, ``[n_edges]``.
    distances
        Length of each edge divided by the usual shortest distance of its pair of elements,
        ``[n_edges]``.
    n_atoms
        Number of atoms in all structures.
    """
    place = (distances - 0.8) / 0.3
    below = np.floor(place).astype(np.int64)
    above = place - below
    counts = np.zeros(n_atoms * _SHELLS)
    for shell, share in ((below, 1 - above), (below + 1, above)):
        there = (shell >= 0) & (shell < _SHELLS)
        where = receiver[there] * _SHELLS + shell[there]
        counts += np.bincount(where, share[there], len(counts))
    return counts.reshape(n_atoms, _SHELLS)


def extreme(which: np.ufunc, values: Floats, graph: Integers, n: int) -> Floats:
    """Return the smallest or largest of the values that belong to each of ``n`` structures, [n].

    ``which`` is `np.fmin` for the smallest or `np.fmax` for the largest. ``graph`` is the index of
    the structure of each value. Structures without values get NaN.
    """
    found = np.full(n, np.nan)
    which.at(found, graph, values)
    return found


def _shells(one: Environments, closeness: Floats) -> Floats:
    """Count the neighbours of each atom by distance, ``[n_atoms, n_shells]``.

    ``closeness`` is :attr:`Usual.closeness`: the distance of a pair of elements is divided by the
    usual shortest one of that pair.
    """
    distances = np.exp(one.closeness - closeness[one.pairs])
    return neighbours_in_shells(one.receiver, distances, len(one.numbers))


def _closest_of_pairs(one: Environments) -> tuple[Integers, Floats]:
    """Return the pair code and closeness of the closest edge of each pair in each structure."""
    where = one.graph[one.receiver] * _ELEMENTS**2 + one.pairs
    order = np.lexsort((one.closeness, where))
    first = order[np.flatnonzero(np.diff(where[order], prepend=-1))]
    return one.pairs[first], one.closeness[first]


def _volumes(squares: Floats, products: Floats) -> Floats:
    """Fit the atomic volume [Å³] of each element by least squares, ``[119]``.

    Volumes are shrunk towards multiples of the cubes of covalent radii, by one common factor.

    Parameters
    ----------
    squares, products
        Sums over structures: of the products of the fractions of two elements, ``[119, 119]``, and
        of the products of an element's fraction and the volume per atom, ``[119]``.
    """
    cubes = covalent_radii**3
    norm = float(cubes @ squares @ cubes)
    like_cubes = cubes * (float(cubes @ products) / norm if norm > 0 else 1.0)
    # The cubes count as much as a fifth of a structure of one element alone.
    leaning = squares + 0.2 * np.eye(_ELEMENTS)
    found = like_cubes + np.linalg.solve(leaning, products - squares @ like_cubes)
    # The fit may be negative for an element that only occurs with larger ones.
    return np.maximum(found, 0.1 * like_cubes)
