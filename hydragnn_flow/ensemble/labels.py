"""Labels in the components that models predict: of the graphs of a store, and in files."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data import GraphSplit, Manifest, Target
from hydragnn_flow.data.reading.split_part import Split
from hydragnn_flow.data.sources.labels import shaped
from hydragnn_flow.data.sources.structures import Found
from hydragnn_flow.ensemble.uncertainty import Floats
from hydragnn_flow.errors import InputError
from hydragnn_flow.models.stress import STRESS, VOIGT_PLACES

_IN_FULL = (0, 5, 4, 5, 1, 3, 4, 3, 2)
"""Places in Voigt's order of a tensor's nine numbers, row by row."""


def labels_of(split: Split, target: str, dim: int) -> Floats:
    """True values of a target for a split, [n, dim]."""
    return in_components(split.target(target), target, dim)


def labels_of_splits(
    splits: Sequence[Split], predictions: Mapping[str, Floats], targets: Iterable[str]
) -> dict[str, Floats]:
    """True values of targets for splits one behind the other, ``[n, d]`` as they are predicted.

    Parameters
    ----------
    splits
        Of a store that has labels of the targets.
    predictions
        Every member's: output -> ``[n_members, n, d]``.
    targets
        Which of these are wanted.
    """
    return {
        name: np.concatenate(
            [labels_of(split, name, predictions[name].shape[2]) for split in splits]
        )
        for name in targets
    }


def numbers_of(splits: Sequence[GraphSplit], manifest: Manifest) -> NDArray[np.int64] | None:
    """Atomic numbers of the nodes of splits, one behind the other; None if they are no atoms."""
    if not atoms_of(manifest):
        return None
    return np.concatenate([split.column("x")[:, 0] for split in splits]).astype(np.int64)


def atoms_of(manifest: Manifest) -> bool:
    """Whether the first node feature is the atomic number."""
    return manifest.node_features[:1] == ["atomic_number"]


def in_components(values: Floats, target: str, dim: int) -> Floats:
    """True values ``[n, d]`` in the components that a model predicts.

    A potential predicts the six components of a stress that the data may hold as nine.
    """
    if target == STRESS and (values.shape[1], dim) == (9, 6):
        return np.asarray(values[:, VOIGT_PLACES])
    return values


def labels_in_files(
    found: Sequence[Found],
    names: Sequence[str],
    target: str,
    described: Target,
    keys: Sequence[str],
) -> Floats | None:
    """True values of a target for structures from files, ``[n, d]``; None if none has a label.

    The stress of a structure that is not periodic in three directions is NaN.

    Parameters
    ----------
    found
        The structures, and all that their files say.
    names
        What to call each structure in errors.
    target, described
        Name of the target, and what the training data had.
    keys
        Where to look for labels, at least one; the first that any structure has counts.

    Raises
    ------
    InputError
        If some structures have no label, or a label is not finite or of another shape.
    """
    said: list[object] = []
    for key in keys:  # one for all: structures may have values of several methods
        said = [one.values.get(key) for one in found]
        if any(value is not None for value in said):
            break
    labelled = sum(value is not None for value in said)
    if not labelled:
        return None
    rows = []
    for one, value, name in zip(found, said, names, strict=True):
        n = 1 if described.level == "graph" else len(one.atoms)
        if value is not None:
            rows.append(_label(value, name, target, described, n))
        elif target == STRESS and not one.atoms.pbc.all():
            rows.append(np.full((n, described.dim), np.nan))
        else:
            raise InputError(
                f"{name}: has no label of {target} ({key!r}), though "
                f"{labelled} of {len(found)} structures have one; add it or leave the structure out"
            )
    return np.concatenate(rows)


def keys_of_label(manifest: Manifest, target: str) -> list[str]:
    """Keys to look for a target's label in files: that of the training data, then its name."""
    in_training = [
        (source.get("targets") or {}).get(target, {}).get("key") for source in manifest.sources
    ]
    return list(dict.fromkeys([key for key in in_training if key] + [target]))


def label_if_known(
    found: Found, target: str, described: Target, keys: Sequence[str], dim: int
) -> tuple[Floats, str]:
    """True values of a target for one structure ``[n, dim]``, and what is wrong with its label.

    They are NaN where the structure has no label, or one that is not what the ensemble predicts.

    Parameters
    ----------
    found
        The structure, and all that is said of it.
    target, described
        Name of the target, and what the training data had.
    keys
        Where to look; the first that the structure has counts.
    dim
        Number of components that the ensemble predicts.
    """
    n = 1 if described.level == "graph" else len(found.atoms)
    said = next((found.values[key] for key in keys if found.values.get(key) is not None), None)
    wrong = ""
    if said is not None:
        label = _shaped_as(said, target, described, n)
        if label.shape == (n, described.dim):
            return in_components(label, target, dim), ""
        wrong = f"its label of {target} is not {_expected(described)} and is left out"
    return np.full((n, dim), np.nan), wrong


def _label(value: object, name: str, target: str, described: Target, n: int) -> Floats:
    """One structure's label, ``[n, d]`` as the training data had it."""
    label = _shaped_as(value, target, described, n)
    if label.shape[1] != described.dim:
        raise InputError(
            f"{name}: has a label of {target} that is not {_expected(described)} "
            f"({reprlib.repr(value)}); correct it"
        )
    if not np.isfinite(label).all():
        raise InputError(
            f"{name}: has NaN or infinity in its label of {target}; correct it or leave the "
            f"structure out"
        )
    return label


def _shaped_as(value: object, target: str, described: Target, n: int) -> Floats:
    """A label as the training data had it, ``[n, d]``; without columns if it is none."""
    try:
        label = shaped(value, described.level, n)
        # Columns of atoms would be mixed up by taking their numbers row by row.
        if described.level == "node" and label.ndim == 2 and label.shape[1] > 1 and len(label) != n:
            return np.empty((n, 0))
        label = label.reshape(n, -1)
    except (TypeError, ValueError):
        return np.empty((n, 0))
    if target == STRESS and (label.shape[1], described.dim) == (6, 9):
        label = label[:, _IN_FULL]
    return in_components(label, target, described.dim)


def _expected(described: Target) -> str:
    numbers = "a number" if described.dim == 1 else f"{described.dim} numbers"
    return f"{numbers} per {'structure' if described.level == 'graph' else 'atom'}"
