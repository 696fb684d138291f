"""Calibration of targets: standard deviation and conformal scores, cross-fitted on folds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import CALIBRATION, VALIDATION
from hydragnn_flow.data import GraphSplit, GraphStore, Manifest
from hydragnn_flow.ensemble.summary import SUMMARY
from hydragnn_flow.ensemble.uncertainty.deviation import (
    Deviation,
    Scores,
    fit_deviation,
    needed_for_coverage,
)
from hydragnn_flow.ensemble.uncertainty.distribution import (
    Calibration,
    Floats,
    Sizes,
    StructureFacts,
    combine,
    combine_noise,
    group_of,
    tempered,
)
from hydragnn_flow.errors import InputError
from hydragnn_flow.files import json_text, write_json
from hydragnn_flow.models import NOISE_SUFFIX
from hydragnn_flow.plain_files import read_json, sound


@dataclass(frozen=True)
class CalibrationData:
    """Data to calibrate error bars on: members' predictions and true values of structures."""

    members: Mapping[str, Floats]
    """Predictions ``[n_members, n, d]`` by name of the output."""
    references: Mapping[str, Floats]
    """True values ``[n, d]`` by name of the target."""
    weights: Floats
    """Weights of the members, ``[n_folds, n_members]``; a row is fitted without its fold."""
    fold: NDArray[np.int64]
    """Index of the cross-validation fold of each structure, ``[n]``."""
    structures: StructureFacts
    """Properties of the structures."""
    manifest: Manifest
    """Manifest that gives the level of each target, and whether it is a sum over atoms."""
    coverage: float
    """Fraction of true values in the intervals that will be used most."""

    def calibrations(self) -> dict[str, Calibration]:
        """Fit the calibration of each target that has labels, and return it by name of the target.

        It is fitted on all structures. With several data sets, its ``by_data_set`` has calibrations
        fitted on one data set each, for those with enough structures for intervals of ``coverage``.
        """
        found = {}
        data_sets = self.structures.data_sets
        names = [] if data_sets is None else [*dict.fromkeys(data_sets)]
        for target in self.references:
            if (of_all := self._calibration(target)) is not None:
                alone = () if self.manifest.targets[target].classes else names
                own = {name: self._calibration(target, name) for name in alone}
                known = {name: one for name, one in own.items() if one is not None}
                whole = replace(of_all, by_data_set=known)
                found[target] = whole.with_enough(self.coverage)
        return found

    def _calibration(self, name: str, data_set: str | None = None) -> Calibration | None:
        """Fit the calibration of the target ``name`` on the structures of a data set.

        If ``data_set`` is None, all structures are used. Without labels, the result is None.
        """
        noise = self.members.get(name + NOISE_SUFFIX)
        target = self.manifest.targets[name]
        n_atoms = self.structures.n_atoms
        structure = target.rows_of(np.arange(len(n_atoms)), n_atoms)
        rows = self.structures.rows_of(target)
        fold = self.fold[structure]
        reference = self.references[name]
        if data_set is not None and rows.data_sets is not None:
            of_data_set = np.asarray(rows.data_sets == data_set)[:, None]
            reference = np.where(of_data_set, reference, np.nan)
        mean, spread = np.empty(reference.shape), np.empty(reference.shape)
        together = None if noise is None else np.empty(reference.shape)
        for number, by in enumerate(self.weights):
            there = fold == number
            mean[there], spread[there] = combine(self.members[name][:, there], by)
            if noise is not None and together is not None:
                together[there] = combine_noise(noise[:, there], by)
        if target.classes:
            return fit_temperature(reference, mean, structure)
        per_atom = self.manifest.is_extensive(name)
        found = calibrate(
            reference,
            mean,
            spread,
            Sizes.of(per_atom, rows, together, mean.shape),
            structure,
            fold,
            self.coverage,
            rows.numbers,
        )
        if found is None:
            return None
        return replace(found, per_atom=per_atom, by_noise=noise is not None)


def fit_temperature(
    reference: Floats, mean: Floats, structure: NDArray[np.int64]
) -> Calibration | None:
    """Fit the calibration of classes' probabilities; None if no label is known.

    Its temperature makes the cross-entropy of the labels smallest.

    Parameters
    ----------
    reference
        True classes as 0 and 1, ``[n, n_classes]``.
    mean
        Mean probabilities of the members, ``[n, n_classes]``.
    structure
        Index of the structure that each row belongs to, ``[n]``.
    """
    known = np.isfinite(mean + reference).all(axis=1)
    if not known.any():
        return None

    def loss(log_temperature: float) -> float:
        logs = tempered(mean[known], math.exp(log_temperature))
        return -float((reference[known] * logs).sum())

    from scipy.optimize import minimize_scalar  # as `status` does not need SciPy

    fit = minimize_scalar(loss, bounds=(-2.0, 2.0), method="bounded")
    n_structures = len(np.unique(structure[known]))
    temperature = math.exp(float(fit.x))
    return Calibration((), (), (), False, n_structures, temperature=temperature)


def calibrate(
    reference: Floats,
    mean: Floats,
    spread: Floats,
    sizes: Sizes,
    structure: NDArray[np.int64],
    fold: NDArray[np.int64],
    coverage: float,
    numbers: NDArray[np.int64] | None = None,
) -> Calibration | None:
    """Fit the calibration of one target's error bars; None if no true value is known.

    The standard deviation is fitted by :func:`fit_deviation`, and multiplied by the root mean
    square of the errors over it. The errors over it are the conformal scores; those of each fold
    come from a fit to the other folds.

    Parameters
    ----------
    reference
        True values ``[n, d]``; rows that are not finite are left out.
    mean, spread
        Weighted mean of the members and standard deviation between them ``[n, d]``, with weights
        fitted without the fold of the value.
    sizes
        Size of each row, to which the error that all members share is proportional.
    structure, fold
        Index of the structure that each row belongs to, and index of its fold, ``[n]`` each.
    coverage
        Fraction of true values in the intervals that will be used most.
    numbers
        Atomic number of each row ``[n]`` of a node target; None otherwise.
    """
    known = np.isfinite(mean + spread + sizes.near + sizes.extrapolation + reference).all(axis=1)
    known &= (sizes.near > 0).all(axis=1)
    if not known.any():
        return None
    reference, mean, spread, sizes = reference[known], mean[known], spread[known], sizes.at(known)
    structure, fold = structure[known], fold[known]
    # Errors depend on a vector's norm and on the element, so groups have their own quantiles if
    # they have twice the structures that these need.
    enough = 2 * needed_for_coverage(coverage)
    norms: tuple[float, ...] = ()
    elements: tuple[int, ...] = ()
    numbers = None if numbers is None else numbers[known]
    if mean.shape[1] == 3:
        norms = _norms_between(mean, structure, enough)
    elif numbers is not None:
        elements = _elements_with(numbers, structure, enough)
    group = group_of(mean, numbers, norms, elements)
    # An error of zero is no sign that there are none.
    resolution = np.finfo(float).eps * (float(np.abs(reference).max()) or 1.0)
    deviations, scores = [], []
    # Components of a vector share a calibration.
    for columns in [[0, 1, 2]] if mean.shape[1] == 3 else [[c] for c in range(mean.shape[1])]:
        error = np.maximum(np.abs(reference - mean)[:, columns], resolution)
        of_columns = sizes.at((slice(None), columns))
        noise = float(np.median(of_columns.near / of_columns.unit))
        usual = float(np.median(of_columns.extrapolation))
        size = of_columns.total(noise, usual)
        deviation, found = _cross_fitted(error, spread[:, columns], size, structure, fold)
        width = _width(found, structure)
        deviation = Deviation(deviation.scale * width, deviation.floor * width, noise, usual)
        deviations.append(deviation)
        found /= width
        rows = [group == g for g in range(max(len(norms), len(elements)) + 1)]
        if len(np.unique(structure[rows[-1]])) < enough:  # too few structures have rare elements
            rows[-1] = np.ones(len(group), bool)
        of_values = np.repeat(structure[:, None], len(columns), axis=1)
        scores.append(tuple(Scores.of(found[r].ravel(), of_values[r].ravel()) for r in rows))
    n_structures = len(np.unique(structure))
    return Calibration(tuple(deviations), tuple(scores), norms, False, n_structures, elements)


def _norms_between(mean: Floats, structure: NDArray[np.int64], enough: int) -> tuple[float, ...]:
    """Return the norms that divide vectors into two to four groups of equal size, ascending.

    There are as many groups as possible with vectors from at least ``enough`` structures in each;
    the result is empty if not even two are possible. ``mean`` has the vectors, ``[n, 3]``, and
    ``structure`` the index of the structure of each.
    """
    norm = np.linalg.norm(mean, axis=1)
    for groups in (4, 3, 2):
        edges = np.quantile(norm, np.arange(1, groups) / groups)
        group = np.searchsorted(edges, norm)
        if min(len(np.unique(structure[group == g])) for g in range(groups)) >= enough:
            return tuple(edges.tolist())
    return ()


def _elements_with(
    numbers: NDArray[np.int64], structure: NDArray[np.int64], enough: int
) -> tuple[int, ...]:
    """Return the atomic numbers in at least ``enough`` structures, ascending.

    The result is empty if all atoms are of one element. ``numbers`` has the atomic number of each
    atom, ``[n]``, and ``structure`` the index of its structure.
    """
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
    """Return a fit to all rows, and scores ``[n, d]``.

    A score is an absolute error divided by the standard deviation from a fit to the other folds.
    """
    scores = np.empty(error.shape)
    for left_out in np.unique(fold):
        there = fold == left_out
        seen = ~there if (~there).any() else there
        fitted = fit_deviation(error[seen], spread[seen], size[seen], structure[seen])
        scores[there] = error[there] / fitted.std(spread[there], size[there])
    return fit_deviation(error, spread, size, structure), scores


def _width(scores: Floats, structure: NDArray[np.int64]) -> float:
    """Return the root mean square of scores ``[n, d]``, every structure counted once.

    The score that :func:`fit_deviation` minimises grows with the error and not with its square, so
    it fits the many small errors: the standard deviation is too small where a few are large. A
    score beyond three counts as three, as one wrong label must not widen all error bars. Three
    more structures count as one each, so that a few hardly change the scale of the spread.
    """
    _, number, counts = np.unique(structure, return_inverse=True, return_counts=True)
    squares = np.bincount(number, (np.minimum(scores, 3) ** 2).mean(axis=1)) / counts
    return math.sqrt((squares.sum() + 3) / (len(counts) + 3))


def calibration_split(store: GraphStore) -> GraphSplit:
    """Return the split of a store to fit members' weights and error bars on.

    This is the calibration split if it has graphs, and otherwise the validation split.
    """
    if CALIBRATION in store.splits and len(store[CALIBRATION]):
        return store[CALIBRATION]
    return store[VALIDATION]


def folds(n_structures: int) -> NDArray[np.int64]:
    """Return the index of each structure's cross-validation fold, ``[n_structures]``.

    There are ten folds, or one per structure if there are fewer than ten structures. A fit on all
    folds but one has not seen the structures of the fold left out, so its errors on them are like
    those on new structures (cross-fitting, Chernozhukov et al., Econom. J. 21, C1 (2018)). The
    result depends only on the number of structures.
    """
    numbers = np.arange(n_structures, dtype=np.int64) % min(10, max(n_structures, 1))
    return np.random.default_rng(0).permutation(numbers)


FILE = "calibration.json"
"""Name of the file with a calibration that is used instead of the one in `ensemble.json`."""
_VERSION = 3
_REMEDY = "delete it to return to the calibration of the run, then recalibrate again if you need to"


class _CalibratedOn(msgspec.Struct):
    structures: dict[str, int]


class _Content(msgspec.Struct):
    ensemble: str
    calibrated_on: _CalibratedOn
    calibration: dict[str, Calibration]
    calibration_by_data_set: dict[str, dict[str, Calibration]] = {}


def load_calibrations(folder: Path, summary: Mapping[str, Any]) -> dict[str, Calibration]:
    """Return the calibration of an ensemble's error bars, by name of the target.

    It comes from `calibration.json` if the ensemble has that file, and otherwise from ``summary``.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    summary
        Content of the ensemble's `ensemble.json`.

    Raises
    ------
    InputError
        If `calibration.json` is damaged, of another version, or was made for another ensemble.
    """
    found = recalibration_of(folder) or summary
    of_all = msgspec.convert(found["calibration"], dict[str, Calibration])
    by_data_set = found.get("calibration_by_data_set") or {}
    own = msgspec.convert(by_data_set, dict[str, dict[str, Calibration]])
    return {
        target: replace(one, by_data_set={k: of[target] for k, of in own.items() if target in of})
        for target, one in of_all.items()
    }


def recalibration_of(folder: Path) -> dict[str, Any] | None:
    """Read an ensemble's recalibration, the content of `calibration.json`; None without the file.

    :func:`save_calibrations` wrote the file into the ensemble's ``folder``.

    Raises
    ------
    InputError
        If the file is damaged, of another version, or was made for another ensemble.
    """
    file = folder / FILE
    if not file.exists():
        return None
    values = read_json(file, _REMEDY)
    with sound(file, _REMEDY):
        content: dict[str, Any] = values["content"]
        if values != _sealed(content):
            raise ValueError("or of another version")
        msgspec.convert(content, _Content)
    if content["ensemble"] != _digest(folder):
        raise InputError(f"{file}: belongs to another {SUMMARY} than the one beside it; {_REMEDY}")
    return content


def save_calibrations(
    folder: Path, calibrations: Mapping[str, Calibration], calibrated_on: Mapping[str, Any]
) -> None:
    """Write new calibrations to the file `calibration.json` in the ensemble's ``folder``.

    Parameters
    ----------
    folder
        Folder of the ensemble.
    calibrations
        Calibrations by name of the target.
    calibrated_on
        Description of the data that the calibrations were fitted on.
    """
    content = {
        "ensemble": _digest(folder),
        "calibrated_on": dict(calibrated_on),
        **plain_calibrations(calibrations),
    }
    write_json(folder / FILE, _sealed(content))


def plain_calibrations(calibrations: Mapping[str, Calibration]) -> dict[str, Any]:
    """Convert the calibrations of all targets to a dict of plain values for JSON.

    Keys are ``calibration`` by target, and ``calibration_by_data_set`` by data set and target.
    """
    names = dict.fromkeys(name for one in calibrations.values() for name in one.by_data_set)
    return {
        "calibration": {target: one.to_dict() for target, one in calibrations.items()},
        "calibration_by_data_set": {
            name: {
                target: one.by_data_set[name].to_dict()
                for target, one in calibrations.items()
                if name in one.by_data_set
            }
            for name in names
        },
    }


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / SUMMARY).read_bytes()).hexdigest()


def _sealed(content: Any) -> dict[str, Any]:
    digest = hashlib.sha256(json_text(content).encode()).hexdigest()
    return {"version": _VERSION, "sha256": digest, "content": content}
