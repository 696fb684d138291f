"""Evaluation of an ensemble on labelled data, and recalibration of its error bars on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from ase import Atoms

from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.ensemble.applicability import are_noted
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.evaluation.measures import TargetMeasures, measure_targets
from hydragnn_flow.ensemble.predictions.labels import every_label, keys_of_label
from hydragnn_flow.ensemble.predictions.member_predictions import (
    Predicted,
    predict_all,
    predict_graphs,
)
from hydragnn_flow.ensemble.predictions.structure_files import (
    Files,
    Graphs,
    Predictable,
    Record,
    by_name,
    naming,
    open_structures,
    readable_records,
)
from hydragnn_flow.ensemble.summary import ensemble_folder, inside
from hydragnn_flow.ensemble.uncertainty.calibration import CalibrationData, folds, save_calibrations
from hydragnn_flow.ensemble.uncertainty.deviation import needed_for_coverage
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.geometry import in_components


def evaluate(
    ensemble: Ensemble,
    data: Predictable,
    *,
    split: str | None = None,
    keys: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, TargetMeasures]:
    """Predict labelled structures, and measure the errors of predictions and of error bars.

    Parameters
    ----------
    ensemble
        Ensemble that predicts the structures.
    data
        Path or structures that :func:`~hydragnn_flow.ensemble.ensemble.Ensemble.predict` takes, a
        GraphStore, or ASE structures. Units are those of the training data.
    split
        Name of a GraphStore's split; None for all its splits.
    keys
        Key of the labels in files and structures, by name of the target. By default it is the key
        in the training data, or else the target's name. Labels are looked for in the results of a
        calculation, `Atoms.info` and `Atoms.arrays`.
    say
        Function that receives remarks: files of a directory that were skipped, targets without
        labels, structures without one, splits that count together, labels that seem to be in
        another unit.

    Returns
    -------
    dict
        Measures by name of the target, in the ensemble's order. An extensive target has a second
        entry, such as ``energy per atom``.

    Raises
    ------
    InputError
        If there is nothing to predict, no target has labels, or a label does not match the
        ensemble's target.
    """
    found = predict_labelled(ensemble, data, split, keys or {}, say)
    return measure_targets(
        ensemble.distributions(found.members, found.facts),
        found.labels,
        found.facts.n_atoms,
        are_noted(found.remarks),
        ensemble.manifest,
        ensemble.coverage,
    )


def predict_labelled(
    ensemble: Ensemble,
    data: Predictable,
    split: str | None,
    keys: Mapping[str, str],
    say: Callable[[str], None],
) -> Predicted:
    """Predict labelled structures, and return every member's predictions and the labels.

    The parameters are those of :func:`evaluate`.

    Raises
    ------
    InputError
        In the same cases as :func:`evaluate`.
    """
    if unknown := keys.keys() - ensemble.calibrations.keys():
        raise InputError(
            f"the ensemble predicts no target {min(unknown)!r}; its targets are "
            f"{', '.join(ensemble.calibrations)}"
        )
    opened = open_structures(ensemble, data, split)
    if isinstance(opened, Graphs):
        if keys:
            raise InputError(
                f"{opened.store.path}: a GraphStore names its labels by targets; leave the keys out"
            )
        found, where = _in_store(ensemble, opened, say)
    elif isinstance(opened, Files):
        records = readable_records(ensemble, opened, say)
        with naming(opened.path, records):
            found, where = _in_records(ensemble, records, keys, say)
    else:
        found, where = _in_records(ensemble, by_name(opened), keys, say)
    _tell_doubts(ensemble, found, where, say)
    return found


def _in_store(
    ensemble: Ensemble, opened: Graphs, say: Callable[[str], None]
) -> tuple[Predicted, Callable[[int], str]]:
    store, splits = opened
    labelled = [name for name in ensemble.calibrations if name in store.manifest.targets]
    if not labelled:
        raise InputError(
            f"{store.path}: has no labels of {_listed(ensemble.calibrations)}; give data that have "
            f"some"
        )
    _tell_missing(ensemble, labelled, say)
    if len(splits) > 1:
        names = ", ".join(one.name for one in splits)
        say(f"splits that count together: {names}; choose one with split (--split)")
    return predict_graphs(ensemble, store, splits, {}), partial(_where, splits)


def _in_records(
    ensemble: Ensemble,
    records: Mapping[str, Record],
    keys: Mapping[str, str],
    say: Callable[[str], None],
) -> tuple[Predicted, Callable[[int], str]]:
    """Read the labels of structures, then predict the structures; return their names too.

    This order reports errors in labels before the slow prediction. ``records`` are the structures
    by their names in messages, and ``keys`` the keys of labels by target.
    """
    targets = ensemble.manifest.targets
    named = {name: record.found for name, record in records.items()}
    wanted = {name: keys_of_label(ensemble.manifest, name) for name in ensemble.calibrations}
    wanted |= {name: {key: wanted[name].get(key, 1.0)} for name, key in keys.items()}
    labels = {
        name: label
        for name, tried in wanted.items()
        if (label := every_label(named, name, targets[name], tried)) is not None
    }
    missing = [name for name in wanted if name not in labels]
    if not labels or keys.keys() & set(missing):
        said = [one.values for one in named.values()]
        has = sorted({key for values in said for key in values if values[key] is not None})
        tried = _listed(key for name in missing for key in wanted[name])
        raise InputError(
            f"no structure has a label of {_listed(missing)} (looked for {tried}; there is "
            f"{_listed(has) or 'nothing'}); name its key, as in --key {missing[0]}=KEY"
        )
    _tell_missing(ensemble, labels, say)
    found = predict_all(ensemble, records)
    dims = {name: values.shape[2] for name, values in found.members.items()}
    labels = {name: in_components(v, name, dims[name]) for name, v in labels.items()}
    return replace(found, labels=labels), [*records].__getitem__


def _where(splits: Sequence[GraphSplit], graph: int) -> str:
    """Return the name in messages of a graph, by its index in ``splits`` joined."""
    ends = np.cumsum([len(split) for split in splits])
    place = int(np.searchsorted(ends, graph, side="right"))
    return splits[place].where(graph - int(ends[place]) + len(splits[place]))


def _tell_doubts(
    ensemble: Ensemble,
    data: Predicted,
    where: Callable[[int], str],
    say: Callable[[str], None],
) -> None:
    """Report predictions that are not finite, and labels far beyond the error bars.

    Structures that make most of the squared errors are named by ``where``, from their indices. No
    model errs by ten standard deviations in the median on labels like those of its training.
    Labels in another unit, of another sign or from another zero are that far away.
    """
    n_structures = len(data.facts.n_atoms)
    predicted = ensemble.distributions(data.members, data.facts)
    for name, reference in data.labels.items():
        found, is_labelled = predicted[name], np.isfinite(reference)
        target = ensemble.manifest.targets[name]
        known = is_labelled & np.isfinite(found.mean)
        rows = "structures" if len(reference) == n_structures else "atoms"
        if without := int((~is_labelled).any(axis=1).sum()):
            say(f"{name} of {without} {rows} has no label and does not count")
        if lost := int((is_labelled > known).any(axis=1).sum()):
            say(f"{name} of {lost} {rows} is not finite in the prediction and does not count")
        if target.classes:
            continue
        errors = np.where(known, np.abs(found.mean - reference), 0.0)
        structure = target.rows_of(np.arange(n_structures), data.facts.n_atoms)
        squares = np.bincount(structure, np.square(errors).sum(axis=1), n_structures)
        few = np.flatnonzero(squares > squares.sum() / 4).tolist()
        if n_structures >= 10 and few and (part := squares[few].sum() / squares.sum()) > 0.5:
            told = f"{name}: {100 * part:.1f} % of the squared errors (RMSE, R2) are those of"
            say(f"{told} {_listed(map(where, few))}; look there first")
        deviations = errors[known] / found.std[known]
        if len(deviations) >= 10 and (usual := np.median(deviations)) > 10:
            say(
                f"labels of {name} are {usual:.3g} standard deviations away from the predictions: "
                f"are they in {target.unit or 'the unit'}, with the sign and the zero of the "
                f"training data?"
            )


def _tell_missing(ensemble: Ensemble, labelled: Container[str], say: Callable[[str], None]) -> None:
    if missing := [name for name in ensemble.calibrations if name not in labelled]:
        say(f"not evaluated, as no structure has a label: {', '.join(missing)}")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def recalibrate(
    path: str | Path,
    data: Predictable,
    *,
    split: str | None = None,
    keys: Mapping[str, str] | None = None,
    data_set: str | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, int]:
    """Recalibrate an ensemble: fit its deviations and intervals anew to labelled structures.

    Predicted means, members and weights stay the same. From then on the ensemble predicts with the
    new calibration, which is written to `calibration.json` in its folder. The calibration of the
    run stays in `ensemble.json`, with the measures of the test split, and applies again if
    `calibration.json` is deleted. Targets with too few labels keep their previous calibration, and
    with ``data_set`` so do classes, which have one of all structures only.

    Parameters
    ----------
    path
        Directory of a finished run, or of an exported ensemble.
    data, split, keys, say
        Arguments of :func:`evaluate`. The structures must not be those of training, but be like
        those that will be predicted.
    data_set
        Name of the data set whose branch predicts, and whose calibration is fitted; None to fit the
        calibration of all structures.

    Returns
    -------
    dict
        Number of structures that each target was calibrated on, by name of the target.

    Raises
    ------
    InputError
        If every target has too few structures for the coverage of the ensemble's intervals, if
        there is nothing to fit for ``data_set``, and in the same cases as :func:`evaluate`.
    """
    folder = inside(Path(path), ensemble_folder(path))
    ensemble = Ensemble.load(path, data_set=data_set)
    predicted = predict_labelled(ensemble, data, split, keys or {}, say)
    fold = folds(len(predicted.facts.n_atoms))
    calibrated_on = CalibrationData(
        predicted.members,
        predicted.labels,
        np.tile(ensemble.weights, (int(fold.max()) + 1, 1)),
        fold,
        predicted.facts,
        ensemble.manifest,
        ensemble.coverage,
    )
    found = calibrated_on.calibrations()
    names = list(predicted.labels)
    if data_set is not None:  # only structures of this one count
        classes = [name for name in names if ensemble.manifest.targets[name].classes]
        if classes == names:
            raise InputError(
                f"{_named(data)}: has labels of classes only ({_listed(classes)}), whose "
                f"calibration is of all structures; leave the data set out"
            )
        if classes:
            say(f"{_listed(classes)}: classes have no calibration of a data set, and keep theirs")
            names = [name for name in names if name not in classes]
        own = ((name, one.by_data_set.get(data_set)) for name, one in found.items())
        found = {name: one for name, one in own if one is not None}
    counts = {name: found[name].structures if name in found else 0 for name in names}
    needed = needed_for_coverage(ensemble.coverage)
    enough = {name: count for name, count in counts.items() if count >= needed}
    for name in counts.keys() - enough.keys():
        said = (
            f"{counts[name]} structures to calibrate {name} on, and intervals of "
            f"{100 * ensemble.coverage:g} % need at least {needed}"
        )
        if not enough:
            raise InputError(f"{_named(data)}: has {said}; give more")
        say(f"{name} keeps its calibration: there are {said}")
    calibrations = dict(ensemble.calibrations)
    for name in enough:  # other data sets keep their calibrations
        old, new = calibrations[name], found[name]
        if data_set is None:
            new = replace(new, by_data_set=old.by_data_set | new.by_data_set)
        else:
            new = replace(old, by_data_set=old.by_data_set | {data_set: new})
        calibrations[name] = new
    save_calibrations(
        folder,
        calibrations,
        {"data": Path(_named(data)).name, "split": split, "structures": enough},
    )
    return enough


def _named(data: Predictable) -> str:
    if isinstance(data, GraphStore):
        return str(data.path.absolute())
    if isinstance(data, (str, os.PathLike)):
        return str(Path(data).absolute())
    return f"{1 if isinstance(data, Atoms) else len(data)} structures"
