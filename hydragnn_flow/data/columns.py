"""The arrays of a split: each key's values of all graphs, end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.errors import InputError

# What BP5 stores and HydraGNN reads back as numbers (it takes uint8 for text; BP5 has no bool and
# no half precision).
_STORED_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Column:
    """One key of a split: the values of all its graphs concatenated along one dimension."""

    values: NDArray[Any]
    """All graphs' values."""
    dim: int
    """Dimension along which the graphs follow one another."""
    counts: NDArray[np.int64]
    """Extent of each graph along ``dim``, [n_graphs]."""

    def starts(self) -> NDArray[np.int64]:
        """Where each graph begins along ``dim``, [n_graphs]."""
        starts: NDArray[np.int64] = np.cumsum(self.counts) - self.counts
        return starts


def concatenation_dim(key: str, ndim: int) -> int:
    """The dimension along which PyG, and hence a batch, concatenates ``key``."""
    return ndim - 1 if "index" in key or key == "face" else 0


def pack(graphs: Sequence[Data], split: str, like: Mapping[str, Column]) -> dict[str, Column]:
    """Concatenate the values of all graphs, key by key.

    Parameters
    ----------
    graphs
        Graphs with the same keys, data types and trailing shapes.
    split
        Name of the split, for messages.
    like
        Columns of an earlier split that this one must agree with; empty for the first. A split
        without graphs gets the keys of ``like`` and no rows.

    Raises
    ------
    InputError
        Naming split, graph and key where a value is missing, of another shape or type than in the
        first graph, not finite, or refers to atoms that do not exist.
    """
    if not graphs:
        return {key: _no_rows(column) for key, column in like.items()}
    keys = list(like) or [str(key) for key in graphs[0].to_dict()]
    per_graph = [_arrays(graph, keys, f"{split}: graph {i}") for i, graph in enumerate(graphs)]
    columns = {}
    for key in keys:
        values = [arrays[key] for arrays in per_graph]
        dim = concatenation_dim(key, values[0].ndim)
        model = like[key].values if key in like else values[0]
        for i, value in enumerate(values):
            if value.dtype != model.dtype or _trailing(value, dim) != _trailing(model, dim):
                raise InputError(
                    f"{split}: graph {i}: {key} is {value.dtype} {list(value.shape)}, which does "
                    f"not fit the {model.dtype} {list(model.shape)} before it; make them alike"
                )
        counts = np.array([value.shape[dim] for value in values], dtype=np.int64)
        columns[key] = Column(np.concatenate(values, axis=dim), dim, counts)
    check_graphs(columns, split)
    return columns


def join(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Put the columns of several shards one behind the other."""
    return {
        key: Column(
            np.concatenate([part[key].values for part in parts], axis=column.dim),
            column.dim,
            np.concatenate([part[key].counts for part in parts]),
        )
        for key, column in parts[0].items()
    }


def _no_rows(column: Column) -> Column:
    nothing = np.take(column.values, np.empty(0, dtype=np.int64), axis=column.dim)
    return Column(nothing, column.dim, np.empty(0, dtype=np.int64))


def _trailing(value: NDArray[Any], dim: int) -> tuple[int, ...]:
    return value.shape[:dim] + value.shape[dim + 1 :]


def _arrays(graph: Data, keys: list[str], where: str) -> dict[str, NDArray[Any]]:
    """The tensors of one graph as arrays, checked one by one."""
    stored = graph.to_dict()
    if set(stored) != set(keys):
        differing = ", ".join(sorted(set(stored) ^ set(keys)))
        raise InputError(
            f"{where}: key(s) {differing} are not in every graph; give all graphs the same keys"
        )
    arrays = {}
    for key in keys:
        # PyG treats these names in ways of its own when it makes batches.
        if "batch" in key or key == "ptr":
            raise InputError(f"{where}: the key {key!r} is reserved by PyG; rename it")
        value = stored[key]
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            raise InputError(f"{where}: {key} is no tensor of one dimension or more; make it one")
        if value.dtype is torch.bool:
            value = value.to(torch.int32)
        array = value.detach().cpu().contiguous().numpy()
        if array.dtype.name not in _STORED_DTYPES:
            raise InputError(
                f"{where}: {key} is {array.dtype}; convert it to one of {', '.join(_STORED_DTYPES)}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{where}: {key} holds NaN or infinity; correct or remove the graph")
        arrays[key] = array
    return arrays


def check_graphs(columns: Mapping[str, Column], where: str) -> None:
    """Check what the keys of a graph must agree on among themselves.

    Raises
    ------
    InputError
        Beginning with ``where``, naming graph and key.
    """
    for key in ("x", "pos", "edge_index"):
        if key not in columns:
            raise InputError(f"{where}: the graphs have no {key}, which every graph needs; add it")
    if columns["x"].values.ndim != 2 or columns["edge_index"].values.shape[0] != 2:
        raise InputError(
            f"{where}: x is not [n_atoms, n_features] or edge_index not [2, n_edges]; reshape them"
        )
    atoms, edges = columns["x"].counts, columns["edge_index"]
    rows = {"pos": atoms, "edge_shifts": edges.counts, "edge_attr": edges.counts}
    for key, expected in rows.items():
        if key in columns and (wrong := columns[key].counts != expected).any():
            raise InputError(
                f"{where}: graph {int(wrong.argmax())}: {key} has another number of rows than the "
                "graph has atoms or edges; correct it"
            )
    if (atoms == 0).any():
        raise InputError(f"{where}: graph {int((atoms == 0).argmax())} has no atoms; remove it")
    index = edges.values
    wrong_edge = ((index < 0) | (index >= np.repeat(atoms, edges.counts))).any(axis=0)
    if wrong_edge.any():
        graph = int(np.searchsorted(np.cumsum(edges.counts), wrong_edge.argmax(), side="right"))
        raise InputError(
            f"{where}: graph {graph}: edge_index names an atom the graph does not have; correct it"
        )
