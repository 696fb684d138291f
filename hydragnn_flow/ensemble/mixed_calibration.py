"""Calibrations of the structures of several data sets, each of which has its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.uncertainty import Calibration, Floats

ByDataSet = dict[str, dict[str, Calibration]]
"""Data set -> target -> calibration, of those with enough structures; others use that of all."""


@dataclass(frozen=True, eq=False)
class MixedCalibration:
    """A target's calibrations, each for some of the rows; it answers as a `Calibration` does."""

    parts_of: tuple[tuple[NDArray[np.bool_], Calibration], ...]
    """Rows ``[n]``, and the calibration of them; together they are all rows."""

    @property
    def per_atom(self) -> bool:
        """The target is a sum over atoms."""
        return self.parts_of[0][1].per_atom

    @property
    def by_noise(self) -> bool:
        """Shared errors grow with the noise that the members predict."""
        return self.parts_of[0][1].by_noise

    @property
    def least_structures(self) -> int:
        """Least number of structures that an interval relies on."""
        return min(one.least_structures for _, one in self.parts_of)

    def quantiles(
        self, mean: Floats, coverage: float, numbers: NDArray[np.int64] | None = None
    ) -> Floats:
        """Half widths of intervals; see :meth:`Calibration.quantiles`."""
        found = np.empty(mean.shape)
        for rows, one in self.parts_of:
            here = None if numbers is None else numbers[rows]
            found[rows] = one.quantiles(mean[rows], coverage, here)
        return found

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Disagreement, and what members share; see :meth:`Calibration.parts`."""
        size = np.broadcast_to(size, spread.shape)
        disagreement, shared = np.empty(spread.shape), np.empty(spread.shape)
        for rows, one in self.parts_of:
            disagreement[rows], shared[rows] = one.parts(spread[rows], size[rows])
        return disagreement, shared


def calibration_of_rows(
    target: str,
    of_all: Calibration,
    by_data_set: Mapping[str, Mapping[str, Calibration]],
    data_sets: NDArray[np.object_],
) -> Calibration | MixedCalibration:
    """The calibration of rows that belong to several data sets.

    Parameters
    ----------
    target
        Its name.
    of_all
        Calibration that all structures together have.
    by_data_set
        Those of the data sets.
    data_sets
        Name of the data set of each row, ``[n]``.
    """
    names = [name for name in dict.fromkeys(data_sets) if target in by_data_set.get(name, {})]
    parts = [(data_sets == name, by_data_set[name][target]) for name in names]
    others = ~np.isin(data_sets, names)
    if not parts:
        return of_all
    return MixedCalibration((*parts, (others, of_all)) if others.any() else tuple(parts))


def with_enough(by_data_set: Mapping[str, Mapping[str, Calibration]], coverage: float) -> ByDataSet:
    """The calibrations whose structures are enough for intervals of a coverage."""
    needed = needed_for_coverage(coverage)
    return {
        name: {target: one for target, one in found.items() if one.least_structures >= needed}
        for name, found in by_data_set.items()
    }
