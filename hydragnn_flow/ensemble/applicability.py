"""Detection of structures unlike the training data (out of distribution), and notes on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphSplit, Manifest
from hydragnn_flow.data.columns import spread
from hydragnn_flow.ensemble.environments import (
    Environments,
    Floats,
    Usual,
    extreme,
)
from hydragnn_flow.ensemble.uncertainty.distribution import combine
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, sound

STRANGE = 0.02
"""Fraction of the training data beyond a range that ends at the tail of its values."""
# Number of values below which the standard deviation itself is uncertain.
_FEW = 10


@dataclass(frozen=True)
class Range:
    """Range of a quantity in the data, with a margin within which values count as similar."""

    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, values: Floats) -> Range | None:
        """Compute the range of finite values; None if there are none.

        The range ends at the quantiles 0.3 % and 99.7 %, so with several hundred values or more it
        leaves out the most extreme. The margin is half a standard deviation. Fewer values get a
        wider margin, up to the largest of several hundred normal values: the largest of n is about
        √(2 ln n) standard deviations from the mean.
        """
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = np.quantile(values, [0.003, 0.997], method="inverted_cdf")
        return cls(float(low), float(high), _width(len(values)) * float(values.std()))

    @classmethod
    def below_tail(cls, values: Floats) -> Range:
        """Compute the range from the smallest of n values to their quantile 98 %.

        The margin is 10 / n standard deviations.
        """
        high = np.quantile(values, 1 - STRANGE, method="inverted_cdf")
        return cls(float(values.min()), float(high), _FEW / len(values) * float(values.std()))

    def beyond(self, values: Floats, below: object, above: object) -> Iterator[tuple[int, float]]:
        """Yield the index of each value beyond the range and its margin, and the end exceeded.

        Low values are checked if ``below`` is true, high ones if ``above`` is. The limits allow for
        rounding between two computations of one quantity.
        """
        if below:
            limit = self.low - self.margin - 1e-4 * max(1.0, abs(self.low))
            yield from ((i, self.low) for i in np.flatnonzero(values < limit).tolist())
        if above:
            limit = self.high + self.margin + 1e-4 * max(1.0, abs(self.high))
            yield from ((i, self.high) for i in np.flatnonzero(values > limit).tolist())


def mirrored(values: Floats) -> Floats:
    """Return the values above the median, and their mirror images below it.

    Members agree that perfect crystals have no forces. How small their deviation can be says
    nothing of its usual variation, so only the upper half is used.
    """
    values = values[np.isfinite(values)]
    middle = np.median(values) if len(values) else 0.0
    upper = values[values >= middle]
    return np.concatenate([upper, 2 * middle - upper])


def ranges_of(values: Mapping[str, Floats]) -> dict[str, Range]:
    """Return the range of each quantity by name, without those that have no finite value."""
    found = {name: Range.of(of) for name, of in values.items()}
    return {name: range_ for name, range_ in found.items() if range_ is not None}


def fraction_ranges(fractions: Floats) -> dict[int, Range]:
    """Compute the range of the fraction of each element that occurs, by atomic number.

    In diverse chemistry most structures lack most elements, and say nothing of how much an
    element's fraction varies. The margin therefore comes from structures with the element, and is
    shrunk towards that of the other elements, which count as five structures.

    Parameters
    ----------
    fractions
        Fraction of each element in each structure, ``[n, 119]``.
    """
    held = fractions > 0
    n = held.sum(axis=0)
    means = fractions.sum(axis=0) / np.maximum(n, 1)
    squares = np.square(np.where(held, fractions - means, 0.0)).sum(axis=0)
    variances = (squares + 5 * squares.sum() / n.sum()) / (n + 5)
    lowest, highest = fractions.min(axis=0), fractions.max(axis=0)
    return {
        z: Range(float(lowest[z]), float(highest[z]), _width(int(n[z])) * math.sqrt(variances[z]))
        for z in np.flatnonzero(n).tolist()
    }


def _width(n: int) -> float:
    """Return the margin beyond the ends of n values, in standard deviations."""
    return max(0.5, 3.8 - math.sqrt(2 * math.log(n))) * (1 + _FEW / n)


APPLICABILITY = "applicability.json"
_VERSION = 3

# Number of training structures whose quantities are kept while ranges are computed.
_SAMPLE = 8192


class _Content(msgspec.Struct):
    elements: list[int] | None
    usual: dict[str, Any] | None
    ranges: dict[str, Range]
    fractions: dict[int, Range]
    deviations: dict[str, Range]


@dataclass(frozen=True)
class Applicability:
    """Ranges of quantities in the ensemble's training and calibration data."""

    elements: list[int] | None = None
    """Atomic numbers in the training data; None if nodes are not atoms, and then only
    ``deviations`` are known."""
    usual: Usual | None = None
    ranges: dict[str, Range] = field(default_factory=dict)
    """Ranges of the quantities of :meth:`Usual.quantities` in the training data."""
    fractions: dict[int, Range] = field(default_factory=dict)
    """Range of each element's fraction in a structure of the training data."""
    deviations: dict[str, Range] = field(default_factory=dict)
    """Range of the logarithm of the members' deviation in the calibration data, by target."""

    @classmethod
    def of(
        cls, training: GraphSplit, manifest: Manifest, deviations: Mapping[str, Floats]
    ) -> Applicability:
        """Compute the ranges; the training split is streamed three times, in constant memory.

        Parameters
        ----------
        training
            Graphs of the training data. From more than 8,192, as many are taken evenly.
        manifest
            Manifest of their store.
        deviations
            Deviations of the members by target, for structures that they were not trained on, see
            :func:`deviations_of`.
        """
        with np.errstate(divide="ignore"):
            logs = {name: mirrored(np.log(values)) for name, values in deviations.items()}
        beyond = ranges_of(logs)
        atoms = manifest.node_features[:1] == ["atomic_number"] and manifest.elements
        if not atoms or not len(training):
            return cls(None, deviations=beyond)
        usual = Usual.found(lambda: _environments(training))
        quantities: dict[str, list[Floats]] = {}
        fractions: list[Floats] = []
        for one in _environments(training):
            for name, values in usual.quantities(one).items():
                quantities.setdefault(name, []).append(values)
            fractions.append(one.fractions)
        found = {name: np.concatenate(values) for name, values in quantities.items()}
        ranges = ranges_of(found) | {"surroundings": Range.below_tail(found["surroundings"])}
        of_elements = fraction_ranges(np.concatenate(fractions))
        elements = sorted(of_elements)
        if len(training) > _SAMPLE:
            elements = sorted(set(manifest.elements) - manifest.unseen)
        return cls(elements, usual, ranges, of_elements, beyond)

    def notes(self, batch: Batch) -> list[str]:
        """Return notes on how each structure of a batch differs from the training data.

        Returns
        -------
        list
            Note on each structure, empty if it is like the training data: quantity, value, unit and
            the range of the data.
        """
        if self.elements is None or self.usual is None:
            return [""] * batch.num_graphs
        one = Environments.of(batch)
        notes: list[list[str]] = [[] for _ in one.n_atoms]
        for graph, note in self._said(one, self.usual):
            notes[graph].append(note)
        return ["; ".join(of) for of in notes]

    def deviation_notes(self, deviations: Mapping[str, Floats], manifest: Manifest) -> list[str]:
        """Return notes where members differ more than on any structure of calibration.

        Parameters
        ----------
        deviations
            Deviations of the members by target, see :func:`deviations_of`.
        manifest
            Manifest of the training data, for units.
        """
        n = max((len(values) for values in deviations.values()), default=0)
        notes = [""] * n
        for name, values in deviations.items():
            if range_ := self.deviations.get(name):
                unit = f" {manifest.targets[name].unit}".rstrip()
                unit += " per atom" if manifest.is_extensive(name) else ""
                told = _Quantity(f"the members' deviation of {name}", unit, "", "largest", True)
                with np.errstate(divide="ignore", invalid="ignore"):
                    found = dict(told.notes(range_, np.log(values), "calibration"))
                notes = joined_notes(notes, [found.get(graph, "") for graph in range(n)])
        return notes

    def _said(self, one: Environments, usual: Usual) -> Iterator[tuple[int, str]]:
        """Yield the index of each structure that differs from the training data, and a note."""
        assert self.elements is not None
        known = np.isin(one.numbers, self.elements)
        strange = np.unique(one.graph[~known]).tolist()
        for graph in strange:
            found = np.unique(one.numbers[(one.graph == graph) & ~known])
            symbols = ", ".join(chemical_symbols[z] for z in found)
            yield graph, f"the training data have no {symbols}"
        quantities = usual.quantities(one)
        told = [
            (_QUANTITIES[k], self.ranges[k], v) for k, v in quantities.items() if k in self.ranges
        ]
        for z, range_ in self.fractions.items():
            fraction = _Quantity(
                f"the fraction of {chemical_symbols[z]}", "", "smallest", "largest"
            )
            told.append((fraction, range_, one.fractions[:, z].copy()))
        for quantity, range_, values in told:
            values[strange] = np.nan  # the unknown element is note enough
            yield from quantity.notes(range_, values, "training", one, usual)

    def save(self, path: Path) -> None:
        """Write `applicability.json`, whole or not at all."""
        kinds = ("ranges", "fractions", "deviations")
        ranges = {kind: getattr(self, kind) for kind in kinds}
        values = {
            "version": _VERSION,
            "elements": self.elements,
            **msgspec.to_builtins(ranges, str_keys=True),
            "usual": None if self.usual is None else self.usual.to_dict(),
        }
        write_json(path, values)

    @classmethod
    def load(cls, path: Path) -> Applicability:
        """Read `applicability.json`.

        Raises
        ------
        InputError
            If it is missing, damaged or of another version.
        """
        remedy = f"{FROM_A_COPY}, or, in a run, delete ensemble.json and start the run again"
        values = read_json(path, remedy)
        with sound(path, remedy):
            if values["version"] not in (2, _VERSION):  # 2 has quantities that no longer count
                raise ValueError("of another version")
            found = msgspec.convert(values, _Content, str_keys=True)
            usual = None if found.usual is None else Usual.from_dict(found.usual)
            return cls(found.elements, usual, found.ranges, found.fractions, found.deviations)


def deviations_of(
    members: Mapping[str, Floats],
    weights: Floats,
    manifest: Manifest,
    n_atoms: NDArray[np.int64],
) -> dict[str, Floats]:
    """Compute the standard deviation between members for each structure, ``[n]``, by target.

    It is per atom for extensive targets, and that of the atom where it is largest for node targets.
    Components are added in squares. NaN without a prediction, such as a stress without volume.

    Parameters
    ----------
    members
        Predictions of every member ``[n_members, n, d]`` by output.
    weights
        Weights of the members, ``[n_members]``.
    manifest
        Manifest of the training data.
    n_atoms
        Number of atoms of each structure.
    """
    found = {}
    of_atom = np.repeat(np.arange(len(n_atoms)), n_atoms)
    for name, target in manifest.targets.items():
        if name not in members:
            continue
        _, spread = combine(members[name], weights)
        deviation = np.sqrt(np.square(spread).sum(axis=1))
        if target.level == "node":
            deviation = extreme(np.fmax, deviation, of_atom, len(n_atoms))
        elif manifest.is_extensive(name):
            deviation = deviation / n_atoms
        found[name] = deviation
    return found


def are_noted(notes: Sequence[str]) -> NDArray[np.bool_]:
    """Return the mask of structures with a note, ``[n]``."""
    return np.array([bool(note) for note in notes], dtype=bool)


def joined_notes(*notes: Sequence[str]) -> list[str]:
    """Return the notes on each structure joined with '; ', without empty ones."""
    return ["; ".join(filter(None, of)) for of in zip(*notes, strict=True)]


@dataclass(frozen=True)
class _Quantity:
    """Quantity of structures, and how notes describe values beyond its range."""

    name: str
    unit: str
    below: str
    above: str
    """Wording of the upper end of the range, as ``below``; empty if exceeding it is harmless."""
    logarithmic: bool = False
    measured: Callable[[Environments, Usual, int], tuple[str, float]] | None = None
    """Function that returns words for the part of a structure that is meant, such as an atom, and
    its value. Without it a note gives the value that was compared."""

    def notes(
        self,
        range_: Range,
        values: Floats,
        data: str,
        one: Environments | None = None,
        usual: Usual | None = None,
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each structure whose value is beyond the range, and a note on it."""
        for graph, end in range_.beyond(values, self.below, self.above):
            found = float(values[graph])
            which, value = "", math.exp(found) if self.logarithmic else found
            if self.measured is not None and one is not None and usual is not None:
                which, value = self.measured(one, usual, graph)
            # In proportion, because the words may be about another measure of the same part.
            limit = value * math.exp(end - found) if self.logarithmic else end
            if self.logarithmic and math.isinf(found):
                limit = math.exp(end)
            side, word = ("below", self.below) if found < end else ("above", self.above)
            yield (
                graph,
                f"{self.name}{which} is {value:.3g}{self.unit}, {side} {limit:.3g}{self.unit}, the "
                f"{word} in the {data} data",
            )


def _closest(one: Environments, usual: Usual, graph: int) -> tuple[str, float]:
    edges = np.flatnonzero(one.graph[one.receiver] == graph)
    edge = edges[usual.closer(one)[edges].argmin()]
    ends = sorted((one.numbers[one.sender[edge]], one.numbers[one.receiver[edge]]))
    return " " + "–".join(chemical_symbols[z] for z in ends), float(one.lengths[edge])


def _strangest(one: Environments, usual: Usual, graph: int) -> tuple[str, float]:
    atoms = np.flatnonzero(one.graph == graph)
    away = usual.strangeness(one)[atoms]
    atom = int(away.argmax())
    return f" of atom {atom} ({chemical_symbols[one.numbers[atoms[atom]]]})", float(away[atom])


def _volume(one: Environments, usual: Usual, graph: int) -> tuple[str, float]:
    return "", float(one.volumes[graph] / one.n_atoms[graph])


_USUAL = "the distance from usual ones of the surroundings"
_SMALLEST, _LARGEST = "smallest of such elements", "largest of such elements"
_QUANTITIES = {
    "shortest": _Quantity("the distance", " Å", "shortest of such elements", "", True, _closest),
    "surroundings": _Quantity(
        _USUAL, "", "", f"largest of {100 * (1 - STRANGE):g} %", measured=_strangest
    ),
    "volume": _Quantity("the volume per atom", " Å³", _SMALLEST, _LARGEST, True, _volume),
    "atoms": _Quantity("the number of atoms", "", "smallest", "largest"),
}


def _environments(split: GraphSplit) -> Iterator[Environments]:
    """Return the environments of a split, or of 8,192 of its graphs taken evenly, in batches."""
    chosen = np.sort(np.concatenate(list(spread(split.branch_runs, _SAMPLE))))
    batches = split.batches(chosen[i : i + 64] for i in range(0, len(chosen), 64))
    return map(Environments.of, batches)
