"""The predictions table: one row per structure, and one per atom for targets of atoms."""

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
"""Name of the table of atoms, behind that of the table of structures."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of an ensemble for some structures, in their order.

    Units of the columns, the names of each target's components and the coverage of the intervals
    are in ``DataFrame.attrs``.
    """

    graphs: pd.DataFrame
    """A row per structure: `graph_id`, then the columns of each graph target.

    Graphs from several splits of a store have a column `split` before it. After it, where several
    data sets were trained on, `data_set` says whose branch predicts a structure; structures from
    files have `file` and `frame`, all that come from no store `formula`, and those that say their
    own name `id`. The column `note` says what is wrong with a structure; it is empty otherwise, and
    predictions that could not be made are NaN. The column `flagged` is true where there is no
    prediction, or the structure is unlike the data that the ensemble was made with.
    """
    nodes: pd.DataFrame | None
    """A row per atom: the same columns but `note` and `flagged`, `node_index`, then those of each
    node target. None if the ensemble has no node targets."""

    def by_name(self) -> dict[str, pd.DataFrame]:
        """The tables there are, by what the names of their files end in: nothing, `_nodes`."""
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
    """Lay predictions out as tables.

    Parameters
    ----------
    about
        First columns of both tables, by name: where each structure comes from.
    n_atoms
        Of each structure, in the order of the input.
    targets
        Level, components and unit of each target.
    predicted
        Distribution per target, ``[n, d]`` each.
    references
        True values, NaN where unknown, for targets that may have labels.
    coverage
        Of the intervals.
    members
        Each member's predictions, target -> number -> ``[n, d]``, where they are wanted.
    notes
        What is wrong with each structure; by default nothing.
    flagged
        Whether its predictions are not to be trusted; by default none.
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
    """Predictions one behind the other, without the columns of labels that no structure has."""
    graphs = _joined([part.graphs for part in parts])
    nodes = [part.nodes for part in parts if part.nodes is not None]
    return Predictions(graphs, _joined(nodes) if nodes else None)


def may_be_absent(columns: Iterable[object]) -> list[str]:
    """Columns that a table goes without if they are empty: `id`, labels and errors."""
    known = [str(name) for name in columns]
    labels = {name for name in known if f"{name}{ERROR}" in known}
    return [
        name for name in known if name == ID or name in labels or name.removesuffix(ERROR) in labels
    ]


def component_names(target: str, dim: int) -> list[str]:
    """Column names of a target: `energy`; `forces_x`, `forces_y`, `forces_z`; `spectrum_0`, …

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
    """Words as objects: arrays of strings are as wide as their longest."""
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
