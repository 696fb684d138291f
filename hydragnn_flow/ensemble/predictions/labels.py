"""Labels in the components that models predict: of the graphs of a store, and in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import GraphSplit, Manifest, Target
from hydragnn_flow.data.reading.split_part import Split
from hydragnn_flow.data.sources.arrays import shaped
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble.uncertainty.distribution import Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stress import STRESS, VOIGT_PLACES

_IN_FULL = (0, 5, 4, 5, 1, 3, 4, 3, 2)
"""Places in Voigt's order of a tensor's nine numbers, row by row."""


def labels_of(split: Split, target: str, dim: int) -> Floats:
    """Return the true values of a target for a split, ``[n, dim]``."""
    return in_components(split.target(target), target, dim)


def numbers_of(splits: Sequence[GraphSplit], manifest: Manifest) -> NDArray[np.int64] | None:
    """Return the atomic numbers of all nodes of splits; None if nodes are not atoms."""
    if not has_elements(manifest):
        return None
    return np.concatenate([split.column("x")[:, 0] for split in splits]).astype(np.int64)


def has_elements(manifest: Manifest) -> bool:
    """Return whether the first node feature is the atomic number."""
    return manifest.node_features[:1] == ["atomic_number"]


def in_components(values: Floats, target: str, dim: int) -> Floats:
    """Return true values ``[n, d]`` in the components that a model predicts.

    A potential predicts the six components of a stress that the data may hold as nine.
    """
    if target == STRESS and (values.shape[1], dim) == (9, 6):
        return np.asarray(values[:, VOIGT_PLACES])
    return values


def keys_of_label(manifest: Manifest, target: str) -> list[str]:
    """Return the keys of a target's label in files: that of the training data, then its name."""
    in_training = [
        (source.get("targets") or {}).get(target, {}).get("key") for source in manifest.sources
    ]
    return list(dict.fromkeys([key for key in in_training if key] + [target]))


def every_label(
    structures: Mapping[str, Found], target: str, described: Target, keys: Sequence[str]
) -> Floats | None:
    """Return the true values of a target for all structures ``[n, d]``; None if none has one.

    The stress of a structure that is not periodic in three directions is NaN.

    Parameters
    ----------
    structures
        Structures with all values of their files, by their names in errors.
    target, described
        Name of the target, and what the training data had.
    keys
        Keys of the label in files, at least one; the first that any structure has counts.

    Raises
    ------
    InputError
        If some structures have no label, or a label is not finite or of another shape.
    """
    # One key for all: structures may have values of several methods.
    has = [k for k in keys if any(one.values.get(k) is not None for one in structures.values())]
    if not has:
        return None
    key = has[0]
    rows = []
    for name, found in structures.items():
        label, wrong = label_of(found, target, described, [key])
        if found.values.get(key) is not None:
            if not wrong and not np.isfinite(label).all():
                wrong = f"label of {target} is not finite"
        elif target != STRESS or found.atoms.pbc.all():
            wrong = f"label of {target} ({key!r}) is missing, though other structures have one"
        if wrong:
            raise InputError(f"{name}: its {wrong}; correct it or leave the structure out")
        rows.append(label)
    return np.concatenate(rows)


def label_of(
    found: Found, target: str, described: Target, keys: Sequence[str]
) -> tuple[Floats, str]:
    """Return a structure's label ``[n, d]`` as in the training data, and the error in it.

    The label is NaN if there is none, or it has another shape than the ensemble's predictions.

    Parameters
    ----------
    found
        Structure with all values of its file.
    target, described
        Name of the target, and what the training data had.
    keys
        Keys of the label; the first that the structure has counts.
    """
    of_atoms = described.level == "node"
    n = len(found.atoms) if of_atoms else 1
    unknown = np.full((n, described.dim), np.nan)
    value = next((found.values[key] for key in keys if found.values.get(key) is not None), None)
    if value is None:
        return unknown, ""
    try:
        label = shaped(value, described.level, n)
        # Columns of atoms would be mixed up by taking their numbers row by row.
        is_turned = of_atoms and label.ndim == 2 and label.shape[1] > 1 and len(label) != n
        label = np.empty((n, 0)) if is_turned else label.reshape(n, -1)
    except (TypeError, ValueError):
        label = np.empty((n, 0))
    if target == STRESS and (label.shape[1], described.dim) == (6, 9):
        label = label[:, _IN_FULL]
    label = in_components(label, target, described.dim)
    if label.shape == unknown.shape:
        return label, ""
    numbers = "a number" if described.dim == 1 else f"{described.dim} numbers"
    return unknown, f"label of {target} is not {numbers} per {'atom' if of_atoms else 'structure'}"
