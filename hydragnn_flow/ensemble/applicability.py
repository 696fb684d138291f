"""Detection of structures unlike the training data (out of distribution), and notes on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from hydragnn_flow.ensemble.uncertainty.distribution import StructureFacts, combine
from hydragnn_flow.files import write_json
from hydragnn_flow.models.leverage import LEVERAGE
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, sound

STRANGE = 0.02
"""Fraction of the training data above the upper end of a range from :meth:`Range.below_tail`."""
# Number of values below which the standard deviation itself is uncertain.
_FEW = 10


@dataclass(frozen=True)
class Range:
    """Range of a quantity, such as the volume per atom, in the training or calibration data.

    Values beyond the range by no more than its margin still count as similar to the data.
    """

    low: float
    high: float
    margin: float

    @classmethod
    def of(cls, values: Floats) -> Range | None:
        """Compute the range of the finite values among ``values``; None if no value is finite.

        The range ends at the quantiles 0.3 % and 99.7 %, so with several hundred values or more it
        leaves out the most extreme ones. The margin of many values is half a standard deviation.
        Fewer values get a wider margin, as they lack the extremes of many: the largest of n normal
        values is about √(2 ln n) standard deviations from the mean.
        """
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = np.quantile(values, [0.003, 0.997], method="inverted_cdf")
        return cls(float(low), float(high), _width(len(values)) * float(values.std()))

    @classmethod
    def below_tail(cls, values: Floats) -> Range:
        """Compute the range from the smallest of n values to their 98 % quantile.

        The margin is 10 / n times the standard deviation of the values.
        """
        high = np.quantile(values, 1 - STRANGE, method="inverted_cdf")
        return cls(float(values.min()), float(high), _FEW / len(values) * float(values.std()))

    def beyond(self, values: Floats, below: object, above: object) -> Iterator[tuple[int, float]]:
        """Yield the index of each value outside the range and its margin, and the end it is beyond.

        Low values are checked if ``below`` is true, high values if ``above`` is.
        """
        if below:
            limit = self.low - self.margin - _rounding(self.low)
            yield from ((i, self.low) for i in np.flatnonzero(values < limit).tolist())
        if above:
            yield from ((i, self.high) for i in np.flatnonzero(values > self.highest).tolist())

    @property
    def highest(self) -> float:
        """Largest value that counts as inside: upper end of the range, plus margin and rounding."""
        return self.high + self.margin + _rounding(self.high)


def _rounding(value: float) -> float:
    """Return the allowance for rounding between two computations of a quantity."""
    return 1e-4 * max(1.0, abs(value))


def mirrored(values: Floats) -> Floats:
    """Return the upper half of the values, and its mirror image about the median.

    The values are logarithms of deviations between members; those that are not finite are left out.
    Members agree that perfect crystals have no forces. So the smallest deviations between members
    do not show how much a deviation usually varies, and only the upper half is used. A single
    deviation does not show it either.
    """
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return values[:0]
    middle = np.median(values)
    upper = values[values >= middle]
    return np.concatenate([upper, 2 * middle - upper])


def ranges_of(values: Mapping[str, Floats]) -> dict[str, Range]:
    """Return the range of each quantity that has finite values, by name of the quantity."""
    found = {name: Range.of(of) for name, of in values.items()}
    return {name: range_ for name, range_ in found.items() if range_ is not None}


def fraction_ranges(fractions: Floats) -> dict[int, Range]:
    """Compute the range of each element's fraction among a structure's atoms, by atomic number.

    Elements that no structure contains have no range. In diverse chemistry most structures lack
    most elements, and do not show how much an element's fraction varies. The margin therefore comes
    from the structures with the element. Their variance is averaged with the mean variance over all
    elements, which counts as much as five structures.

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
    """Return the margin of a range of ``n`` values, in units of their standard deviation."""
    return max(0.5, 3.8 - math.sqrt(2 * math.log(n))) * (1 + _FEW / n)


APPLICABILITY = "applicability.json"
_VERSION = 5

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
    """Ranges of structures' quantities in the training and calibration data of an ensemble.

    A structure beyond a range is unlike those data; it gets a note and is flagged.
    """

    elements: list[int] | None = None
    """Atomic numbers in the training data; None if nodes are not atoms, or if there were no data:
    then only ``deviations`` are known."""
    usual: Usual | None = None
    """Mean environments of elements in the training data; None if ``elements`` is None."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """Ranges of the quantities of :meth:`Usual.quantities` in the training data."""
    fractions: dict[int, Range] = field(default_factory=dict)
    """Range of each element's fraction in a structure of the training data, by atomic number."""
    deviations: dict[str, Range] = field(default_factory=dict)
    """Range of the logarithm of the deviation in the calibration data, by target; the deviation is
    that of :func:`deviations_of`."""

    @classmethod
    def of(cls, training: GraphSplit, manifest: Manifest) -> Applicability:
        """Compute the ranges of quantities in a training split, in constant memory.

        The split is read three times.

        Parameters
        ----------
        training
            Training split. At most 8,192 of its graphs are used, spread evenly over each branch
            (data set).
        manifest
            Manifest of the store with the training split.
        """
        if not (manifest.has_atoms and manifest.elements) or not len(training):
            return cls()
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
        return cls(elements, usual, ranges, of_elements)

    def with_deviations(self, deviations: Mapping[str, Floats]) -> Applicability:
        """Return a copy with the range of the standard deviation between members, by target.

        Parameters
        ----------
        deviations
            Deviations by target, from :func:`deviations_of`, for structures that no member was
            trained on.
        """
        with np.errstate(divide="ignore"):
            logs = {name: mirrored(np.log(of)) for name, of in deviations.items()}
        return replace(self, deviations=ranges_of(logs))

    def compare(self, batch: Batch) -> list[str]:
        """Return a note on how each structure of a batch differs from the training data.

        The note is empty if the structure is like them. Otherwise it names each quantity beyond its
        range, with its value and the end of the range, or elements that the training data lack.
        """
        if self.elements is None or self.usual is None:
            return [""] * batch.num_graphs
        one = Environments.of(batch)
        notes: list[list[str]] = [[] for _ in one.n_atoms]
        for graph, note in self._said(one, self.usual, self.usual.quantities(one)):
            notes[graph].append(note)
        return ["; ".join(of) for of in notes]

    def disagreement(
        self, deviations: Mapping[str, Floats], manifest: Manifest
    ) -> tuple[list[str], Floats]:
        """Return notes on structures that members disagree about, and the disagreement, ``[n]``.

        Parameters
        ----------
        deviations
            Deviations between members by target, ``[n]``, from :func:`deviations_of`.
        manifest
            Manifest of the training data, which gives the units.

        Returns
        -------
        notes
            Note on each structure, empty if no deviation exceeds its range in the calibration data.
        disagreement
            Disagreement about each structure ``[n]``, without a unit: the deviation between
            members divided by the deviation above which a structure is flagged. That limit is the
            end of the range in the calibration data, with its margin. The largest disagreement over
            all targets counts. It is NaN where no target has both a prediction and a range.
        """
        n = max((len(values) for values in deviations.values()), default=0)
        notes, above = [""] * n, np.full(n, np.nan)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for name, range_ in self.deviations.items():
                if name not in deviations:
                    continue
                logs = np.log(deviations[name])
                above = np.fmax(above, logs - range_.highest)
                unit = f" {manifest.targets[name].unit}".rstrip()
                unit += " per atom" if manifest.is_extensive(name) else ""
                told = _Quantity(f"the doubt about {name}", unit, "", "largest", True)
                found = dict(told.notes(range_, logs, "calibration"))
                notes = joined_notes(notes, [found.get(graph, "") for graph in range(n)])
            return notes, np.asarray(np.exp(above))

    def _said(
        self, one: Environments, usual: Usual, quantities: Mapping[str, Floats]
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of a structure and a note, for each way it differs from training data."""
        assert self.elements is not None
        known = np.isin(one.numbers, self.elements)
        strange = np.unique(one.graph[~known]).tolist()
        for graph in strange:
            found = np.unique(one.numbers[(one.graph == graph) & ~known])
            symbols = ", ".join(chemical_symbols[z] for z in found)
            yield graph, f"the training data have no {symbols}"
        told = [
            (quantity, self.ranges[name], quantities[name])
            for name, quantity in _QUANTITIES.items()
            if name in self.ranges
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
        """Write the ranges to the file ``path`` (`applicability.json`), whole or not at all."""
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
        """Read the ranges from the file ``path`` (`applicability.json`).

        Raises
        ------
        InputError
            If the file is missing, damaged or of another version.
        """
        remedy = f"{FROM_A_COPY}, or, in a run, delete ensemble.json and start the run again"
        values = read_json(path, remedy)
        with sound(path, remedy):
            if values["version"] != _VERSION:
                raise ValueError("of another version")
            found = msgspec.convert(values, _Content, str_keys=True)
            usual = None if found.usual is None else Usual.from_dict(found.usual)
            return cls(found.elements, usual, found.ranges, found.fractions, found.deviations)


def extrapolation_of(members: Mapping[str, Floats], weights: Floats) -> Floats | None:
    """Return the extrapolation of structures, how far from the training data they lie, ``[n]``.

    The extrapolation has no unit. It is the root of the mean over members of the structure's
    :class:`.Leverage`. The result is None if some member does not give its leverage.

    Parameters
    ----------
    members
        Outputs of every member ``[n_members, n, d]`` by name.
    weights
        Weights of the members ``[n_members]``; those with weight zero do not count.
    """
    if (leverage := members.get(LEVERAGE)) is None:
        return None
    return np.asarray(np.sqrt(leverage[weights > 0].mean(axis=0)[:, 0]))


def deviations_of(
    members: Mapping[str, Floats],
    weights: Floats,
    manifest: Manifest,
    structures: StructureFacts,
) -> dict[str, Floats]:
    """Compute the standard deviation between members for each structure, ``[n]``, by target.

    The deviation of an extensive target is divided by the number of atoms. The deviation of a node
    target is the largest over the structure's atoms. The components' variances are added. All
    members may be wrong alike where they extrapolate, so the deviation is multiplied by the root of
    one plus the squared extrapolation. The result is NaN for a structure without a prediction, such
    as the stress of a structure that is not periodic.

    Parameters
    ----------
    members
        Predictions of every member ``[n_members, n, d]`` by name of the output.
    weights
        Weights of the members, ``[n_members]``.
    manifest
        Manifest of the training data.
    structures
        Number of atoms and extrapolation of each structure.
    """
    found = {}
    n_atoms, beyond = structures.n_atoms, structures.extrapolation
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
        found[name] = deviation if beyond is None else deviation * np.hypot(1.0, beyond)
    return found


def are_noted(notes: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask ``[n]``, True for each structure whose note is not empty."""
    return np.array([bool(note) for note in notes], dtype=bool)


def joined_notes(*notes: Sequence[str]) -> list[str]:
    """Join several notes on each structure to one, with '; '; empty notes are left out.

    Each argument is a list with one note, perhaps empty, on each structure.
    """
    return ["; ".join(filter(None, of)) for of in zip(*notes, strict=True)]


@dataclass(frozen=True)
class _Quantity:
    """Quantity of structures, and how notes describe values beyond its range."""

    name: str
    unit: str
    below: str
    above: str
    """Words for the upper end of the range in a note, such as ``largest``; empty if exceeding that
    end is harmless. ``below`` has the words for the lower end."""
    logarithmic: bool = False
    """True if the values and their range are logarithms of the quantity."""
    measured: Callable[[Environments, Usual, int], tuple[str, float]] | None = None
    """Function that returns, for the structure of an index, words for the part of it that is
    extreme, such as an atom, and the value of that part for the note. If None, the note gives the
    value that was compared."""

    def notes(
        self,
        range_: Range,
        values: Floats,
        data: str,
        one: Environments | None = None,
        usual: Usual | None = None,
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each structure whose value is beyond the range, and a note on it.

        ``values`` has a value for each structure, ``[n]``. ``data`` names the data of the range:
        ``training`` or ``calibration``.
        """
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


_USUAL = "the strangeness of the surroundings"
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
    """Return an iterator over batches of environments, of at most 8,192 graphs of a split.

    The graphs are spread evenly over each branch (data set) of the split.
    """
    chosen = np.sort(np.concatenate(list(spread(split.branch_runs, _SAMPLE))))
    batches = split.batches(chosen[i : i + 64] for i in range(0, len(chosen), 64))
    return map(Environments.of, batches)
