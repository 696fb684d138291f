"""Distances, numbers of neighbours and volumes of structures, relative to their elements.

Each is compared with the mean of its elements in the training data, so that one range serves copper
and gold. Means of rare elements and pairs are shrunk towards values from covalent radii.
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

from hydragnn_flow.ensemble.surroundings import Surroundings, neighbours_in_shells

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ELEMENTS = len(covalent_radii)
# Neighbours count fully up to about this multiple of the sum of covalent radii, and then less.
_BONDED = 1.35
_WIDTH = 0.05
# Means over fewer values than this are shrunk towards the mean of all elements.
_FEW = 5.0
# Same for volumes, in structures of one element alone.
_FEW_VOLUMES = 0.2
SURROUNDINGS = "surroundings"
"""Name of the quantity that measures how unusual the surroundings of atoms are."""


@dataclass(frozen=True)
class Environments:
    """Atoms and edges of a batch of structures, in plain arrays."""

    numbers: Integers
    """Atomic number of each atom, [n_atoms]."""
    graph: Integers
    """Structure of each atom, [n_atoms]."""
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
        """Return the environments of graphs whose first node feature is the atomic number."""
        sender, receiver = batch.edge_index.cpu().numpy()
        positions = batch.pos.detach().cpu().numpy().astype(np.float64)
        vectors = positions[receiver] - positions[sender] + batch.edge_shifts.cpu().numpy()
        graph = batch.batch.cpu().numpy()
        n = int(batch.num_graphs)
        known = "pbc" in batch and "cell" in batch
        periodic = batch.pbc.cpu().numpy().reshape(n, 3) != 0 if known else np.zeros((n, 3), bool)
        numbers = batch.x[:, 0].cpu().numpy().astype(np.int64)
        return cls(
            np.where((numbers > 0) & (numbers < _ELEMENTS), numbers, 0),
            graph,
            np.bincount(graph, minlength=n),
            sender,
            receiver,
            np.linalg.norm(vectors, axis=1),
            np.where(periodic.all(axis=1), _volumes(batch, n), np.nan),
            np.asarray(~periodic.any(axis=1)),
        )

    @cached_property
    def pairs(self) -> Integers:
        """Number of each edge's pair of elements, [n_edges]."""
        ends = self.numbers[self.sender], self.numbers[self.receiver]
        return np.minimum(*ends) * _ELEMENTS + np.maximum(*ends)

    @cached_property
    def closeness(self) -> Floats:
        """Logarithm of each edge's length over the sum of the covalent radii, [n_edges]."""
        radii = covalent_radii[self.numbers]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.lengths / (radii[self.sender] + radii[self.receiver])))

    @cached_property
    def nearest(self) -> Floats:
        """Smallest closeness of each atom's edges, [n_atoms]; infinite without neighbours."""
        found = np.full(len(self.numbers), np.inf)
        np.minimum.at(found, self.receiver, self.closeness)
        return found

    @cached_property
    def neighbours(self) -> Floats:
        """Smooth count of each atom's neighbours at bond distances, [n_atoms]."""
        weights = 1.0 / (1.0 + np.exp((np.exp(self.closeness) - _BONDED) / _WIDTH))
        return np.bincount(self.receiver, weights, len(self.numbers)).astype(np.float64)

    @cached_property
    def fractions(self) -> Floats:
        """Fraction of each element in each structure, [n, 119]."""
        where = self.graph * _ELEMENTS + self.numbers
        counts = np.bincount(where, minlength=len(self.n_atoms) * _ELEMENTS)
        return counts.reshape(-1, _ELEMENTS) / self.n_atoms[:, None]

    def edges_of(self, graph: int) -> Integers:
        """Return the indices of a structure's edges."""
        return np.flatnonzero(self.graph[self.receiver] == graph)

    def atoms_of(self, graph: int) -> Integers:
        """Return the indices of a structure's atoms."""
        return np.flatnonzero(self.graph == graph)


@dataclass(frozen=True)
class Usual:
    """Mean environments of elements in the training data."""

    closeness: Floats
    """Mean closeness of a structure's closest edge between two elements, by pair, [119²]."""
    nearest: Floats
    """Mean closeness of an atom's nearest neighbour, by element, [119]."""
    neighbours: Floats
    """Mean number of neighbours of an atom, by element, [119]."""
    volume: Floats
    """Mean volume of an atom [Å³], by element, [119]."""
    surroundings: Surroundings

    @classmethod
    def found(cls, batches: Callable[[], Iterable[Environments]]) -> Usual:
        """Compute means over structures, in memory that does not grow with their number.

        Parameters
        ----------
        batches
            Function that yields the structures, which may come from disk; called twice.
        """
        pairs, nearest, neighbours = _Mean(_ELEMENTS**2), _Mean(_ELEMENTS), _Mean(_ELEMENTS)
        volumes = _Volumes()
        for one in batches():
            pairs.add(*_closest_of_pairs(one))
            near = np.isfinite(one.nearest)
            nearest.add(one.numbers[near], one.nearest[near])
            neighbours.add(one.numbers, one.neighbours)
            volumes.add(one)
        closeness = pairs.values()
        shells = ((one.numbers, _shells(one, closeness)) for one in batches())
        return cls(
            closeness,
            nearest.values(),
            neighbours.values(),
            volumes.values(),
            Surroundings.found(shells),
        )

    def closer(self, one: Environments) -> Floats:
        """Return the closeness of each edge less the mean of its pair, [n_edges]."""
        return one.closeness - self.closeness[one.pairs]

    def more_neighbours(self, one: Environments) -> Floats:
        """Return the neighbours of each atom less the mean of its element, [n_atoms]."""
        return one.neighbours - self.neighbours[one.numbers]

    def strangeness(self, one: Environments) -> Floats:
        """Return the distance of each atom's surroundings from the usual, [n_atoms]."""
        return self.surroundings.distances(one.numbers, _shells(one, self.closeness))

    def quantities(self, one: Environments) -> dict[str, Floats]:
        """Return quantities of each structure, [n], by name; NaN where undefined."""
        more = self.more_neighbours(one)
        near = np.isfinite(one.nearest)
        farther = np.where(near, one.nearest - self.nearest[one.numbers], 0.0)
        n = len(one.n_atoms)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_nearest = np.bincount(one.graph, farther, n) / np.bincount(one.graph, near, n)
        usual_volume = one.fractions @ self.volume
        return {
            "shortest": extreme(np.fmin, self.closer(one), one.graph[one.receiver], n),
            "nearest": mean_nearest,
            "fewest": extreme(np.fmin, more, one.graph, n),
            "most": extreme(np.fmax, more, one.graph, n),
            "neighbours": np.bincount(one.graph, more, n) / one.n_atoms,
            SURROUNDINGS: extreme(np.fmax, self.strangeness(one), one.graph, n),
            "volume": np.log(one.volumes / one.n_atoms / usual_volume),
            "atoms": np.where(one.finite, one.n_atoms, np.nan),
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON; pairs with the most common value are left out."""
        values, counts = np.unique(self.closeness, return_counts=True)
        otherwise = float(values[counts.argmax()])
        others = np.flatnonzero(self.closeness != otherwise).tolist()
        return {
            "closeness": {
                "otherwise": otherwise,
                "pairs": {
                    "-".join(map(str, divmod(pair, _ELEMENTS))): float(self.closeness[pair])
                    for pair in others
                },
            },
            "nearest": self.nearest.tolist(),
            "neighbours": self.neighbours.tolist(),
            "volume": self.volume.tolist(),
            "surroundings": self.surroundings.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Usual:
        """Read the values of :meth:`to_dict`."""
        closeness = np.full(_ELEMENTS**2, values["closeness"]["otherwise"])
        for pair, value in values["closeness"]["pairs"].items():
            one, other = map(int, pair.split("-"))
            closeness[one * _ELEMENTS + other] = value
        nearest, neighbours, volume = (
            np.array(values[name], dtype=float).reshape(_ELEMENTS)
            for name in ("nearest", "neighbours", "volume")
        )
        surroundings = Surroundings.from_dict(values["surroundings"])
        return cls(closeness, nearest, neighbours, volume, surroundings)


class _Mean:
    """Mean by number, shrunk towards the mean of all where there are few values."""

    def __init__(self, size: int) -> None:
        self._n = np.zeros(size)
        self._sum = np.zeros(size)

    def add(self, numbers: Integers, values: Floats) -> None:
        self._n += np.bincount(numbers, minlength=len(self._n))
        self._sum += np.bincount(numbers, values, len(self._n))

    def values(self) -> Floats:
        overall = self._sum.sum() / max(self._n.sum(), 1.0)
        return np.asarray((self._sum + _FEW * overall) / (self._n + _FEW))


class _Volumes:
    """Volume of each element by least squares, shrunk towards cubes of covalent radii."""

    def __init__(self) -> None:
        self._squares = np.zeros((_ELEMENTS, _ELEMENTS))
        self._products = np.zeros(_ELEMENTS)

    def add(self, one: Environments) -> None:
        known = np.isfinite(one.volumes)
        fractions = one.fractions[known]
        self._squares += fractions.T @ fractions
        self._products += fractions.T @ (one.volumes / one.n_atoms)[known]

    def values(self) -> Floats:
        cubes = covalent_radii**3
        norm = float(cubes @ self._squares @ cubes)
        like_cubes = cubes * (float(cubes @ self._products) / norm if norm > 0 else 1.0)
        rest = self._products - self._squares @ like_cubes
        leaning = self._squares + _FEW_VOLUMES * np.eye(_ELEMENTS)
        found = like_cubes + np.linalg.solve(leaning, rest)
        # The fit may be negative for an element that only occurs with larger ones.
        return np.maximum(found, 0.1 * like_cubes)


def _shells(one: Environments, closeness: Floats) -> Floats:
    """Count neighbours of each atom by distance, in units of the usual closest one."""
    distances = np.exp(one.closeness - closeness[one.pairs])
    return neighbours_in_shells(one.receiver, distances, len(one.numbers))


def _closest_of_pairs(one: Environments) -> tuple[Integers, Floats]:
    """Return pair and closeness of the closest edge of each pair of elements and structure."""
    where = one.graph[one.receiver] * _ELEMENTS**2 + one.pairs
    order = np.lexsort((one.closeness, where))
    first = order[np.flatnonzero(np.diff(where[order], prepend=-1))]
    return one.pairs[first], one.closeness[first]


def extreme(which: np.ufunc, values: Floats, graph: Integers, n: int) -> Floats:
    """Return the smallest (`np.fmin`) or largest value of each structure, NaN without any."""
    found = np.full(n, np.nan)
    which.at(found, graph, values)
    return found


def _volumes(batch: Batch, n: int) -> Floats:
    if "cell" not in batch:
        return np.full(n, np.nan)
    cells = batch.cell.cpu().numpy().astype(np.float64).reshape(n, 3, 3)
    return np.asarray(np.abs(np.linalg.det(cells)))
