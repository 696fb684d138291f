"""Statistics of the training split, accumulated block by block.

Every quantity is kept in a form that adds up to the same result over blocks, shards and processes,
so that all graphs are never needed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import BRANCH, TRAIN, WEIGHT
from hydragnn_flow.data.columns import Column, global_edges
from hydragnn_flow.data.store.manifest import (
    ENERGY,
    BranchStatistics,
    Statistics,
    Target,
    TargetStatistics,
)
from hydragnn_flow.errors import InputError

References = Mapping[int, float] | Literal["isolated"]
"""Reference energy by atomic number; ``isolated`` for those of isolated atoms."""
_NO_SPREAD = 1e-12


class Moments:
    """Running number, mean, squared deviations and largest magnitude of a target's values.

    All but the number are given for each component of the target. Blocks are merged as in Chan,
    Golub & LeVeque, The American Statistician 37, 242 (1983), which loses no digits where the mean
    is much larger than the spread.
    """

    def __init__(self, dim: int) -> None:
        self.n = 0
        self.mean = np.zeros(dim)
        self.squares = np.zeros(dim)
        self.largest = np.zeros(dim)

    def update(self, values: NDArray[np.float64]) -> None:
        """Add the values of a target, one row for each graph or atom, [n, dim]; NaN is left out."""
        values = values[np.isfinite(values).all(axis=1)]
        if not len(values):
            return
        block = Moments(values.shape[1])
        block.n = len(values)
        block.mean = values.mean(axis=0)
        block.squares = ((values - block.mean) ** 2).sum(axis=0)
        block.largest = np.abs(values).max(axis=0)
        self.merge(block)

    def merge(self, other: Moments) -> None:
        """Add all values that ``other`` has gathered, for example in another process."""
        if other.n == 0:
            return
        n = self.n + other.n
        step = other.mean - self.mean
        self.mean = self.mean + step * (other.n / n)
        self.squares = self.squares + other.squares + step**2 * (self.n * other.n / n)
        self.largest = np.maximum(self.largest, other.largest)
        self.n = n

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation of each component, [dim]; 1 where it is negligible."""
        std = np.sqrt(self.squares / max(self.n, 1))
        # Relative too: a constant of -9391 eV has a rounding spread far above any absolute floor.
        floor = np.maximum(_NO_SPREAD, self.largest * _NO_SPREAD)
        return np.where(std > floor, std, 1.0)


class Accumulator:
    """Accumulator of the statistics in a store's manifest: elements, edges of atoms, labels.

    Parameters
    ----------
    targets
        Keys that are labels, with their description.
    node_features
        Names of the columns of ``x``, if known.
    """

    def __init__(
        self, targets: Mapping[str, Target], node_features: Sequence[str] | None = None
    ) -> None:
        self._targets = dict(targets)
        self.degrees = np.zeros(1, dtype=np.int64)
        """Numbers of training atoms with 0, 1, 2, … incoming edges."""
        known = node_features is None or node_features[0] == "atomic_number"
        self.elements: set[int] | None = set() if known else None
        """Atomic numbers in any split; None where ``x[:, 0]`` is something else."""
        self.branches: set[int] = set()
        """Indices of branches (output heads for one data set) that graphs of any split name."""
        self._lacking = Counter[tuple[str, str]]()
        """Number of graphs without a label, by split and target."""
        self._labels: dict[int, _Labels] = {}
        """Statistics of labels by branch index; under index 0 if graphs name no branch."""

    def update(
        self,
        columns: Mapping[str, Column],
        split: str,
        doubtful: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the graphs of a block (graphs that are written together) to the statistics.

        Parameters
        ----------
        columns
            Columns of the graphs by key.
        split
            Split of the graphs; only those of training add to other statistics than elements,
            branches and numbers of missing labels.
        doubtful
            True for each graph whose labels do not count, [n_graphs]; None if there are none.
        """
        numbers = None if self.elements is None else atomic_numbers(columns)
        if numbers is None or self.elements is None:
            self.elements = None
        else:
            self.elements |= set(np.unique(numbers).tolist())
        if BRANCH in columns:
            self.branches |= set(np.unique(columns[BRANCH].values).tolist())
        atoms = columns["x"].counts
        values = {
            name: target_array(columns[name].values, target)
            for name, target in self._targets.items()
            if name in columns
        }
        for name, rows in values.items():
            missing = np.isnan(rows).any(axis=1)
            if missing.any():
                graph = self._targets[name].rows_of(np.arange(len(atoms)), atoms)
                self._lacking[split, name] += len(np.unique(graph[missing]))
        if split != TRAIN:
            return
        _, receivers = global_edges(columns)
        in_degrees = np.bincount(receivers, minlength=len(columns["x"].values))
        self.degrees = _added(self.degrees, np.bincount(in_degrees))
        weights = np.ones(len(atoms))
        if WEIGHT in columns:
            weights = columns[WEIGHT].values.reshape(-1).astype(np.float64)
        trusted = np.ones(len(atoms), dtype=np.bool_) if doubtful is None else ~doubtful
        isolated = are_isolated(columns)
        for branch, graphs in _by_branch(columns):
            labels = self._labels.setdefault(branch, _Labels(self._targets))
            labels.graphs += int(graphs.sum())
            labels.atoms += int(atoms[graphs].sum())
            if numbers is not None:
                labels.elements |= set(np.unique(numbers[np.repeat(graphs, atoms)]).tolist())
            labels.weigh(values, atoms, np.where(graphs, weights, np.nan))
            labels.update(values, numbers, atoms, graphs & trusted, isolated)

    @property
    def lacking(self) -> dict[str, dict[str, int]]:
        """Number of graphs without a label, by split and target, where there are any."""
        found: dict[str, dict[str, int]] = {}
        for (split, name), n in sorted(self._lacking.items()):
            found.setdefault(split, {})[name] = n
        return found

    def merge(self, other: Accumulator) -> None:
        """Add all graphs that ``other`` has gathered, for example in another process."""
        self.degrees = _added(self.degrees, other.degrees)
        if self.elements is not None:
            self.elements = None if other.elements is None else self.elements | other.elements
        self.branches |= other.branches
        self._lacking += other._lacking
        for branch, labels in other._labels.items():
            self._labels.setdefault(branch, _Labels(self._targets)).merge(labels)

    def statistics(self, references: Sequence[References] = ()) -> Statistics:
        """Return the statistics of the training graphs added so far, for a manifest.

        Parameters
        ----------
        references
            Reference energies of the elements in each data set, or in the only one; empty to fit
            them.

        Raises
        ------
        InputError
            If an element of a training graph has no reference energy.
        """
        atoms = int(self.degrees.sum())
        edges = int((self.degrees * np.arange(len(self.degrees))).sum())
        of_atoms = self.elements is not None
        together = _Labels(self._targets)
        for _, labels in sorted(self._labels.items()):
            together.merge(labels)
        by_branch = {
            branch: BranchStatistics(
                graphs=labels.graphs,
                atoms=labels.atoms,
                **labels.statistics(of_atoms, references[branch if len(references) > 1 else 0 :]),
            )
            for branch, labels in sorted(self._labels.items())
            if len(self.branches) > 1
        }
        return Statistics(
            degree_histogram=self.degrees.tolist(),
            avg_num_neighbors=edges / max(atoms, 1),
            by_branch=by_branch,
            **together.statistics(of_atoms, references if len(references) == 1 else ()),
        )


class _Labels:
    """Accumulator of label statistics of one branch, or of all branches together."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets
        self.graphs = self.atoms = 0
        self.elements: set[int] = set()
        self._moments = {name: Moments(target.dim) for name, target in targets.items()}
        self._weights = {name: np.zeros(2) for name in targets}
        """Sum of the weights of a target's rows that have a label, and number of rows."""
        energy = targets.get(ENERGY)
        self._fit = _EnergyFit() if energy is not None and energy.level == "graph" else None

    def weigh(
        self,
        values: Mapping[str, NDArray[np.float64]],
        atoms: NDArray[np.int64],
        weights: NDArray[np.float64],
    ) -> None:
        """Add the weights of graphs in a block, ``weights`` [n_graphs]; NaN for other graphs."""
        for name, target in self._targets.items():
            of_row = target.rows_of(weights, atoms)
            known = np.isfinite(values[name]).mean(axis=1)
            self._weights[name] += np.nansum(of_row * known), np.isfinite(of_row).sum()

    def update(
        self,
        values: Mapping[str, NDArray[np.float64]],
        numbers: NDArray[np.int64] | None,
        atoms: NDArray[np.int64],
        graphs: NDArray[np.bool_],
        isolated: NDArray[np.bool_],
    ) -> None:
        """Add labels of graphs in a block.

        ``values`` has the labels by target, [n_graphs or n_atoms, dim]; ``numbers`` the atomic
        numbers [n_atoms], None if nodes are not atoms; ``atoms`` each graph's number of nodes
        [n_graphs]; ``graphs`` is the mask of graphs to add [n_graphs]; ``isolated`` that of
        isolated atoms, whose energies are not those of elements in a material.
        """
        if self._fit is not None and numbers is not None:
            known = np.isfinite(values[ENERGY][:, 0])
            alone = graphs & isolated & known
            self._fit.keep(numbers[np.repeat(alone, atoms)], values[ENERGY][alone, 0])
            graphs = graphs & ~isolated
        if not graphs.any():
            return
        of_atoms = np.repeat(graphs, atoms)
        for name, target in self._targets.items():
            rows = graphs if target.level == "graph" else of_atoms
            self._moments[name].update(values[name][rows])
        if self._fit is not None and numbers is not None:
            graphs = graphs & known
            of_atoms = np.repeat(graphs, atoms)
            self._fit.update(numbers[of_atoms], atoms[graphs], values[ENERGY][graphs, 0])

    def merge(self, other: _Labels) -> None:
        """Add the labels that ``other`` has gathered, for example in another process."""
        self.graphs += other.graphs
        self.atoms += other.atoms
        self.elements |= other.elements
        for name, moments in self._moments.items():
            moments.merge(other._moments[name])
            self._weights[name] += other._weights[name]
        if self._fit is not None and other._fit is not None:
            self._fit.merge(other._fit)

    def statistics(self, of_atoms: bool, references: Sequence[References]) -> dict[str, Any]:
        """Return the fields of `LabelStatistics` by name.

        ``of_atoms`` is True if nodes are atoms; otherwise there are no energies of elements. The
        first of ``references``, if there is one, has those that are given.
        """
        element_energies: dict[int, float] = {}
        reference_energies: dict[int, float] = {}
        residual_std = 1.0
        if self._fit is not None and of_atoms:
            element_energies, residual_std = self._fit.solve()
            if references:
                reference_energies = self._fit.shifted(references[0])
        elif references:
            raise InputError(
                "data.element_energies: the data have no energy of structures of atoms; remove it"
            )
        forces = self._moments.get("forces")
        forces_rms = None
        if forces is not None:
            mean_square = forces.mean**2 + forces.squares / max(forces.n, 1)
            forces_rms = float(np.sqrt(mean_square.mean()))
        return {
            "elements": sorted(self.elements) if of_atoms else [],
            "element_energies": element_energies,
            "energy_per_atom_std": residual_std,
            "reference_energies": reference_energies,
            "forces_rms": forces_rms,
            "targets": {
                name: TargetStatistics(
                    mean=moments.mean.tolist(),
                    std=moments.std.tolist(),
                    share=float(self._weights[name][0] / max(self._weights[name][1], 1.0)),
                )
                for name, moments in self._moments.items()
            },
        }


class _EnergyFit:
    """Least-squares energies of the elements over all graphs, weighted to energies per atom.

    The graphs are kept as the triangular factor of a QR decomposition of [1 | composition |
    energy]. Stacking two factors and decomposing them again gives the factor of all rows (Demmel et
    al., SIAM J. Sci. Comput. 34, A206 (2012)), without squaring the condition number as sums of
    products would.
    """

    def __init__(self) -> None:
        self.elements: list[int] = []
        self.factor = np.zeros((0, 2))
        """Triangular factor and rows added since, [n, 1 + n_elements + 1]."""
        self.alone: dict[int, float] = {}
        """Lowest energy of an isolated atom of each element that has one."""

    def keep(self, numbers: NDArray[np.int64], energies: NDArray[np.float64]) -> None:
        for number, energy in zip(numbers.tolist(), energies.tolist(), strict=True):
            self.alone[number] = min(energy, self.alone.get(number, energy))

    def update(
        self, numbers: NDArray[np.int64], atoms: NDArray[np.int64], energies: NDArray[np.float64]
    ) -> None:
        elements, kind = np.unique(numbers, return_inverse=True)
        rows = np.zeros((len(atoms), len(elements) + 2))
        np.add.at(rows, (np.repeat(np.arange(len(atoms)), atoms), kind + 1), 1.0)
        rows[:, -1] = energies
        # Per atom, so that large cells do not dominate.
        rows /= atoms[:, None]
        rows[:, 0] = 1.0
        self._add(elements.tolist(), rows)

    def __getstate__(self) -> dict[str, Any]:
        self.triangle()  # thousands of rows would be stored otherwise
        return self.__dict__

    def merge(self, other: _EnergyFit) -> None:
        self._add(other.elements, other.triangle())
        self.keep(np.array(list(other.alone)), np.array(list(other.alone.values())))

    def solve(self) -> tuple[dict[int, float], float]:
        """Return the energy of each element, and the standard deviation of residuals per atom.

        If compositions do not determine the elements' energies (one stoichiometry only), the
        solution of least norm is taken: it distributes the energy instead of inventing differences.
        Elements that occur only as isolated atoms have the energy of these.
        """
        factor = self.triangle()
        if not len(factor):
            return self.alone, 1.0
        fit, *_ = np.linalg.lstsq(factor[:, 1:-1], factor[:, -1], rcond=None)
        residuals = factor[:, -1] - factor[:, 1:-1] @ fit
        # The first row is along the column of ones: its square is the number of graphs, and the
        # residual along it is their mean.
        n = factor[0, 0] ** 2
        std = float(np.linalg.norm(residuals[1:]) / np.sqrt(n))
        largest = float(np.linalg.norm(factor[:, -1]) / np.sqrt(n))
        # Twelve digits of the energies themselves: below that it is rounding.
        std = std if std > max(_NO_SPREAD, largest * _NO_SPREAD) else 1.0
        return self.alone | dict(zip(self.elements, fit.tolist(), strict=True)), std

    def shifted(self, given: References) -> dict[int, float]:
        """Return the given energies plus the shift that makes the mean residual per atom zero.

        Raises
        ------
        InputError
            If an element has no energy.
        """
        from ase.data import chemical_symbols

        energies = self.alone if given == "isolated" else given
        for element in sorted({*self.elements, *self.alone}):
            if element not in energies:
                symbol, lacks = chemical_symbols[element], "no energy is given"
                if given == "isolated":
                    lacks = "no training structure is an isolated atom"
                raise InputError(
                    f"data.element_energies: {lacks} of {symbol}; add it, or leave the key out to "
                    f"fit energies"
                )
        factor = self.triangle()
        if not len(factor):
            return dict(energies)
        # Along the column of ones, the factor is the mean composition and energy per atom.
        *composition, mean = (factor[0, 1:] / factor[0, 0]).tolist()
        known = zip(self.elements, composition, strict=True)
        shift = mean - sum(energies[element] * part for element, part in known)
        return {element: energy + shift for element, energy in energies.items()}

    def triangle(self) -> NDArray[np.float64]:
        """Reduce factor and added rows to one triangular factor in place, and return the factor."""
        self.factor = np.asarray(np.linalg.qr(self.factor, mode="r"))
        return self.factor

    def _add(self, elements: list[int], rows: NDArray[np.float64]) -> None:
        union = sorted({*self.elements, *elements})
        self.factor = np.vstack(
            [_spread(self.factor, self.elements, union), _spread(rows, elements, union)]
        )
        self.elements = union
        if len(self.factor) > 4096:
            self.triangle()


def _spread(
    rows: NDArray[np.float64], elements: list[int], union: list[int]
) -> NDArray[np.float64]:
    """Return ``rows``, with a column for each of ``elements``, with one for each of ``union``.

    Columns of the other elements are zero.
    """
    wide = np.zeros((len(rows), len(union) + 2))
    wide[:, [0, *(1 + np.searchsorted(union, elements)).tolist(), -1]] = rows
    return wide


def _by_branch(columns: Mapping[str, Column]) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield each branch index in a block with the mask of its graphs [n_graphs]."""
    if BRANCH not in columns:
        yield 0, np.ones(len(columns["x"].counts), dtype=np.bool_)
        return
    branches = columns[BRANCH].values.reshape(-1)
    for branch in np.unique(branches).tolist():
        yield branch, branches == branch


def atomic_numbers(columns: Mapping[str, Column]) -> NDArray[np.int64] | None:
    """Return the atomic number of each atom, [n_atoms]; None if ``x[:, 0]`` is something else."""
    values = np.asarray(columns["x"].values)[:, 0]
    numbers = values.astype(np.int64)
    plausible = (numbers == values) & (numbers >= 1) & (numbers <= 118)
    return numbers if plausible.all() else None


def are_isolated(columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """Return True for each graph that is a single node without edges, [n_graphs]."""
    isolated: NDArray[np.bool_] = (columns["x"].counts == 1) & (columns["edge_index"].counts == 0)
    return isolated


def target_array(values: NDArray[Any], target: Target) -> NDArray[np.float64]:
    """Return the values of a target as float64, [n_graphs or n_atoms, dim]."""
    return np.asarray(values, dtype=np.float64).reshape(-1, target.dim)


def _added(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of two histograms, as long as the longer one."""
    total = np.zeros(max(len(left), len(right)), dtype=np.int64)
    total[: len(left)] += left
    total[: len(right)] += right
    return total
