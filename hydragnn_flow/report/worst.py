"""Structures of the test split that the ensemble predicts worst."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hydragnn_flow.report.target_values import TargetValues
from hydragnn_flow.report.text import number

WORST = 8
"""Structures of each target that are listed."""
# Columns of a predictions table that say what a structure is.
_ABOUT = ("file", "frame", "formula", "note")


def worst_structures(
    targets: Sequence[TargetValues], graphs: pd.DataFrame | None, n_atoms: pd.Series[int] | None
) -> pd.DataFrame:
    """The structures with the largest errors of each target, the worst first.

    Parameters
    ----------
    targets
        Of the test split.
    graphs
        Predictions table of its graph targets, for what it says about structures.
    n_atoms
        Number of atoms by ``graph_id``, where it is known.

    Returns
    -------
    pandas.DataFrame
        ``target``, ``structure`` (``graph_id``), ``atoms``, ``|error|`` (of forces the mean of the
        structure's components), ``largest``, ``deviation`` (root mean square) and ``|error| /
        deviation`` of root mean squares: far above 1 where an error was not expected.
    """
    rows = []
    for target in targets:
        frame = pd.DataFrame({"structure": target.graph_id, "error": np.abs(target.errors)})
        frame["squared"], frame["variance"] = frame["error"] ** 2, target.std**2
        mean = frame.groupby("structure").mean()
        mean["largest"] = frame.groupby("structure")["error"].max()
        label = f"{target.name} [{target.unit}]" if target.unit else target.name
        for row in mean.nlargest(WORST, "error").reset_index().to_dict("records"):
            structure = int(row["structure"])
            deviation = float(np.sqrt(row["variance"]))
            root = float(np.sqrt(row["squared"]))
            rows.append(
                {
                    "target": label,
                    "structure": str(structure),
                    **({} if n_atoms is None else {"atoms": int(n_atoms[structure])}),
                    "|error|": float(row["error"]),
                    "largest": float(row["largest"]),
                    "deviation": deviation,
                    "|error| / deviation": root / deviation if deviation else float("nan"),
                    **_about(graphs, structure),
                }
            )
    table = pd.DataFrame(rows)
    return table.drop(columns=[name for name in table if (table[name] == "").all()])


def flagged_sentence(graphs: pd.DataFrame | None) -> str:
    """How many test structures have what the training data have not; empty if that is not known."""
    if graphs is None or "flagged" not in graphs:
        return ""
    flagged, notes = graphs[graphs["flagged"].astype(bool)], ""
    if "note" in graphs and len(flagged):
        counts = flagged["note"].value_counts()
        notes = ": " + "; ".join(f"{note} ({n:,})" for note, n in counts.head(3).items())
    return (
        f"{len(flagged):,} of {len(graphs):,} test structures are flagged as unlike the training "
        f"data{notes}."
    )


def _about(graphs: pd.DataFrame | None, structure: int) -> dict[str, str]:
    if graphs is None:
        return {}
    row = graphs.loc[graphs["graph_id"] == structure]
    known = [name for name in _ABOUT if name in graphs]
    return {name: "" if row.empty else _cell(row[name].iloc[0]) for name in known}


def _cell(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
