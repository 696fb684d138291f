"""The predictions table seen target by target, and the numbers the accuracy figures show."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# forces_x, forces_y, forces_z; stress_xx, …, stress_xy; dipole_0, dipole_1, …
_COMPONENT = re.compile(r"_([xyz]|xx|yy|zz|yz|xz|xy|\d+)$")


@dataclass(frozen=True)
class TargetValues:
    """Reference and prediction of one target, its components laid end to end.

    All arrays are [n_values], in ``unit``; rows without a finite reference are left out.
    """

    name: str
    unit: str
    graph_id: NDArray[np.int64]
    reference: Floats
    mean: Floats
    std: Floats
    lo: Floats
    hi: Floats

    @property
    def errors(self) -> Floats:
        """Predicted minus reference values."""
        return self.mean - self.reference

    @property
    def graphs(self) -> int:
        """Number of structures the values belong to."""
        return len(np.unique(self.graph_id))

    def per_atom(self, n_atoms: pd.Series[int]) -> TargetValues:
        """The same target divided by the atoms of its structure.

        Parameters
        ----------
        n_atoms
            Number of atoms by ``graph_id``.
        """
        atoms = n_atoms.reindex(self.graph_id).to_numpy(dtype=float)
        unit = "meV" if self.unit == "eV" else self.unit
        scale = (1000 if self.unit == "eV" else 1) / atoms
        return TargetValues(
            f"{self.name} per atom",
            f"{unit}/atom",
            self.graph_id,
            *(column * scale for column in (self.reference, self.mean, self.std, self.lo, self.hi)),
        )


def targets_of(table: pd.DataFrame, names: Collection[str] = ()) -> list[TargetValues]:
    """The targets of a predictions table that have reference values, in the table's order.

    Parameters
    ----------
    table
        As an ensemble writes it.
    names
        Of targets, as far as they are known; otherwise components are recognised by their endings
        alone.
    """

    def base_of(column: str) -> str:
        return column if column in names else _COMPONENT.sub("", column)

    components: dict[str, list[str]] = {}
    columns = [str(c).removesuffix("_mean") for c in table.columns if str(c).endswith("_mean")]
    for column in columns:
        base = base_of(column)
        siblings = [other for other in columns if base_of(other) == base]
        name = base if len(siblings) > 1 and base not in columns else column
        components.setdefault(name, []).append(column)
    units = table.attrs.get("units", {})
    found = []
    for name, own in components.items():
        if not all(component in table.columns for component in own):
            continue
        values = [
            np.concatenate([table[component + suffix].to_numpy(dtype=float) for component in own])
            for suffix in ("", "_mean", "_std", "_lo", "_hi")
        ]
        keep = np.isfinite(values[0]) & np.isfinite(values[1])
        if keep.any():
            graph_id = np.tile(table["graph_id"].to_numpy(dtype=np.int64), len(own))
            unit = str(units.get(own[0], ""))
            found.append(TargetValues(name, unit, graph_id[keep], *(v[keep] for v in values)))
    return found


def gaussian_coverage(target: TargetValues, nominal: Floats) -> Floats:
    """Fraction of references inside the Gaussian intervals mean ± z·std.

    Parameters
    ----------
    target
        Predictions with standard deviations.
    nominal
        Coverage each interval is made for, between 0 and 1 (exclusive), [n_intervals].
    """
    z = np.array([NormalDist().inv_cdf((1 + p) / 2) for p in nominal])
    # A value is inside from the z on that equals |error| / std: sort once, count for every z.
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.abs(target.errors) / target.std
    needed = np.sort(np.where(target.errors == 0, 0.0, needed))
    return np.searchsorted(needed, z, side="right") / len(needed)


def interval_coverage(target: TargetValues) -> float:
    """Fraction of references inside the calibrated interval [lo, hi]."""
    inside = (target.lo <= target.reference) & (target.reference <= target.hi)
    return float(np.mean(inside))


def binned(error: Floats, std: Floats) -> tuple[Floats, Floats]:
    """Root mean square of standard deviations and of errors, in bins of equally many values.

    Parameters
    ----------
    error, std
        Of each value; bins, ten at most, hold at least five of similar ``std``.
    """
    order = np.argsort(std, kind="stable")
    bins = np.array_split(order, max(1, min(10, len(order) // 5)))
    roots = [[np.sqrt(np.mean(of[part] ** 2)) for part in bins] for of in (std, error)]
    return np.array(roots[0]), np.array(roots[1])


def telling(worth: Floats, most: int) -> NDArray[np.int64]:
    """At most ``most`` positions: a third of them the worthiest, the others evenly spaced."""
    if len(worth) <= most:
        return np.arange(len(worth))
    first = np.argsort(-worth, kind="stable")[: most // 3]
    others = np.setdiff1d(np.arange(len(worth)), first)
    return np.union1d(first, others[evenly(len(others), most - len(first))])


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of ``count`` positions, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
