"""Graphs of PyG from files, which run no code, as structures with nodes and edges."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.separate import separate
from torch_geometric.data.storage import GlobalStorage

from hydragnn_flow.data.neighbours import Neighbours
from hydragnn_flow.data.sources.arrays import (
    Arrays,
    check_elements,
    in_space,
    named,
    named_rows,
    network_keys,
)
from hydragnn_flow.data.sources.base import Nodes
from hydragnn_flow.data.sources.structures import Found, points
from hydragnn_flow.errors import InputError


def tensors(data: Data) -> dict[str, NDArray[Any]]:
    """Return a PyG graph's tensors and numbers as arrays by key, without other objects."""
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
    """Return the number of nodes of a graph, which is the length of ``pos``.

    Raises
    ------
    InputError
        If there are no nodes; the message begins with ``origin``.
    """
    n = len(np.atleast_1d(named(arrays, "pos", origin)))
    if n == 0:
        raise InputError(f"{origin} has no nodes; remove it")
    return n


def graph_of(
    arrays: Arrays, features: str, names: Sequence[str], labels: Collection[str], origin: str
) -> Found:
    """Convert the arrays of a PyG graph to a structure with node features and edges.

    The structure keeps the graph's own edges; without ``edge_index``, edges are found later by
    distance.

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
        File and position of the graph, for error messages.

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
    """Return a graph's lattice vectors [3, 3], and the mask of its periodic directions [3].

    A cell without ``pbc`` is periodic along each vector that is not zero.

    Raises
    ------
    InputError
        If ``cell`` or ``pbc`` is not valid; the message begins with ``origin``.
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
    """Return the edges of a graph with their lengths, in the order of ``edge_index``.

    If ``periodic`` is True, the graph must have ``edge_shifts``.
    """
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


# Classes in a pickled Data object.
_PARTS_OF_DATA = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]


def load_graphs(path: Path) -> Sequence[Data]:
    """Load the graphs of a `.pt` file: one graph, a list, or an InMemoryDataset's content.

    Raises
    ------
    InputError
        If the file cannot be read or holds anything else. Classes that could run code are not
        loaded; the message names such classes.
    """
    with torch.serialization.safe_globals(_PARTS_OF_DATA), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of files that are refused below
        try:
            # Mapped if possible, so that reading a range of a large file reads only that range.
            # To map it, torch encodes the path as UTF-8, whatever the locale.
            is_utf8 = os.fsencode(path) == str(path).encode(errors="surrogateescape")
            can_map = is_utf8 and zipfile.is_zipfile(path)
            content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=can_map)
        except Exception as error:  # torch may raise any exception
            raise InputError(f"{path} {_why_refused(path, error)}") from None
    if isinstance(content, Data):
        return [content]
    if isinstance(content, list) and content and all(type(one) is Data for one in content):
        return content
    if isinstance(content, tuple) and len(content) in (2, 3):
        data, slices = content[:2]
        data = Data.from_dict(data) if isinstance(data, dict) else data
        if isinstance(data, Data) and slices is None:
            return [data]
        if isinstance(data, Data) and isinstance(slices, dict) and slices:
            return _Collated(data, slices)
    raise InputError(
        f"{path} holds a {type(content).__name__} that is none of what can be read: a "
        "torch_geometric Data, a list of them, or what an InMemoryDataset saves"
    )


class _Collated(Sequence[Data]):
    """Sequence of graphs that are stored in joint tensors; a graph is cut out when accessed."""

    def __init__(self, data: Data, slices: dict[str, Any]) -> None:
        self._data = data
        self._slices = slices

    def __len__(self) -> int:
        return len(next(iter(self._slices.values()))) - 1

    def __getitem__(self, index: Any) -> Any:
        return separate(
            cls=Data, batch=self._data, idx=index, slice_dict=self._slices, decrement=False
        )


def _why_refused(path: Path, error: Exception) -> str:
    try:
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        unsafe = []
    if unsafe:
        return (
            f"holds {', '.join(sorted(unsafe))}, which is no part of a plain torch_geometric Data "
            "and could run code when loaded; save plain Data instead"
        )
    reason = str(error).strip().partition("\n")[0].partition(". ")[0]
    # For a class it does not know, torch advises a way of loading that runs code from the file.
    if not reason or "weights_only" in str(error):
        reason = "it is no file of torch.save"
    return f"cannot be read as a file of PyG graphs ({reason}); save it again"
