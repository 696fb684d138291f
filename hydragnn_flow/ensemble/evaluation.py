"""Evaluation of an ensemble on labelled data: errors and quality of error bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.ensemble.applicability import are_noted
from hydragnn_flow.ensemble.ensemble import Ensemble
from hydragnn_flow.ensemble.labels import every_label, in_components, keys_of_label
from hydragnn_flow.ensemble.member_predictions import Predicted, predict_all, predict_graphs
from hydragnn_flow.ensemble.structure_files import (
    Files,
    Graphs,
    Predictable,
    Record,
    by_name,
    naming,
    open_structures,
    readable_records,
)
from hydragnn_flow.ensemble.target_measures import TargetMeasures, measure_targets
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.errors import InputError

# The unit of labels is doubtful from this correlation with predictions, beyond this factor.
_FOLLOWS = 0.9
_FACTOR = 3.0
# Their zero is doubtful if the mean error exceeds so many spreads of errors and so many error bars.
_ONE_SIDED = 3.0
_BEYOND = 10.0
_LEAST_VALUES = 10


def evaluate(
    ensemble: Ensemble,
    data: Predictable,
    *,
    split: str | None = None,
    keys: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, TargetMeasures]:
    """Predict labelled structures, and measure errors and uncertainty.

    Parameters
    ----------
    ensemble
        Ensemble that predicts the structures.
    data
        Path or structures that :func:`~hydragnn_flow.ensemble.ensemble.Ensemble.predict` takes, a
        GraphStore, or ASE structures. Units are those of the training data.
    split
        Name of a GraphStore's split; all its splits if None.
    keys
        Key of the labels in files and structures by target. By default the key in the training
        data, or else the target's name, in the results of a calculation, `Atoms.info` or
        `Atoms.arrays`.
    say
        Function that receives remarks: files of a directory that were skipped, targets without
        labels, splits that count together, labels that seem to be in another unit.

    Returns
    -------
    dict
        Measures by target, in the ensemble's order; extensive targets a second time as ``energy per
        atom``.

    Raises
    ------
    InputError
        If there is nothing to predict, no target has labels, only some structures have one, or a
        label does not match the ensemble's target.
    """
    found = predict_labelled(ensemble, data, split=split, keys=keys, say=say)
    return measure_targets(
        ensemble.distributions(found.members, found.n_atoms, found.numbers, found.data_sets),
        found.labels,
        found.n_atoms,
        are_noted(found.remarks),
        ensemble.manifest,
        ensemble.coverage,
    )


def predict_labelled(
    ensemble: Ensemble,
    data: Predictable,
    *,
    split: str | None = None,
    keys: Mapping[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> Predicted:
    """Predict labelled structures, and return predictions and labels.

    Parameters are those of :func:`evaluate`.

    Raises
    ------
    InputError
        In the same cases as :func:`evaluate`.
    """
    keys = keys or {}
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
        found = _in_store(ensemble, opened, say)
    elif isinstance(opened, Files):
        records = readable_records(ensemble, opened, say)
        with naming(opened.path, records):
            found = _in_records(ensemble, records, keys, say)
    else:
        found = _in_records(ensemble, by_name(opened), keys, say)
    _tell_doubts(ensemble, found, say)
    return found


def _in_store(ensemble: Ensemble, opened: Graphs, say: Callable[[str], None]) -> Predicted:
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
    return predict_graphs(ensemble, store, splits, {})


def _in_records(
    ensemble: Ensemble,
    records: Mapping[str, Record],
    keys: Mapping[str, str],
    say: Callable[[str], None],
) -> Predicted:
    """Read labels, then predict: errors in labels are reported before the slow prediction."""
    targets = ensemble.manifest.targets
    named = {name: record.found for name, record in records.items()}
    wanted = {name: _keys_of(ensemble, name, keys) for name in ensemble.calibrations}
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
    return replace(
        found, labels={name: in_components(v, name, dims[name]) for name, v in labels.items()}
    )


def _tell_doubts(ensemble: Ensemble, data: Predicted, say: Callable[[str], None]) -> None:
    n_atoms = data.n_atoms
    predicted = ensemble.distributions(data.members, n_atoms, data.numbers, data.data_sets)
    for name, reference in data.labels.items():
        unit = ensemble.manifest.targets[name].unit or "the unit of the training data"
        found = predicted[name]
        lost = int((np.isfinite(reference) > np.isfinite(found.mean)).any(axis=1).sum())
        if lost:
            rows = "structures" if len(reference) == len(n_atoms) else "atoms"
            say(f"{name} of {lost} {rows} is not finite in the prediction and does not count")
        if (doubt := doubt_of(found.mean, reference)) is not None:
            say(
                f"labels of {name} {doubt}: are they in {unit}, with the sign of the training data?"
            )
            continue
        extensive = ensemble.manifest.is_extensive(name)
        size = n_atoms[:, None] if extensive else 1
        if extensive and seem_per_atom(found.mean, reference, n_atoms[:, None]):
            say(
                f"labels of {name} follow the predictions divided by the number of atoms: multiply "
                f"them by it"
            )
            continue
        values = (found.mean / size, found.std / size, reference / size)
        if (offset := offset_of(*values)) is not None:
            each = " per atom" if extensive else ""
            say(
                f"labels of {name} are all about {offset:.3g} away from the predictions{each}: are "
                f"they in {unit}, counted from the zero of the training data?"
            )


def doubt_of(predicted: Floats, reference: Floats) -> str | None:
    """Return a hint that labels are in another unit or have the other sign; None without one.

    Such labels are proportional to the predictions, which a model's errors do not cause.

    Parameters
    ----------
    predicted, reference
        Values of a target in the same order.
    """
    known = np.isfinite(predicted) & np.isfinite(reference)
    found, true = (values[known] - values[known].mean() for values in (predicted, reference))
    norms = np.linalg.norm(found), np.linalg.norm(true)
    if len(found) < _LEAST_VALUES or min(norms) == 0:
        return None
    correlation = float(found @ true) / float(norms[0] * norms[1])
    factor = float(norms[1] / norms[0])
    if abs(correlation) < _FOLLOWS or (correlation > 0 and 1 / _FACTOR < factor < _FACTOR):
        return None
    signed = math.copysign(factor, correlation)
    return f"are about {signed:.3g} times the predictions (correlation {correlation:.2f})"


def seem_per_atom(predicted: Floats, reference: Floats, n_atoms: NDArray[np.int64]) -> bool:
    """Return True if labels times numbers of atoms are much nearer to the predictions.

    Parameters
    ----------
    predicted, reference, n_atoms
        Values of an extensive target, and sizes of the structures, in the same order.
    """
    known = np.isfinite(predicted) & np.isfinite(reference)
    if known.sum() < _LEAST_VALUES:
        return False
    as_given, as_sums = (np.abs(reference * k - predicted)[known] for k in (1, n_atoms))
    return bool(_FACTOR * np.median(as_sums) < np.median(as_given))


def offset_of(predicted: Floats, std: Floats, reference: Floats) -> float | None:
    """Return the mean error of labels far from the predictions to one side; otherwise None.

    Energies have another zero in another code or with other reference atoms.

    Parameters
    ----------
    predicted, std, reference
        Values of a target in the same order, and their standard deviations.
    """
    error = reference - predicted
    known = np.isfinite(error)
    if known.sum() < _LEAST_VALUES:
        return None
    offset = float(error[known].mean())
    usual = max(_ONE_SIDED * error[known].std(), _BEYOND * np.median(std[known]))
    return offset if abs(offset) > usual else None


def _tell_missing(ensemble: Ensemble, labelled: Container[str], say: Callable[[str], None]) -> None:
    if missing := [name for name in ensemble.calibrations if name not in labelled]:
        say(f"not evaluated, as no structure has a label: {', '.join(missing)}")


def _keys_of(ensemble: Ensemble, target: str, keys: Mapping[str, str]) -> list[str]:
    """Return keys to try for a target's label: the given one, or training's, then its name."""
    if target in keys:
        return [keys[target]]
    return keys_of_label(ensemble.manifest, target)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
