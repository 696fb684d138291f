"""Table of predictions: a row per structure, and a row per atom for node targets.

Structures are also written as extended XYZ with what was predicted for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, NamedTuple

import ase.io
import numpy as np
import pandas as pd
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.uncertainty.distribution import Distribution, Floats
from hydragnn_flow.models.geometry import STRESS, VOIGT

GRAPH_ID, ID, NOTE, FLAGGED, DISAGREEMENT = "graph_id", "id", "note", "flagged", "disagreement"
DATA_SET = "data_set"
ERROR = "_error"
NODES = "_nodes"
"""Suffix of the name of the table of atoms."""
Column = Sequence[Any] | NDArray[Any]
_OF_DISTRIBUTION = ("mean", "std", "spread", "epistemic_std", "aleatoric_std", "lo", "hi")
"""Arrays of a :class:`Distribution`, which are columns by the same names."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of an ensemble as tables of structures and of atoms, in the input's order.

    Units of the columns, the names of each target's components and the coverage of the intervals
    are in ``DataFrame.attrs``.
    """

    graphs: pd.DataFrame
    """Table with a row per structure: `graph_id`, then the columns of each graph target.

    Graphs from several splits of a store have a column `split` before `graph_id`. If several data
    sets were trained on, `data_set` names the one whose branch predicts a structure. Structures
    from files have the columns `file` and `frame`, structures that are not from a store `formula`,
    and structures that have a name `id`. The column `note` says what is wrong with a structure, and
    is empty otherwise. Predictions that could not be made are NaN. The column `flagged` is true if
    there is no prediction, or if the structure is unlike the ensemble's training data;
    `disagreement` is that of :meth:`.Applicability.disagreement`.
    """
    nodes: pd.DataFrame | None
    """Table with a row per atom: the columns of the structure's origin as in ``graphs``,
    `node_index`, then the columns of each node target. None without node targets."""

    def by_name(self) -> dict[str, pd.DataFrame]:
        """Return the tables by suffix of their file's name: empty for ``graphs``, or `_nodes`."""
        return {"": self.graphs} | ({} if self.nodes is None else {NODES: self.nodes})

    def _repr_html_(self) -> str:
        return "".join(table.to_html(max_rows=20) for table in self.by_name().values())


class Chunk(NamedTuple):
    """Predictions of some structures that are written together, as tables, with counts."""

    tables: Predictions
    structures: Sequence[Atoms] = ()
    """Structures that carry their predictions; empty unless requested."""
    without: int = 0
    """Number of structures that could not be predicted."""
    unlike: int = 0
    """Number of predicted structures that are unlike the ensemble's training or calibration
    data."""


class TargetValues(NamedTuple):
    """Predictions of one target for some structures, with its true values where known."""

    described: Target
    """Level, number of components and unit of the target."""
    predicted: Distribution
    """Combined predictions, as arrays ``[n, d]``."""
    labels: Floats | None = None
    """True values ``[n, d]``, NaN where unknown; None if the input cannot have any."""
    members: Mapping[int, Floats] = {}
    """Predictions ``[n, d]`` of each member by its number; empty unless they are to be written."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the target's columns, ``[n, d]``, by name suffix such as `_mean`.

        For classes they are ``[n, 1]``: the name of the true class and of the most probable one,
        and the probability of each class.
        """
        if self.described.classes:
            return self._of_classes()
        arrays = {f"_{name}": getattr(self.predicted, name) for name in _OF_DISTRIBUTION}
        if self.labels is not None:
            arrays = {"": self.labels, ERROR: self.predicted.mean - self.labels} | arrays
        arrays |= {f"_member_{k}": member for k, member in self.members.items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def _of_classes(self) -> dict[str, NDArray[Any]]:
        found, classes = self.predicted.mean, self.described.classes
        arrays: dict[str, NDArray[Any]] = {}
        if self.labels is not None:
            missed = 1 - (self.labels * found).sum(axis=1, keepdims=True)
            arrays = {"": _named(self.labels, classes), ERROR: missed}
        arrays["_predicted"] = _named(found, classes)
        members = {f"_member_{k}": member for k, member in self.members.items()}
        for suffix, values in {"": found, **members}.items():
            for place, name in enumerate(classes):
                arrays[f"_probability_{name}{suffix}"] = values[:, [place]]
        return arrays


def build_tables(
    origins: Mapping[str, Column],
    n_atoms: NDArray[np.int64],
    targets: Mapping[str, TargetValues],
    coverage: float,
    judgement: Mapping[str, Column],
) -> Predictions:
    """Return predictions as tables: one row per structure, and one per atom for node targets.

    Parameters
    ----------
    origins
        First columns of both tables by name: the origin of each structure.
    n_atoms
        Number of atoms of each structure, in the order of the input.
    targets
        Predictions and true values by name of the target.
    coverage
        Fraction of true values in the intervals.
    judgement
        Further columns of the table of structures by name: notes, flags and disagreement.
    """
    of_graphs = {name: _column(values) for name, values in origins.items()}
    of_nodes = {name: np.repeat(values, n_atoms) for name, values in of_graphs.items()}
    of_nodes["node_index"] = np.concatenate([np.zeros(0, np.int64), *map(np.arange, n_atoms)])
    of_graphs |= {name: _column(values) for name, values in judgement.items()}
    tables = {}
    for level, columns in (("graph", of_graphs), ("node", of_nodes)):
        units: dict[str, str] = {}
        components: dict[str, list[str]] = {}
        for name, values in targets.items():
            if values.described.level != level:
                continue
            arrays = values.arrays()
            components[name] = component_names(name, next(iter(arrays.values())).shape[1])
            for k, label in enumerate(components[name]):
                new = {f"{label}{suffix}": array[:, k] for suffix, array in arrays.items()}
                columns |= new
                units |= dict.fromkeys(new, values.described.unit)
        tables[level] = pd.DataFrame(columns)
        tables[level].attrs = {"units": units, "components": components, "coverage": coverage}
    nodes = tables["node"]
    return Predictions(tables["graph"], nodes if nodes.attrs["components"] else None)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate tables of predictions, and drop columns of ids and labels that are empty."""
    of_parts, tables = [part.by_name() for part in parts], {}
    for name, first in of_parts[0].items():
        table = pd.concat([part[name] for part in of_parts], ignore_index=True)
        empty = [column for column in may_be_absent(table) if not table[column].notna().any()]
        tables[name] = table.drop(columns=empty)
        tables[name].attrs = first.attrs
    return Predictions(tables[""], tables.get(NODES))


def may_be_absent(columns: Iterable[object]) -> list[str]:
    """Return the names of a table's columns that are dropped if empty: `id`, labels, errors."""
    known = [str(name) for name in columns]
    labels = {name for name in known if f"{name}{ERROR}" in known}
    return [name for name in known if name == ID or name.removesuffix(ERROR) in labels]


def component_names(target: str, dim: int) -> list[str]:
    """Return the column names of a target, such as `energy`, `forces_x` or `spectrum_0`.

    A `stress` of six is in Voigt's order: `stress_xx`, `stress_yy`, `stress_zz`, `stress_yz`, …
    """
    if dim == 1:
        return [target]
    axes: Iterable[object] = range(dim)
    if dim == 3:
        axes = "xyz"
    elif target == STRESS and dim == 6:
        axes = VOIGT
    return [f"{target}_{axis}" for axis in axes]


def _named(values: Floats, classes: Sequence[str]) -> NDArray[np.object_]:
    """Return the name of the class with the largest value in each row, ``[n, 1]``; None for NaN.

    ``values`` are ``[n, n_classes]``.
    """
    known = np.isfinite(values).all(axis=1)
    places = np.where(known, np.nan_to_num(values).argmax(axis=1), len(classes))
    return np.array([*classes, None], dtype=object)[places][:, None]


def _column(values: Column) -> NDArray[Any]:
    """Return a column as an array, of objects for strings.

    In an array of strings, each entry would take as much memory as the longest.
    """
    column = np.asarray(values)
    return column.astype(object) if column.dtype.kind in "US" else column


def extended_xyz(structures: Sequence[Atoms]) -> str:
    """Return the text of structures in extended XYZ, with their results, `info` and `arrays`.

    In this format a line break ends the `info` of a structure, and a blank ends a value of an
    array. So line breaks in `info` become blanks. Arrays are left out whose strings are empty or
    contain blanks, whose numbers are complex, or which have more than two axes.
    """
    text = StringIO()
    ase.io.write(text, [_writable(atoms) for atoms in structures], format="extxyz")
    return text.getvalue()


def with_predictions(
    structures: Sequence[Atoms],
    said: Mapping[str, Column],
    targets: Mapping[str, TargetValues],
) -> list[Atoms]:
    """Return copies of structures, without calculators, with their predictions.

    Predictions of graph targets are in `info`, those of node targets in `arrays`.

    Parameters
    ----------
    structures
        Structures that were predicted.
    said
        Columns with an entry of each structure for its `info`, by name; empty entries are left out.
    targets
        Predictions and true values by name of the target.
    """
    ends = np.cumsum([len(atoms) for atoms in structures])
    values = [(name, one.described.level == "node", one.arrays()) for name, one in targets.items()]
    copies = []
    for row, (atoms, end) in enumerate(zip(structures, ends, strict=True)):
        copied: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # ASE has no types
        known = {name: column[row] for name, column in said.items()}
        copied.info |= {name: v for name, v in known.items() if v is not None and v != ""}
        for name, of_atoms, arrays in values:
            place = slice(end - len(atoms), end) if of_atoms else row
            for suffix, array in arrays.items():
                value = array[place, 0] if array.shape[1] == 1 else array[place]
                is_text = array.dtype == object
                if not ((suffix in ("", ERROR) or is_text) and np.all(pd.isna(value))):
                    value = value.astype(str) if is_text and of_atoms else value
                    (copied.arrays if of_atoms else copied.info)[f"{name}{suffix}"] = value
        copies.append(copied)
    return copies


def _writable(atoms: Atoms) -> Atoms:
    writable: Atoms = atoms.copy()  # type: ignore[no-untyped-call]  # ASE has no types
    writable.calc = atoms.calc
    for key, value in atoms.info.items():
        if isinstance(value, str):
            writable.info[key] = " ".join(value.splitlines())
    for key, values in atoms.arrays.items():
        if not _is_column(values):
            del writable.arrays[key]
    return writable


def _is_column(values: NDArray[Any]) -> bool:
    if values.dtype.kind in "biuf":
        return values.ndim <= 2
    if values.dtype.kind in "OSU":
        return values.ndim == 1 and all(str(word).split() == [str(word)] for word in values)
    return False
