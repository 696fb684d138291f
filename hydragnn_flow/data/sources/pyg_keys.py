"""Conversion of a graph's arrays under PyG's usual keys to a structure with nodes and edges."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.sources.arrays import (
    Arrays,
    check_elements,
    in_space,
    named,
    named_rows,
    network_keys,
)
from hydragnn_flow.data.sources.structures import Found, Nodes, points
from hydragnn_flow.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from hydragnn_flow.data.neighbours import Neighbours


def tensors(data: Data) -> dict[str, NDArray[Any]]:
    """Return the tensors and numbers of a graph as arrays by key, without other objects."""
    import torch

    found = {
        str(key): torch.as_tensor(value).detach().cpu()
        for key, value in data.to_dict().items()
        if isinstance(value, int | float)
        or (isinstance(value, torch.Tensor) and value.layout is torch.strided)
    }
    # numpy has no bfloat16.
    return {
        key: (value.double() if value.is_floating_point() else value).numpy()
        for key, value in found.items()
    }


def n_nodes(arrays: Arrays, origin: str) -> int:
    """Return the number of nodes, given by their positions.

    Raises
    ------
    InputError
        If there are none; the message begins with ``origin``.
    """
    n = len(np.atleast_1d(named(arrays, "pos", origin)))
    if n == 0:
        raise InputError(f"{origin} has no nodes; remove it")
    return n


def graph_of(
    arrays: Arrays, features: str, names: Sequence[str], labels: Collection[str], origin: str
) -> Found:
    """Return a graph with its own edges, or else those within the cutoff.

    Parameters
    ----------
    arrays
        Arrays by key: ``pos``; ``cell``, ``pbc``, ``edge_index``, ``edge_shifts``, ``edge_attr``
        and the keys of :func:`network_keys`, if the graph has them.
    features
        Key of the node features.
    names
        Names of the node features' columns.
    labels
        Keys of the graph that are labels.
    origin
        Origin of the graph, for messages.

    Raises
    ------
    InputError
        If the arrays do not form a graph; the message begins with ``origin``.
    """
    n = n_nodes(arrays, origin)
    x = named_rows(arrays, features, n, origin)
    check_elements(x, names, origin)
    positions = named_rows(arrays, "pos", n, origin)
    if positions.shape[1] not in (2, 3):
        raise InputError(f"{origin}: pos is not [n_nodes, 3] or [n_nodes, 2]; correct it")
    positions = in_space(positions)
    cell, pbc = box(arrays, origin)
    edges: Neighbours | None = None
    edge_attr: NDArray[np.float64] | None = None
    n_edges: int | None = None
    if "edge_index" in arrays:
        edges = _edges(arrays, positions, bool(pbc.any()), origin)
        n_edges = len(edges.senders)
        if "edge_attr" in arrays:
            edge_attr = named_rows(arrays, "edge_attr", n_edges, origin)
    keys = network_keys(arrays, labels, n, n_edges, origin)
    nodes = Nodes(x, names, edges, edge_attr, keys)
    return Found(points(positions, cell, pbc), arrays, nodes=nodes)


def box(arrays: Arrays, origin: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return cell and periodic directions; a cell without ``pbc`` repeats along all its vectors.

    Raises
    ------
    InputError
        If they are not valid; the message begins with ``origin``.
    """
    cell = named(arrays, "cell", origin) if "cell" in arrays else np.zeros((3, 3))
    if cell.size != 9:
        raise InputError(f"{origin}: cell has the shape {list(cell.shape)}, not [3, 3]; correct it")
    cell = cell.reshape(3, 3)
    pbc = np.asarray(cell.any(axis=1))
    if "pbc" in arrays:
        pbc = named(arrays, "pbc", origin).reshape(-1).astype(np.bool_)
    if pbc.size not in (1, 3):
        raise InputError(f"{origin}: pbc has {pbc.size} values, not one or three; correct it")
    periodic: NDArray[np.bool_] = np.resize(pbc, 3)
    cell = np.where(periodic[:, None], cell, 0.0)
    if np.isfinite(cell).all() and np.linalg.matrix_rank(cell) < periodic.sum():
        raise InputError(
            f"{origin} is periodic along vectors of its cell that are zero or parallel; correct "
            f"cell or pbc"
        )
    return cell, periodic


def _edges(
    arrays: Arrays, positions: NDArray[np.float64], periodic: bool, origin: str
) -> Neighbours:
    """Return the edges of a graph in its order."""
    from hydragnn_flow.data.neighbours import Neighbours

    index = named(arrays, "edge_index", origin).astype(np.int64)
    if index.ndim != 2 or len(index) != 2 or ((index < 0) | (index >= len(positions))).any():
        raise InputError(
            f"{origin}: edge_index is not [2, n_edges] of nodes the graph has; correct it or "
            "remove it to have edges within the cutoff"
        )
    senders, receivers = index
    if "edge_shifts" in arrays:
        shifts = named_rows(arrays, "edge_shifts", len(senders), origin)
    elif periodic:
        raise InputError(
            f"{origin} is periodic and has edges, but no edge_shifts to say to which image they "
            "lead; add them, or remove edge_index to have edges within the cutoff"
        )
    else:
        shifts = np.zeros((len(senders), 3))
    if shifts.shape[1] != 3:
        raise InputError(f"{origin}: edge_shifts is not [n_edges, 3]; correct it")
    vectors = positions[receivers] - positions[senders] + shifts
    return Neighbours(senders, receivers, shifts, np.linalg.norm(vectors, axis=1))
