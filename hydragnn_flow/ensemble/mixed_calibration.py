"""Calibration of structures from several data sets, each with its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.uncertainty import Calibration, Floats

ByDataSet = dict[str, dict[str, Calibration]]
"""Calibration by data set and target. Data sets with too few structures have none of their own."""


@dataclass(frozen=True, eq=False)
class MixedCalibration:
    """Calibrations of a target for different rows, with the methods of `Calibration`."""

    parts_of: tuple[tuple[NDArray[np.bool_], Calibration], ...]
    """Masks of rows ``[n]`` and their calibrations; together the masks cover all rows."""

    @property
    def per_atom(self) -> bool:
        """True if the target is a sum over atoms."""
        return self.parts_of[0][1].per_atom

    @property
    def by_noise(self) -> bool:
        """True if shared errors grow with the noise that the members predict."""
        return self.parts_of[0][1].by_noise

    @property
    def least_structures(self) -> int:
        """Smallest number of structures behind an interval."""
        return min(one.least_structures for _, one in self.parts_of)

    def quantiles(
        self, mean: Floats, coverage: float, numbers: NDArray[np.int64] | None = None
    ) -> Floats:
        """Return half widths of intervals; see :meth:`Calibration.quantiles`."""
        found = np.empty(mean.shape)
        for rows, one in self.parts_of:
            here = None if numbers is None else numbers[rows]
            found[rows] = one.quantiles(mean[rows], coverage, here)
        return found

    def parts(self, spread: Floats, size: Floats) -> tuple[Floats, Floats]:
        """Return disagreement and shared error; see :meth:`Calibration.parts`."""
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
    """Return the calibration for rows that belong to several data sets.

    Parameters
    ----------
    target
        Name of the target.
    of_all
        Calibration from all structures together.
    by_data_set
        Calibrations by data set and target.
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
    """Select the calibrations with enough structures for intervals of a coverage."""
    needed = needed_for_coverage(coverage)
    return {
        name: {target: one for target, one in found.items() if one.least_structures >= needed}
        for name, found in by_data_set.items()
    }
