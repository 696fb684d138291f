"""Table of predictions: a row per structure, and a row per atom for node targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.uncertainty import Distribution, Floats
from hydragnn_flow.models.stress import STRESS, VOIGT

GRAPH_ID, ID, NOTE, FLAGGED = "graph_id", "id", "note", "flagged"
DATA_SET = "data_set"
ERROR = "_error"
NODES = "_nodes"
"""Suffix of the name of the table of atoms."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of an ensemble for some structures, in their order.

    Units of the columns, the names of each target's components and the coverage of the intervals
    are in ``DataFrame.attrs``.
    """

    graphs: pd.DataFrame
    """Table with a row per structure: `graph_id`, then the columns of each graph target.

    Graphs from several splits of a store have a column `split` before it. If several data sets were
    trained on, `data_set` names the branch that predicts a structure. Structures from files have
    `file` and `frame`, those not from a store `formula`, and those with their own name `id`. The
    column `note` says what is wrong with a structure, and is empty otherwise. Predictions that
    could not be made are NaN. The column `flagged` is true where there is no prediction, or the
    structure is unlike the ensemble's training data.
    """
    nodes: pd.DataFrame | None
    """Table with a row per atom: the same columns without `note` and `flagged`, `node_index`, then
    those of each node target; or None."""

    def by_name(self) -> dict[str, pd.DataFrame]:
        """Return the tables by the suffix of their file names: none, or `_nodes`."""
        return {"": self.graphs} | ({} if self.nodes is None else {NODES: self.nodes})

    def save(self, stem: str | Path, suffixes: Sequence[str] = (".parquet", ".csv")) -> list[Path]:
        """Write the tables as ``stem`` and ``stem_nodes``, each whole or not at all."""
        from hydragnn_flow.ensemble.predictions_files import PredictionFiles

        with PredictionFiles([Path(f"{Path(stem)}{suffix}") for suffix in suffixes]) as files:
            files.add(self)
        return files.written


def build_tables(
    about: Mapping[str, ArrayLike],
    n_atoms: NDArray[np.int64],
    targets: Mapping[str, Target],
    predicted: Mapping[str, Distribution],
    references: Mapping[str, Floats],
    coverage: float,
    members: Mapping[str, Mapping[int, Floats]] | None = None,
    notes: Sequence[str] | None = None,
    flagged: Sequence[bool] | None = None,
) -> Predictions:
    """Arrange predictions as tables.

    Parameters
    ----------
    about
        First columns of both tables by name: the origin of each structure.
    n_atoms
        Number of atoms of each structure, in the order of the input.
    targets
        Level, components and unit of each target.
    predicted
        Distribution of each target, ``[n, d]``.
    references
        True values of targets that may have labels, NaN where unknown.
    coverage
        Fraction of true values in the intervals.
    members
        Each member's predictions ``[n, d]`` by target and number, if they are requested.
    notes
        Problems of each structure in words; none by default.
    flagged
        Mask of structures whose predictions are not reliable; none by default.
    """
    of_graphs: dict[str, NDArray[Any]] = {name: _column(values) for name, values in about.items()}
    of_nodes = {name: np.repeat(values, n_atoms) for name, values in of_graphs.items()}
    of_nodes["node_index"] = np.concatenate([np.zeros(0, np.int64), *map(np.arange, n_atoms)])
    of_graphs[NOTE] = _column([""] * len(n_atoms) if notes is None else notes)
    of_graphs[FLAGGED] = (
        np.zeros(len(n_atoms), dtype=bool) if flagged is None else np.array(flagged)
    )
    columns = {"graph": of_graphs, "node": of_nodes}
    units: dict[str, dict[str, str]] = {"graph": {}, "node": {}}
    components: dict[str, dict[str, list[str]]] = {"graph": {}, "node": {}}
    for name, values in predicted.items():
        level = targets[name].level
        labels = components[level][name] = component_names(name, values.mean.shape[1])
        for component, label in enumerate(labels):
            new = _columns(
                label,
                component,
                values,
                references.get(name),
                {} if members is None else members[name],
            )
            columns[level] |= new
            units[level] |= dict.fromkeys(new, targets[name].unit)
    tables = {}
    for level in ("graph", "node"):
        tables[level] = pd.DataFrame(columns[level])
        tables[level].attrs = {
            "units": units[level],
            "components": components[level],
            "coverage": coverage,
        }
    return Predictions(tables["graph"], tables["node"] if units["node"] else None)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate predictions, and drop columns of labels that no structure has."""
    graphs = _joined([part.graphs for part in parts])
    nodes = [part.nodes for part in parts if part.nodes is not None]
    return Predictions(graphs, _joined(nodes) if nodes else None)


def may_be_absent(columns: Iterable[object]) -> list[str]:
    """Return the columns that a table omits if they are empty: `id`, labels and errors."""
    known = [str(name) for name in columns]
    labels = {name for name in known if f"{name}{ERROR}" in known}
    return [
        name for name in known if name == ID or name in labels or name.removesuffix(ERROR) in labels
    ]


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


def _column(values: ArrayLike) -> NDArray[Any]:
    """Convert strings to objects: string arrays are as wide as their longest entry."""
    column = np.asarray(values)
    return column.astype(object) if column.dtype.kind in "US" else column


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    table = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
    table.attrs = tables[0].attrs
    empty = [name for name in may_be_absent(table) if not table[name].notna().any()]
    return table.drop(columns=empty)


def _columns(
    label: str,
    component: int,
    values: Distribution,
    reference: Floats | None,
    members: Mapping[int, Floats],
) -> dict[str, NDArray[np.generic]]:
    columns: dict[str, NDArray[np.generic]] = {}
    if reference is not None:
        columns[label] = reference[:, component]
        columns[f"{label}{ERROR}"] = values.mean[:, component] - reference[:, component]
    for suffix, array in (
        ("mean", values.mean),
        ("std", values.std),
        ("spread", values.spread),
        ("epistemic_std", values.epistemic_std),
        ("aleatoric_std", values.aleatoric_std),
        ("lo", values.lo),
        ("hi", values.hi),
    ):
        if array is not None:
            columns[f"{label}_{suffix}"] = array[:, component]
    for k, member in members.items():
        columns[f"{label}_member_{k}"] = member[:, component]
    return columns
