"""The predictions table: one for graph targets, one for node targets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hydragnn_flow.data import Target
from hydragnn_flow.ensemble.uncertainty import Distribution, Floats
from hydragnn_flow.models.stress import STRESS, VOIGT


@dataclass(frozen=True)
class Predictions:
    """Predictions of an ensemble for some structures, in their order.

    Units of the columns and the coverage of the intervals are in ``DataFrame.attrs``.
    """

    graphs: pd.DataFrame | None
    """A row per structure: `graph_id`, then the columns of each graph target.

    Graphs from several splits of a store have a column `split` before it; structures that come from
    no store have `formula` after it, and before that `file` where they come from files.
    """
    nodes: pd.DataFrame | None
    """A row per atom: the same, `node_index`, then the columns of each node target."""

    def save(self, stem: Path, suffixes: tuple[str, ...] = (".parquet", ".csv")) -> list[Path]:
        """Write the tables as ``stem`` and ``stem_nodes``, each whole or not at all."""
        written = []
        for name, table in ((stem.name, self.graphs), (f"{stem.name}_nodes", self.nodes)):
            if table is None:
                continue
            for suffix in suffixes:
                path = stem.with_name(name + suffix)
                temporary = path.with_name(f".{os.getpid()}.{path.name}")
                if suffix == ".parquet":
                    table.to_parquet(temporary, index=False)
                else:
                    table.to_csv(temporary, index=False)
                temporary.replace(path)
                written.append(path)
        return written


def build_tables(
    graph_id: NDArray[np.int64],
    n_atoms: NDArray[np.int64],
    targets: Mapping[str, Target],
    predicted: Mapping[str, Distribution],
    references: Mapping[str, Floats],
    coverage: float,
    members: Mapping[str, Floats] | None = None,
    splits: NDArray[np.str_] | None = None,
    about: Mapping[str, Sequence[str]] | None = None,
    numbers: Sequence[int] | None = None,
) -> Predictions:
    """Lay predictions out as tables.

    Parameters
    ----------
    graph_id, n_atoms
        Of each structure, in the order of the input.
    targets
        Level, components and unit of each target.
    predicted
        Distribution per target, ``[n, d]`` each.
    references
        True values, for targets whose labels are known.
    coverage
        Of the intervals.
    members
        Each member's predictions ``[n_members, n, d]``, where they are wanted.
    splits
        Split of each structure, where they come from several.
    about
        Further columns of the structures, by name, which follow ``graph_id``.
    numbers
        Of the members; from 0 on if not given.
    """
    of_graphs: dict[str, NDArray[Any]] = {} if splits is None else {"split": splits}
    of_graphs["graph_id"] = graph_id
    of_graphs |= {name: np.array(values, dtype=object) for name, values in (about or {}).items()}
    of_nodes = {name: np.repeat(values, n_atoms) for name, values in of_graphs.items()}
    of_nodes["node_index"] = np.concatenate([np.zeros(0, np.int64), *map(np.arange, n_atoms)])
    index = {"graph": of_graphs, "node": of_nodes}
    tables: dict[str, pd.DataFrame | None] = {}
    for kind in ("graph", "node"):
        columns: dict[str, NDArray[Any]] = dict(index[kind])
        units: dict[str, str] = {}
        for name, values in predicted.items():
            if targets[name].level != kind:
                continue
            for component, label in enumerate(component_names(name, values.mean.shape[1])):
                new = _columns(
                    label,
                    component,
                    values,
                    references.get(name),
                    {}
                    if members is None
                    else dict(
                        zip(numbers or range(len(members[name])), members[name], strict=True)
                    ),
                )
                columns |= new
                units |= dict.fromkeys(new, targets[name].unit)
        table = pd.DataFrame(columns) if units else None
        if table is not None:
            table.attrs = {"units": units, "coverage": coverage}
        tables[kind] = table
    return Predictions(tables["graph"], tables["node"])


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
