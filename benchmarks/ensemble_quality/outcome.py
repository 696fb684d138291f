"""Errors and error bars of a campaign's test predictions, target by target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import ndtr
from scipy.stats import spearmanr

Floats = NDArray[np.float64]
LEVEL = 0.9
_SIMULATED = 2000
_COVERAGES = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class Outcome:
    """One target of one campaign."""

    set: str
    seed: int
    target: str
    unit: str
    structures: int
    single: float
    """Mean absolute error of the trial that validation says is best, retrained as members are."""
    ensemble: float
    members: list[float]
    """Mean absolute error of each member."""
    spearman: float
    """Rank correlation of error and standard deviation: of structures, of forces by their norms."""
    area: float
    """Miscalibration area."""
    area_limit: float
    """Largest area that chance explains, by `area_of_chance`."""
    held: int
    """Values inside their 90 % intervals."""
    values: int

    @property
    def gain(self) -> float:
        """Fraction by which the ensemble's error is below the single network's."""
        return 1 - self.ensemble / self.single

    @property
    def beats_all(self) -> bool:
        """True if no member is better than the ensemble."""
        return self.ensemble <= min(self.members)


def outcomes(name: str, seed: int, run: Path) -> list[Outcome]:
    """Outcomes of all targets of a finished campaign of a set."""
    summary = json.loads((run / "ensemble" / "ensemble.json").read_text(encoding="utf-8"))
    graphs = pd.read_parquet(run / "predictions" / "test.parquet")
    nodes_file = run / "predictions" / "test_nodes.parquet"
    nodes = pd.read_parquet(nodes_file) if nodes_file.exists() else None
    found = []
    for label, about in summary["errors"].items():
        target = about["target"]
        of_forces = target == "forces"
        table = nodes if of_forces else graphs
        assert table is not None
        scale: float | Floats = 1.0
        unit = table.attrs["units"]["forces_x" if of_forces else target]
        if label.endswith(" per atom"):
            assert nodes is not None  # potentials have forces
            atoms = nodes.groupby("graph_id").size().reindex(graphs["graph_id"]).to_numpy()
            scale, unit = 1 / atoms[:, None], f"{unit}/atom"
        labels = [f"{target}_{axis}" for axis in "xyz"] if of_forces else [target]
        columns = _Columns(table, labels, scale)
        found.append(_outcome((name, seed, target, unit), columns, summary, len(graphs)))
    return found


class _Columns:
    """Columns of a target by what they hold, ``[n, d]`` each."""

    def __init__(self, table: pd.DataFrame, labels: list[str], scale: float | Floats) -> None:
        self._table, self._labels, self._scale = table, labels, scale

    def __getitem__(self, what: str) -> Floats:
        suffix = what and f"_{what}"
        values = self._table[[f"{label}{suffix}" for label in self._labels]].to_numpy(float)
        return np.asarray(values * self._scale)


def _outcome(
    about: tuple[str, int, str, str], columns: _Columns, summary: dict[str, Any], structures: int
) -> Outcome:
    reference, mean, std = columns[""], columns["mean"], columns["std"]
    error = mean - reference
    inside = (columns["lo"] <= reference) & (reference <= columns["hi"])
    numbers = [member["member"] for member in summary["members"]]
    members = [float(np.abs(columns[f"member_{k}"] - reference).mean()) for k in numbers]
    size = [np.linalg.norm(array, axis=1) for array in (error, std)]
    return Outcome(
        *about,
        structures,
        single=members[numbers.index(summary["best_member"])],
        ensemble=float(np.abs(error).mean()),
        members=members,
        spearman=float(spearmanr(*size).statistic),
        area=_area(error, std),
        area_limit=area_of_chance(structures, summary["calibrated_on"]["structures"]),
        held=int(inside.sum()),
        values=int(inside.size),
    )


def _area(error: Floats, std: Floats) -> float:
    needed = 2 * ndtr(np.abs(error).ravel() / std.ravel()) - 1
    held = (needed[:, None] <= _COVERAGES).mean(axis=0)
    return float(trapezoid(np.abs(held - _COVERAGES), _COVERAGES))


def area_of_chance(structures: int, calibrating: int) -> float:
    """The miscalibration area that chance exceeds in one of 20 samples.

    Errors are normal, and one factor of all their bars comes from so many calibrating structures.
    """
    rng = np.random.default_rng(structures)
    areas = []
    for _ in range(_SIMULATED):
        factor = np.sqrt(np.mean(rng.standard_normal(calibrating) ** 2))
        areas.append(_area(rng.standard_normal(structures), np.full(structures, factor)))
    return float(np.quantile(areas, 0.95))
