"""Measures of all targets over a set of structures, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hydragnn_flow.data import Manifest
from hydragnn_flow.ensemble.bootstrap import Estimate, Sample, measure
from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.summary import per_atom
from hydragnn_flow.ensemble.uncertainty import Distribution, Floats
from hydragnn_flow.files import write_json, write_text

COVERAGES = (0.5, 0.8, 0.9, 0.95)
"""Fractions for which intervals are measured, in addition to the one of the run."""


@dataclass(frozen=True)
class TargetMeasures:
    """Error and uncertainty measures of one target, in one unit."""

    unit: str
    structures: int
    """Number of structures with a label and a prediction."""
    values: int
    """Number of values in these structures; forces have three per atom."""
    flagged: int
    """Number of these structures that are unlike the ensemble's training data."""
    measures: dict[str, Estimate]
    """Estimates by the names of :func:`~hydragnn_flow.ensemble.bootstrap.measure`. If structures
    are flagged, also ``mae_flagged`` and ``mae_unflagged``, of these and of the others."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values; undefined numbers become None."""
        return {
            "unit": self.unit,
            "structures": self.structures,
            "values": self.values,
            "flagged": self.flagged,
            "measures": {
                name: {
                    end: number if np.isfinite(number) else None
                    for end, number in estimate._asdict().items()
                }
                for name, estimate in self.measures.items()
            },
        }


def measure_targets(
    predicted: Mapping[str, Distribution],
    references: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    flagged: NDArray[np.bool_],
    manifest: Manifest,
    coverage: float,
) -> dict[str, TargetMeasures]:
    """Compute the measures of all targets whose true values are known.

    Parameters
    ----------
    predicted
        Predictions ``[n, d]`` by target.
    references
        True values ``[n, d]`` by target.
    n_atoms
        Number of atoms of each structure, ``[n]``.
    flagged
        Mask of structures that are unlike the ensemble's training data, ``[n]``.
    manifest
        Level and unit of each target.
    coverage
        Fraction of true values in the predictions' intervals; intervals of `COVERAGES` are measured
        too, as far as the calibration had enough structures.
    """
    found = {}
    for name, values in predicted.items():
        if name not in references:
            continue
        target = manifest.targets[name]
        rows = target.rows_of(np.arange(len(n_atoms)), n_atoms)
        units: list[tuple[str, str, float | Floats]] = [(name, target.unit, 1.0)]
        if manifest.is_extensive(name):
            unit, factor = per_atom(target.unit)
            units.append((f"{name} per atom", unit, factor / n_atoms[:, None]))
        for label, unit, scale in units:
            columns = (references[name], values.mean, values.std)
            reference, mean, std = ((column * scale).ravel() for column in columns)
            structure = np.repeat(rows, values.mean.shape[1])
            ends = {}
            for level in sorted({*COVERAGES, coverage}):
                if values.calibration.least_structures >= needed_for_coverage(level):
                    lo, hi = values.interval(level)
                    ends[level] = (lo * scale).ravel(), (hi * scale).ravel()
            sample = Sample(structure, reference, mean, std, ends).known()
            found[label] = _measures(sample, flagged, unit)
    return found


def _measures(sample: Sample, flagged: NDArray[np.bool_], unit: str) -> TargetMeasures:
    found = measure(sample)
    structures, is_flagged = np.unique(sample.structure), flagged[sample.structure]
    if is_flagged.any():
        found["mae_flagged"] = measure(sample[is_flagged])["mae"]
        found["mae_unflagged"] = measure(sample[~is_flagged])["mae"]
    n_flagged = int(flagged[structures].sum())
    return TargetMeasures(unit, len(structures), len(sample), n_flagged, found)


def save_measures(path: Path, measures: Mapping[str, TargetMeasures]) -> None:
    """Write measures whole or not at all.

    Parameters
    ----------
    path
        File that ends in ``.json``, for :meth:`TargetMeasures.to_dict` by target, or in ``.csv``,
        for a row per measure of each target.
    measures
        Measures to write, by target.
    """
    if path.suffix == ".json":
        write_json(path, {name: target.to_dict() for name, target in measures.items()})
        return
    rows = [
        (name, target.unit, target.structures, target.values, measure, *estimate)
        for name, target in measures.items()
        for measure, estimate in target.measures.items()
    ]
    columns = ["target", "unit", "structures", "values", "measure", "value", "lo", "hi"]
    write_text(path, pd.DataFrame(rows, columns=columns).to_csv(index=False))
