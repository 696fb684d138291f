"""Node features from named arrays, for nodes that are more than a chemical element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.errors import InputError

ATOMIC_NUMBER = "atomic_number"
"""Name of the node feature that is the chemical element."""
_HEAVIEST = 118


def named(arrays: Mapping[str, Any], name: str, origin: str) -> NDArray[np.float64]:
    """Return one array of finite numbers by its name.

    Raises
    ------
    InputError
        If it is missing or not finite numbers; the message begins with ``origin``.
    """
    if name not in arrays:
        known = ", ".join(map(str, arrays)) or "none"
        raise InputError(
            f"{origin} has no {name!r} (it has: {known}); correct the name or the file"
        )
    values = np.asarray(arrays[name])
    if values.dtype.kind not in "biuf":
        raise InputError(f"{origin}: {name!r} does not hold numbers; convert it or leave it out")
    if not np.isfinite(values).all():
        raise InputError(f"{origin} has NaN or infinity in {name!r}; correct or remove it")
    return values.astype(np.float64)


def named_rows(
    arrays: Mapping[str, Any], name: str, n_rows: int, origin: str
) -> NDArray[np.float64]:
    """Return one array with a row for each node or edge, as [n_rows, n_columns].

    Raises
    ------
    InputError
        In the cases of :func:`named`, and for another number of rows.
    """
    values = named(arrays, name, origin)
    if values.ndim == 0 or len(values) != n_rows:
        raise InputError(
            f"{origin}: {name!r} has the shape {list(values.shape)}, but {n_rows} rows are needed, "
            "one for each node or edge; correct it"
        )
    return values.reshape(n_rows, math.prod(values.shape[1:]))


def feature_rows(
    arrays: Mapping[str, Any], name: str, n_nodes: int, origin: str
) -> NDArray[np.float64]:
    """Return one array of node features by its name, as [n_nodes, n_columns].

    Raises
    ------
    InputError
        In the cases of :func:`named_rows`, and for an array without columns.
    """
    values = named_rows(arrays, name, n_nodes, origin)
    if not values.shape[1]:
        raise InputError(
            f"{origin}: {name!r} has no columns, so its nodes have no features; give it one or "
            "more, which may be a constant"
        )
    return values


def in_space(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pad vectors [n, d] with d up to 3 to [n, 3]; missing coordinates are zero."""
    return np.pad(vectors, ((0, 0), (0, 3 - vectors.shape[1])))


def node_features(
    arrays: Mapping[str, Any], names: Sequence[str], n_nodes: int, origin: str
) -> tuple[NDArray[np.float64], list[str]]:
    """Concatenate named arrays of the nodes by columns.

    Returns
    -------
    tuple
        Features [n_nodes, n_columns], and the names of the columns.

    Raises
    ------
    InputError
        If an array has no row for each node, or no columns; the message begins with ``origin``.
    """
    columns: list[NDArray[np.float64]] = [np.empty((n_nodes, 0))]
    titles: list[str] = []
    for name in names:
        columns.append(feature_rows(arrays, name, n_nodes, origin))
        titles += column_names(name, columns[-1].shape[1])
    x = np.concatenate(columns, axis=1)
    check_elements(x, titles, origin)
    return x, titles


def column_names(name: str, width: int) -> list[str]:
    """Return names of the columns of a feature; numbered if there are several."""
    return [name] if width == 1 else [f"{name}_{i}" for i in range(width)]


def check_elements(x: NDArray[np.float64], titles: Sequence[str], origin: str) -> None:
    """Check that a column of atomic numbers holds chemical elements.

    Raises
    ------
    InputError
        If it does not; the message begins with ``origin``.
    """
    if ATOMIC_NUMBER not in titles:
        return
    numbers = x[:, titles.index(ATOMIC_NUMBER)]
    wrong = (numbers != np.floor(numbers)) | (numbers < 1) | (numbers > _HEAVIEST)
    if wrong.any():
        node = int(wrong.argmax())
        raise InputError(
            f"{origin}: node {node} has the {ATOMIC_NUMBER} {numbers[node]:g}, which no element "
            "has; correct it or give the feature another name"
        )
