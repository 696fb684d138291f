"""Errors of an ensemble and of its members on the same structures, with intervals.

Two models err on the same structures, so the interval of the difference of their errors comes from
a paired bootstrap of structures. It is narrower than the errors' own intervals suggest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import Manifest
from hydragnn_flow.ensemble.bootstrap import Estimate, interval
from hydragnn_flow.ensemble.measures import Floats, ratio
from hydragnn_flow.ensemble.summary import per_atom

_DRAWS = 1000
# Number of structure counts held in memory at a time.
_AT_ONCE = 1 << 20


def compare_models(
    predicted: Mapping[str, Mapping[str, Floats]],
    references: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    manifest: Manifest,
) -> dict[str, dict[str, Any]]:
    """Compute mean absolute errors of models by target, and changes relative to the first.

    Parameters
    ----------
    predicted
        Predictions ``[n, d]`` by name of the model and target. The first model is the ensemble.
    references
        True values ``[n, d]`` by target; not finite where unknown.
    n_atoms
        Number of atoms of each structure, ``[n]``.
    manifest
        Level and unit of each target.

    Returns
    -------
    dict
        Errors by target, per atom where it is a sum over atoms, as under `errors` in
        `ensemble.json`: name of the ``target``, ``unit``, ``structures``, ``mae`` of each model,
        and ``change`` from each other model to the first (-0.1: its error is a tenth smaller), both
        with intervals.
    """
    names, found = list(predicted), {}
    for target, reference in references.items():
        about = manifest.targets[target]
        structure = about.rows_of(np.arange(len(n_atoms)), n_atoms)
        errors = np.stack([np.abs(predicted[name][target] - reference) for name in names])
        label, unit = target, about.unit
        if manifest.is_extensive(target):
            unit, factor = per_atom(about.unit)
            label, errors = f"{target} per atom", errors * (factor / n_atoms[:, None])
        known = np.isfinite(errors).all(axis=0)
        if not known.any():
            continue
        structures = np.broadcast_to(structure[:, None], known.shape)[known]
        mae, change = compare_errors(errors[:, known], structures)
        found[label] = {
            "target": target,
            "unit": unit,
            "structures": len(np.unique(structures)),
            "mae": {name: _plain(of) for name, of in zip(names, mae, strict=True)},
            "change": {name: _plain(of) for name, of in zip(names[1:], change, strict=True)},
        }
    return found


def compare_by_data_set(
    predicted: Mapping[str, Mapping[str, Floats]],
    references: Mapping[str, Floats],
    n_atoms: NDArray[np.int64],
    data_set: NDArray[np.object_] | None,
    manifest: Manifest,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Apply :func:`compare_models` to the structures of each data set separately.

    ``data_set`` names the data set of each structure; if None, there is only one, and the result is
    empty.
    """
    if data_set is None:
        return {}
    found = {}
    for name in manifest.data_sets.values():
        of_graphs = data_set == name
        rows = {t: manifest.targets[t].rows_of(of_graphs, n_atoms) for t in references}
        found[name] = compare_models(
            {
                model: {target: of[target][rows[target]] for target in references}
                for model, of in predicted.items()
            },
            {target: values[rows[target]] for target, values in references.items()},
            n_atoms[of_graphs],
            manifest,
        )
    return {name: errors for name, errors in found.items() if errors}


def compare_errors(
    errors: Floats, structure: NDArray[np.int64], seed: int = 0
) -> tuple[list[Estimate], list[Estimate]]:
    """Compute the mean error of each model, and the change of the first relative to each other.

    Parameters
    ----------
    errors
        Absolute errors of the models on the same values ``[n_models, n_values]``, finite.
    structure
        Number of the structure that each value belongs to ``[n_values]``.
    seed
        Seed of the bootstrap.
    """
    place = np.unique(structure, return_inverse=True)[1]
    n = int(place.max()) + 1
    sums = np.stack([np.bincount(place, of) for of in (np.ones(len(place)), *errors)], axis=1)
    value = sums.sum(axis=0)
    rng, drawn = np.random.default_rng(seed), []
    at_once = max(_AT_ONCE // n, 1)
    for start in range(0, _DRAWS, at_once):
        rows = min(at_once, _DRAWS - start)
        places = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(places.ravel(), minlength=n * rows).reshape(rows, n)
        drawn.append(counts @ sums)
    totals = np.concatenate(drawn)
    models = [totals[:, k] / totals[:, 0] for k in range(1, sums.shape[1])]
    mae = [
        _estimate(of.sum() / len(place), draws, n) for of, draws in zip(errors, models, strict=True)
    ]
    change = [
        _estimate(value[1] / value[k] - 1 if value[k] else np.nan, ratio(models[0], of) - 1, n)
        for k, of in enumerate(models[1:], start=2)
    ]
    return mae, change


def _estimate(value: float, draws: Floats, n_structures: int) -> Estimate:
    lo, hi = interval(draws, n_structures) if np.isfinite(value) else (np.nan, np.nan)
    return Estimate(float(value), lo, hi)


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {end: x if np.isfinite(x) else None for end, x in estimate._asdict().items()}
