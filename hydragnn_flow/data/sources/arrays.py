"""Named arrays of a structure: node features, and keys that only some networks read."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config.sources import BRANCH, WEIGHT
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data


Arrays = Mapping[str, NDArray[Any]]

ATOMIC_NUMBER = "atomic_number"
"""Name of the node feature that is the chemical element."""


def lookup(values: Mapping[str, Any], key: str, origin: str, what: str, setting: str) -> Any:
    """Return a structure's value under ``key``; raise InputError if it has none.

    For error messages, ``what`` says what the value is, and ``setting`` is the key of `data.source`
    that chooses it.

    Raises
    ------
    InputError
        If the value is missing or None; the message begins with ``origin``.
    """
    if key not in values:
        known = [name for name in values if name]  # a table's index has no name
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'nothing'}"
        raise InputError(
            f"{origin} has no {what} {key!r} ({hint}); "
            f"correct data.source.{setting}, add the {what}, or remove the structure"
        )
    if values[key] is None:
        raise InputError(
            f"{origin} has an empty {what} {key!r}; fill it in or remove the structure"
        )
    return values[key]


def named(
    arrays: Mapping[str, Any], name: str, origin: str, *, is_label: bool = False
) -> NDArray[np.float64]:
    """Return the array ``name`` as float64, after checking that all its numbers are finite.

    A label may be NaN, which means that there is none.

    Raises
    ------
    InputError
        If the array is missing or does not hold finite numbers; the message begins with ``origin``.
    """
    if name not in arrays:
        known = ", ".join(map(str, arrays)) or "none"
        raise InputError(
            f"{origin} has no {name!r} (it has: {known}); correct the name or the file"
        )
    values = np.asarray(arrays[name])
    if values.dtype.kind not in "biuf":
        raise InputError(f"{origin}: {name!r} does not hold numbers; convert it or leave it out")
    if not (np.isfinite(values) | (is_label & np.isnan(values))).all():
        raise InputError(f"{origin} has NaN or infinity in {name!r}; correct or remove it")
    return values.astype(np.float64)


def named_rows(
    arrays: Mapping[str, Any], name: str, n_rows: int, origin: str
) -> NDArray[np.float64]:
    """Return the array ``name``, with a row for each node or edge, as float64 [n_rows, n_columns].

    Raises
    ------
    InputError
        In the cases of :func:`named`, and for another number of rows or no columns.
    """
    values = named(arrays, name, origin)
    if values.ndim == 0 or len(values) != n_rows or (n_rows and not values.size):
        raise InputError(
            f"{origin}: {name!r} has the shape {list(values.shape)}, but {n_rows} rows of one "
            "column or more are needed, one for each node or edge; correct it"
        )
    return values.reshape(n_rows, math.prod(values.shape[1:]))


def node_features(
    arrays: Mapping[str, Any], names: Sequence[str], n_nodes: int, origin: str
) -> tuple[NDArray[np.float64], list[str]]:
    """Join the arrays ``names`` of a graph's nodes into one array of node features.

    Returns
    -------
    tuple
        Features [n_nodes, n_columns], and the names of the columns.

    Raises
    ------
    InputError
        If an array is missing, has no row for each node or no columns, or an atomic number is no
        element; the message begins with ``origin``.
    """
    columns: list[NDArray[np.float64]] = [np.empty((n_nodes, 0))]
    titles: list[str] = []
    for name in names:
        columns.append(named_rows(arrays, name, n_nodes, origin))
        titles += column_names(name, columns[-1].shape[1])
    x = np.concatenate(columns, axis=1)
    check_elements(x, titles, origin)
    return x, titles


def column_names(name: str, width: int) -> list[str]:
    """Return names of a feature's ``width`` columns: ``name``, or ``name_0``, … if several."""
    return [name] if width == 1 else [f"{name}_{i}" for i in range(width)]


def check_elements(x: NDArray[np.float64], titles: Sequence[str], origin: str) -> None:
    """Check that the column ``atomic_number``, if there is one, holds chemical elements.

    ``titles`` has the names of the columns of ``x``.

    Raises
    ------
    InputError
        If a value is no atomic number; the message begins with ``origin``.
    """
    if ATOMIC_NUMBER not in titles:
        return
    numbers = x[:, titles.index(ATOMIC_NUMBER)]
    wrong = (numbers != np.floor(numbers)) | (numbers < 1) | (numbers > 118)
    if wrong.any():
        node = int(wrong.argmax())
        raise InputError(
            f"{origin}: node {node} has the {ATOMIC_NUMBER} {numbers[node]:g}, which no element "
            "has; correct it or give the feature another name"
        )


def in_space(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors [n, d], with d up to 3, as [n, 3]; added coordinates are zero."""
    return np.pad(vectors, ((0, 0), (0, 3 - vectors.shape[1])))


def network_keys(
    arrays: Arrays, labels: Collection[str], n_nodes: int, n_edges: int | None, origin: str
) -> dict[str, NDArray[Any]]:
    """Collect a graph's optional arrays that only some networks read, such as encodings.

    Parameters
    ----------
    arrays
        Arrays of the graph by key.
    labels
        Keys of the graph that are labels, which are left out.
    n_nodes
        Number of nodes of the graph.
    n_edges
        Number of edges; None if the edges are not known yet.
    origin
        File and position of the graph, for error messages.

    Returns
    -------
    dict
        Arrays by key, for keys that exist: ``dataset_name`` int64 [1, 1], the index of the graph's
        branch; ``loss_weight`` [1, 1]; ``graph_attr`` [1, k], features of the whole graph; ``pe``
        [n_nodes, k] and ``rel_pe`` [n_edges, k], positional encodings. All but ``dataset_name`` are
        float32.

    Raises
    ------
    InputError
        If an array has another shape, holds NaN or infinity, or ``dataset_name`` is no branch
        index; the message begins with ``origin``.
    """
    found: dict[str, NDArray[Any]] = {}
    for key in (BRANCH, WEIGHT, "graph_attr", "pe", "rel_pe"):
        if key not in arrays or key in labels:
            continue
        if key in ("pe", "rel_pe"):
            rows = n_nodes if key == "pe" else n_edges
            if rows is None:
                raise InputError(
                    f"{origin} has encodings of edges, rel_pe, but no edge_index to say of which; "
                    "add the edges or leave rel_pe out"
                )
            found[key] = named_rows(arrays, key, rows, origin).astype(np.float32)
            continue
        values = named(arrays, key, origin)
        if key == BRANCH and (values.size != 1 or values.item() < 0 or values.item() % 1):
            raise InputError(
                f"{origin}: {BRANCH} is {values.tolist()}, not the number of the graph's branch, "
                "counted from 0; correct it or leave it out"
            )
        if values.size == 0 or (values.ndim > 1 and values.shape[0] != 1):
            raise InputError(
                f"{origin}: {key} has the shape {list(values.shape)}, not [k] or [1, k] with k "
                "features of the whole graph; correct it or leave it out"
            )
        found[key] = values.reshape(1, -1).astype(np.int64 if key == BRANCH else np.float32)
    return found


def add_keys(graph: Data, keys: Arrays) -> Data:
    """Add named arrays to a graph, in place, as tensors, and return the graph."""
    import torch

    for key, values in keys.items():
        graph[key] = torch.from_numpy(values)
    return graph


def graph_attr(values: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return the quantities ``names`` of a structure as network inputs, float32 [1, n_names].

    Raises
    ------
    ValueError
        If a quantity is missing or is not a single finite number. The message is the rest of a
        sentence that begins with the structure.
    """
    row = []
    for name in names:
        value = values.get(name)
        if value is None:
            raise ValueError(f"has no {name!r}, a number that the network reads of each structure")
        try:
            numbers = np.asarray(value, dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            numbers = np.array([np.nan])
        # NaN is not below the limit either.
        if numbers.size != 1 or not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            raise ValueError(
                f"has {name!r} = {reprlib.repr(value)}, and the network reads one finite number"
            )
        row.append(numbers[0])
    return np.array([row], dtype=np.float32)
