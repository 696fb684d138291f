"""Calibration of targets: standard deviation and conformal scores, cross-fitted on folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import Manifest, Target
from hydragnn_flow.ensemble.conformal import Scores, needed_for_coverage
from hydragnn_flow.ensemble.deviation import Deviation, fit_curve, fit_deviation
from hydragnn_flow.ensemble.measures import gaussian_crps
from hydragnn_flow.ensemble.uncertainty import (
    ByDataSet,
    Calibration,
    Floats,
    combine,
    combine_noise,
    group_of,
    size_of,
    with_enough,
)
from hydragnn_flow.models import NOISE_SUFFIX

# Errors depend on a vector's norm and on the element, so groups have their own quantiles if they
# have enough structures.
_GROUPS = 4
_ENOUGH = 2


@dataclass(frozen=True)
class CalibrationData:
    """Data for calibration: the members' predictions for labelled structures."""

    members: Mapping[str, Floats]
    """Predictions ``[n_members, n, d]`` by output."""
    references: Mapping[str, Floats]
    """True values ``[n, d]`` by target."""
    weights: Floats
    """Weights of the members, fitted without each fold, ``[n_folds, n_members]``."""
    fold: NDArray[np.int64]
    """Fold of each structure, ``[n]``."""
    n_atoms: NDArray[np.int64]
    """Number of atoms of each structure, ``[n]``."""
    manifest: Manifest
    """Level of each target, and whether it is a sum over atoms."""
    coverage: float
    """Fraction of true values for which intervals will be used most."""
    median: bool = False
    """True if the members are combined by their median."""
    numbers: NDArray[np.int64] | None = None
    """Atomic numbers, where nodes are atoms."""
    data_sets: NDArray[np.object_] | None = None
    """Name of the data set of each structure; None if there is only one."""

    def calibrations(self) -> dict[str, Calibration]:
        """Fit calibrations of all targets that have labels, on all structures together."""
        found = {name: self._calibration(name) for name in self.references}
        return {name: one for name, one in found.items() if one is not None}

    def by_data_set(self) -> ByDataSet:
        """Fit calibrations of each data set that has enough structures for intervals of its own."""
        if self.data_sets is None:
            return {}
        names = dict.fromkeys(self.data_sets)
        found = {name: self.some(self.data_sets == name).calibrations() for name in names}
        return with_enough(found, self.coverage)

    def some(self, chosen: NDArray[np.bool_]) -> CalibrationData:
        """Return the data of some of the structures.

        Parameters
        ----------
        chosen
            Mask of the structures to keep, ``[n]``.
        """

        def rows(output: str) -> NDArray[np.bool_]:
            return self._target(output).rows_of(chosen, self.n_atoms)

        return replace(
            self,
            members={
                name: values.compress(rows(name), axis=1)
                for name, values in self.members.items()
                if name.removesuffix(NOISE_SUFFIX) in self.references
            },
            references={
                name: values.compress(rows(name), axis=0)
                for name, values in self.references.items()
            },
            fold=self.fold[chosen],
            n_atoms=self.n_atoms[chosen],
            numbers=None if self.numbers is None else self.numbers[np.repeat(chosen, self.n_atoms)],
            data_sets=None if self.data_sets is None else self.data_sets[chosen],
        )

    def _calibration(self, name: str) -> Calibration | None:
        """Fit the calibration of a target; None if no value is known."""
        reference, noise = self.references[name], self.members.get(name + NOISE_SUFFIX)
        target = self._target(name)
        per_graph = target.level == "graph"
        structure = target.rows_of(np.arange(len(self.n_atoms)), self.n_atoms)
        fold = self.fold[structure]
        mean, spread = np.empty(reference.shape), np.empty(reference.shape)
        together = None if noise is None else np.empty(reference.shape)
        for number, by in enumerate(self.weights):
            there = fold == number
            mean[there], spread[there] = combine(self.members[name][:, there], by, self.median)
            if noise is not None and together is not None:
                together[there] = combine_noise(noise[:, there], by)
        return calibrate(
            reference,
            mean,
            spread,
            structure,
            fold,
            self.coverage,
            per_atom=self.manifest.is_extensive(name),
            atoms=self.n_atoms.astype(float)[:, None] if per_graph else None,
            noise=together,
            numbers=None if per_graph else self.numbers,
        )

    def _target(self, output: str) -> Target:
        """Return the target of an output, which may be the noise of a target."""
        return self.manifest.targets[output.removesuffix(NOISE_SUFFIX)]


def calibrate(
    reference: Floats,
    mean: Floats,
    spread: Floats,
    structure: NDArray[np.int64],
    fold: NDArray[np.int64],
    coverage: float,
    per_atom: bool = False,
    atoms: Floats | None = None,
    noise: Floats | None = None,
    numbers: NDArray[np.int64] | None = None,
) -> Calibration | None:
    """Calibrate a target; None if no value is known.

    Standard deviations are fitted twice, by :func:`~hydragnn_flow.ensemble.deviation.fit_deviation`
    and with an isotonic curve on top; the fit that is better on held-out folds is kept. Scores of a
    fold come from fits to the others.

    Parameters
    ----------
    reference
        True values ``[n, d]``; rows that are not finite are left out.
    mean, spread
        Weighted mean of the members and standard deviation between them ``[n, d]``, with weights
        fitted without the fold of the value.
    structure, fold
        Number and fold of the structure that each row belongs to, ``[n]``.
    coverage
        Fraction of true values for which intervals will be used most.
    per_atom
        True if errors grow with the number of atoms.
    atoms
        Number of atoms ``[n, 1]``; needed where ``per_atom``.
    noise
        Standard deviation of the noise that the members predict ``[n, d]``, if any.
    numbers
        Atomic number of each row ``[n]``, for node targets.
    """
    size = np.broadcast_to(size_of(per_atom, atoms, noise), mean.shape)
    known = (np.isfinite(mean) & np.isfinite(reference)).all(axis=1)
    if not known.any():
        return None
    reference, mean, spread, size = (a[known] for a in (reference, mean, spread, size))
    structure, fold = structure[known], fold[known]
    enough = _ENOUGH * needed_for_coverage(coverage)
    norms: tuple[float, ...] = ()
    elements: tuple[int, ...] = ()
    numbers = None if numbers is None else numbers[known]
    if mean.shape[1] == 3:
        norms = _norms_between(mean, structure, enough)
    elif numbers is not None:
        elements = _elements_with(numbers, structure, enough)
    group = group_of(mean, numbers, norms, elements)
    deviations, scores = [], []
    for components in _calibrated_together(mean.shape[1]):
        error = np.abs(reference - mean)[:, components]
        deviation, found = _cross_fitted(
            error, spread[:, components], size[:, components], structure, fold
        )
        deviations.append(deviation)
        rows = [group == g for g in range(max(len(norms), len(elements)) + 1)]
        if len(np.unique(structure[rows[-1]])) < enough:  # too few structures have rare elements
            rows[-1] = np.ones(len(group), bool)
        of_values = np.repeat(structure[:, None], len(components), axis=1)
        scores.append(tuple(Scores.of(found[r].ravel(), of_values[r].ravel()) for r in rows))
    return Calibration(
        tuple(deviations),
        tuple(scores),
        norms,
        per_atom,
        len(np.unique(structure)),
        elements,
        noise is not None,
    )


def _calibrated_together(dim: int) -> Iterator[list[int]]:
    """Yield components that share a calibration: those of a vector."""
    if dim == 3:
        yield [0, 1, 2]
    else:
        yield from ([component] for component in range(dim))


def _norms_between(mean: Floats, structure: NDArray[np.int64], enough: int) -> tuple[float, ...]:
    """Return the norms between groups of vectors with enough structures each, ascending."""
    norm = np.linalg.norm(mean, axis=1)
    for groups in range(_GROUPS, 1, -1):
        edges = np.quantile(norm, np.arange(1, groups) / groups)
        group = np.searchsorted(edges, norm)
        if min(len(np.unique(structure[group == g])) for g in range(groups)) >= enough:
            return tuple(edges.tolist())
    return ()


def _elements_with(
    numbers: NDArray[np.int64], structure: NDArray[np.int64], enough: int
) -> tuple[int, ...]:
    """Return elements in enough structures, ascending; none if all have the same."""
    found = [int(z) for z in np.unique(numbers)]
    return tuple(
        z for z in found if len(found) > 1 and len(np.unique(structure[numbers == z])) >= enough
    )


def _cross_fitted(
    error: Floats,
    spread: Floats,
    size: Floats,
    structure: NDArray[np.int64],
    fold: NDArray[np.int64],
) -> tuple[Deviation, Floats]:
    """Return the better deviation, fitted on all, and cross-fitted scores ``[n, d]``."""
    _, number, counts = np.unique(structure, return_inverse=True, return_counts=True)
    weight = 1 / counts[number]
    plain = fit_deviation(error, spread, size, weight)
    curved = fit_curve(plain, error, spread, size, weight)
    fits = [plain] if curved is None else [plain, curved]
    held_out = [np.empty(error.shape) for _ in fits]
    for left_out in np.unique(fold):
        there = fold == left_out
        seen = ~there if (~there).any() else there
        others = error[seen], spread[seen], size[seen], weight[seen]
        fitted = fit_deviation(*others, start=plain)
        for std, kind in zip(held_out, (fitted, fit_curve(fitted, *others)), strict=False):
            std[there] = (kind or fitted).std(spread[there], size[there])
    # Divided by size, as large structures would dominate otherwise.
    scores = [weight @ (gaussian_crps(error, std) / size).mean(axis=1) for std in held_out]
    best = int(np.argmin(scores))
    return fits[best], error / held_out[best]
