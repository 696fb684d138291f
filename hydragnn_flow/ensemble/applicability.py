"""Detection of out-of-distribution structures, with notes on how they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from ase.data import chemical_symbols
from numpy.typing import NDArray
from torch_geometric.data import Batch

from hydragnn_flow.data import GraphSplit, Manifest
from hydragnn_flow.data.branch_runs import spread
from hydragnn_flow.ensemble.environments import (
    SURROUNDINGS,
    Environments,
    Floats,
    Usual,
    extreme,
)
from hydragnn_flow.ensemble.ranges import (
    STRANGE,
    Range,
    fraction_ranges,
    mirrored,
    ranges_of,
)
from hydragnn_flow.ensemble.uncertainty import combine
from hydragnn_flow.files import write_json
from hydragnn_flow.plain_files import FROM_A_COPY, read_json, sound

APPLICABILITY = "applicability.json"
_VERSION = 2

# Number of training structures whose quantities are kept while ranges are computed.
_SAMPLE = 8192
_BATCH = 64


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
    """Atomic numbers in the training data; None if nodes are not atoms, and all else unknown."""
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
        ranges = ranges_of(found) | {SURROUNDINGS: Range.below_tail(found[SURROUNDINGS])}
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
        notes: dict[int, list[str]] = {}
        for name, values in deviations.items():
            if (range_ := self.deviations.get(name)) is None:
                continue
            unit = f" {manifest.targets[name].unit}".rstrip()
            unit += " per atom" if manifest.is_extensive(name) else ""
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(values)
            what = f"the members' deviation of {name}"
            for graph, end in range_.beyond(logs, False, True):
                note = _note(
                    what, values[graph], math.exp(end), unit, "largest", False, "calibration"
                )
                notes.setdefault(graph, []).append(note)
        n = max((len(values) for values in deviations.values()), default=0)
        return ["; ".join(notes.get(graph, ())) for graph in range(n)]

    def _said(self, one: Environments, usual: Usual) -> Iterator[tuple[int, str]]:
        """Yield structure numbers and notes."""
        assert self.elements is not None
        known = np.isin(one.numbers, self.elements)
        strange = np.unique(one.graph[~known]).tolist()
        for graph in strange:
            found = np.unique(one.numbers[(one.graph == graph) & ~known])
            symbols = ", ".join(chemical_symbols[z] for z in found)
            yield graph, f"the training data have no {symbols}"
        for name, values in usual.quantities(one).items():
            if (range_ := self.ranges.get(name)) is None:
                continue
            saying = _SAYINGS[name]
            values[strange] = np.nan  # the unknown element is note enough
            for graph, end in range_.beyond(values, saying.below, saying.above):
                yield graph, saying.note(one, usual, graph, values[graph], end)
        for z, range_ in self.fractions.items():
            values = one.fractions[:, z].copy()
            values[strange] = np.nan
            what = f"the fraction of {chemical_symbols[z]}"
            for graph, end in range_.beyond(values, "smallest", "largest"):
                is_below = bool(values[graph] < end)
                word = "smallest" if is_below else "largest"
                yield graph, _note(what, values[graph], end, "", word, is_below)

    def save(self, path: Path) -> None:
        """Write `applicability.json`, whole or not at all."""
        values = {
            "version": _VERSION,
            "elements": self.elements,
            "ranges": _plain(self.ranges),
            "fractions": _plain(self.fractions),
            "deviations": _plain(self.deviations),
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
            if values["version"] != _VERSION:
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
    """Join the notes on each structure with '; '."""
    return ["; ".join(filter(None, of)) for of in zip(*notes, strict=True)]


@dataclass(frozen=True)
class _Saying:
    value: Callable[[Environments, Usual, int], tuple[str, float, str]]
    """Function that returns name, value and unit of a structure's quantity."""
    logarithmic: bool
    below: str = ""
    above: str = ""
    """Wording of the upper end of the range, as ``below``; empty if exceeding it is harmless."""

    def note(self, one: Environments, usual: Usual, graph: int, found: float, end: float) -> str:
        """Return the note on a structure whose relative quantity is ``found``, beyond ``end``."""
        what, value, unit = self.value(one, usual, graph)
        limit = value * math.exp(end - found) if self.logarithmic else value + end - found
        is_below = found < end
        return _note(what, value, limit, unit, self.below if is_below else self.above, is_below)


def _shortest(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    edges = one.edges_of(graph)
    edge = edges[usual.closer(one)[edges].argmin()]
    ends = sorted((one.numbers[one.sender[edge]], one.numbers[one.receiver[edge]]))
    pair = "–".join(chemical_symbols[z] for z in ends)
    return f"the distance {pair}", float(one.lengths[edge]), " Å"


def _nearest(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    edges = one.edges_of(graph)
    shortest = np.full(len(one.numbers), np.inf)
    np.minimum.at(shortest, one.receiver[edges], one.lengths[edges])
    mean = float(shortest[np.isfinite(shortest)].mean())
    return "the mean distance of nearest neighbours", mean, " Å"


def _fewest(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    return _neighbours_of(one, graph, int(usual.more_neighbours(one)[one.atoms_of(graph)].argmin()))


def _most(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    return _neighbours_of(one, graph, int(usual.more_neighbours(one)[one.atoms_of(graph)].argmax()))


def _neighbours_of(one: Environments, graph: int, atom: int) -> tuple[str, float, str]:
    at = one.atoms_of(graph)[atom]
    symbol = chemical_symbols[one.numbers[at]]
    return (
        f"the coordination number of atom {atom} ({symbol})",
        round(float(one.neighbours[at]), 2),
        "",
    )


def _neighbours(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    mean = float(one.neighbours[one.atoms_of(graph)].mean())
    return "the mean coordination number", mean, ""


def _surroundings(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    atoms = one.atoms_of(graph)
    away = usual.strangeness(one)[atoms]
    atom = int(away.argmax())
    symbol = chemical_symbols[one.numbers[atoms[atom]]]
    what = f"the distance from usual ones of the surroundings of atom {atom} ({symbol})"
    return what, float(away[atom]), ""


def _volume(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    return "the volume per atom", float(one.volumes[graph] / one.n_atoms[graph]), " Å³"


def _atoms(one: Environments, usual: Usual, graph: int) -> tuple[str, float, str]:
    return "the number of atoms", float(one.n_atoms[graph]), ""


_SAYINGS = {
    "shortest": _Saying(_shortest, True, below="shortest of such elements"),
    "nearest": _Saying(_nearest, True, "shortest of such elements", "longest of such elements"),
    "fewest": _Saying(_fewest, False, below="smallest of such elements"),
    "most": _Saying(_most, False, above="largest of such elements"),
    "neighbours": _Saying(
        _neighbours, False, "smallest of such elements", "largest of such elements"
    ),
    SURROUNDINGS: _Saying(_surroundings, False, above=f"largest of {100 * (1 - STRANGE):g} %"),
    "volume": _Saying(_volume, True, "smallest of such elements", "largest of such elements"),
    "atoms": _Saying(_atoms, False, "smallest", "largest"),
}


def _note(
    what: str,
    value: float,
    limit: float,
    unit: str,
    end: str,
    is_below: bool,
    data: str = "training",
) -> str:
    side = "below" if is_below else "above"
    return f"{what} is {value:.3g}{unit}, {side} {limit:.3g}{unit}, the {end} in the {data} data"


def _environments(split: GraphSplit) -> Iterator[Environments]:
    """Return environments of a split, or of an even sample of its graphs, in batches."""
    chosen = np.sort(np.concatenate(list(spread(split.branch_runs, _SAMPLE))))
    batches = split.batches(chosen[i : i + _BATCH] for i in range(0, len(chosen), _BATCH))
    return map(Environments.of, batches)


def _plain(ranges: Mapping[Any, Range]) -> dict[str, dict[str, float]]:
    return {str(name): asdict(one) for name, one in ranges.items()}
