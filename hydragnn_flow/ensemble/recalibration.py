"""Recalibration of a finished ensemble on a user's labelled data, without training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from ase import Atoms

from hydragnn_flow.data import GraphStore
from hydragnn_flow.ensemble.calibration import CalibrationData
from hydragnn_flow.ensemble.calibration_file import save_calibrations
from hydragnn_flow.ensemble.conformal import needed_for_coverage
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.evaluation import predict_labelled
from hydragnn_flow.ensemble.folds import folds
from hydragnn_flow.ensemble.structure_files import Predictable
from hydragnn_flow.ensemble.summary import ensemble_folder, inside
from hydragnn_flow.errors import InputError


def recalibrate(
    path: str | Path,
    data: Predictable,
    *,
    split: str | None = None,
    keys: Mapping[str, str] | None = None,
    data_set: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, int]:
    """Fit an ensemble's standard deviations and intervals to labelled structures.

    Means, weights and members stay. From then on the ensemble predicts with the new calibration, in
    `calibration.json` in its folder. The calibration of the run stays in `ensemble.json`, with the
    measures of the test split; it applies again if that file is deleted. Targets without labels
    keep their previous calibration.

    Parameters
    ----------
    path
        Directory of a finished run, or of an exported ensemble.
    data, split, keys, say
        Arguments of :func:`~hydragnn_flow.ensemble.evaluation.evaluate`. The structures must not be
        those of training, but be like those that will be predicted.
    data_set
        Name of the data set, see :meth:`Ensemble.load`.

    Returns
    -------
    dict
        Number of structures that each target was calibrated on.

    Raises
    ------
    InputError
        If there are too few structures for the coverage of the ensemble's intervals, or
        :func:`~hydragnn_flow.ensemble.evaluation.evaluate` raises it.
    """
    folder = inside(Path(path), ensemble_folder(path))
    ensemble = Ensemble.load(path, data_set=data_set)
    predicted = predict_labelled(ensemble, data, split=split, keys=keys, say=say)
    n_atoms, data_sets = predicted.n_atoms, predicted.data_sets
    fold = folds(len(n_atoms))
    calibrated_on = CalibrationData(
        predicted.members,
        predicted.labels,
        np.tile(ensemble.weights, (int(fold.max()) + 1, 1)),
        fold,
        n_atoms,
        ensemble.manifest,
        ensemble.coverage,
        ensemble.aggregation == "median",
        predicted.numbers,
        data_sets,
    )
    if data_set is not None and data_sets is not None:
        # The store has several data sets: only structures of this one count.
        found = calibrated_on.by_data_set().get(data_set, {})
    else:
        found = calibrated_on.calibrations()
    counts = {name: found[name].structures if name in found else 0 for name in predicted.labels}
    needed = needed_for_coverage(ensemble.coverage)
    for name, count in counts.items():
        if count < needed:
            raise InputError(
                f"{_named(data)}: has {count} structures to calibrate {name} on, and intervals of "
                f"{100 * ensemble.coverage:g} % need at least {needed}; give more"
            )
    calibrations, by_data_set = {**ensemble.calibrations, **found}, dict(ensemble.by_data_set)
    if data_set is not None:  # other data sets keep their calibrations
        calibrations = ensemble.calibrations
        by_data_set[data_set] = {**by_data_set.get(data_set, {}), **found}
    elif data_sets is not None:
        by_data_set |= calibrated_on.by_data_set()
    save_calibrations(
        folder,
        calibrations,
        by_data_set,
        {"data": Path(_named(data)).name, "split": split, "structures": counts},
    )
    return counts


def _named(data: Predictable) -> str:
    if isinstance(data, GraphStore):
        return str(data.path.absolute())
    if isinstance(data, (str, os.PathLike)):
        return str(Path(data).absolute())
    return f"{1 if isinstance(data, Atoms) else len(data)} structures"
