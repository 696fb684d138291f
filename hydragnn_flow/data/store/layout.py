"""HydraGNN's layout of a split inside a BP5 file: names, counts, offsets and attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import Column, concatenation_dim
from hydragnn_flow.data.store.bp5 import Bp5File, write_bp5
from hydragnn_flow.errors import InputError


def write_shard(
    path: Path,
    splits: Mapping[str, Mapping[str, Column]],
    degree_histogram: list[int],
    dataset_name: str,
) -> None:
    """Write all splits to one BP5 file that HydraGNN's own reader understands."""
    lengths = {split: len(columns["x"].counts) for split, columns in splits.items()}
    attributes: dict[str, str | list[str] | NDArray[np.int64]] = {
        "dataset_name": dataset_name,
        "pna_deg": np.array(degree_histogram, dtype=np.int64),
        "total_ndata": np.array(sum(lengths.values()), dtype=np.int64),
    }
    for split, columns in splits.items():
        attributes[f"{split}/ndata"] = np.array(lengths[split], dtype=np.int64)
        attributes[f"{split}/keys"] = list(columns)
        for key, column in columns.items():
            attributes[f"{split}/{key}/variable_dim"] = np.array(column.dim, dtype=np.int64)
    write_bp5(path, _variables(splits), attributes)


def _variables(
    splits: Mapping[str, Mapping[str, Column]],
) -> Iterator[tuple[str, NDArray[Any]]]:
    for split, columns in splits.items():
        # HydraGNN's order; ours is that of the attribute `keys`.
        for key in sorted(columns):
            column = columns[key]
            yield f"{split}/{key}", column.values
            yield f"{split}/{key}/variable_count", column.counts
            yield f"{split}/{key}/variable_offset", column.starts()


def split_lengths(file: Bp5File) -> dict[str, int]:
    """Number of graphs of each split in a file, in HydraGNN's order train, validation, test."""
    names = [
        name.removesuffix("/ndata") for name in file.attribute_names() if name.endswith("/ndata")
    ]
    usual = ("trainset", "valset", "testset")
    names.sort(key=lambda name: (usual.index(name) if name in usual else len(usual), name))
    return {name: int(file.attribute(f"{name}/ndata")[0]) for name in names}


def split_keys(file: Bp5File, split: str) -> list[str]:
    """The keys of a split's graphs, in their order."""
    return [str(key) for key in file.attribute(f"{split}/keys")]


def read_counts(file: Bp5File, split: str, key: str) -> NDArray[np.int64]:
    """How many atoms (``x``) or edges (``edge_index``) each graph has, without reading either."""
    counts = _counts(file, split, key)
    if key == "edge_index" and _stored_dim(file, split, key) == 0:
        return _from_rows(file, split, key).counts
    return counts


def read_columns(file: Bp5File, split: str, keys: Collection[str]) -> dict[str, Column]:
    """Read whole keys of a split."""
    return {key: _read_column(file, split, key) for key in keys}


def _read_column(file: Bp5File, split: str, key: str) -> Column:
    stored_dim = _stored_dim(file, split, key)
    values = file.read(f"{split}/{key}")
    if stored_dim != concatenation_dim(key, values.ndim):
        if key == "edge_index" and stored_dim == 0:
            return _from_rows(file, split, key)
        raise InputError(
            f"{file.path}: {split}/{key} varies along dimension {stored_dim}, which cannot be "
            "joined to batches; store it with the varying dimension first"
        )
    counts = _counts(file, split, key)
    if counts.sum() != values.shape[stored_dim]:
        raise InputError(
            f"{file.path}: {split}/{key} has {values.shape[stored_dim]} rows where its "
            f"variable_count says {counts.sum()}; write the file again"
        )
    return Column(values, stored_dim, counts)


def _stored_dim(file: Bp5File, split: str, key: str) -> int:
    return int(file.attribute(f"{split}/{key}/variable_dim")[0])


def _counts(file: Bp5File, split: str, key: str) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = file.read(f"{split}/{key}/variable_count").astype(np.int64)
    offsets = file.read(f"{split}/{key}/variable_offset")
    if not np.array_equal(offsets, np.cumsum(counts) - counts):
        raise InputError(
            f"{file.path}: the graphs of {split}/{key} do not follow one another; "
            "write the file again from one process"
        )
    return counts


def _from_rows(file: Bp5File, split: str, key: str) -> Column:
    """An ``edge_index`` whose graphs lie below one another.

    HydraGNN concatenates along the dimension that varies, and along the first where none does: in
    a split whose graphs all have e edges the array is [2 n_graphs, e], not [2, sum of edges].
    """
    stacked = file.read(f"{split}/{key}")
    n_edges = stacked.shape[1]
    n_graphs = len(stacked) // 2
    values = stacked.reshape(n_graphs, 2, n_edges).transpose(1, 0, 2).reshape(2, -1)
    return Column(np.ascontiguousarray(values), 1, np.full(n_graphs, n_edges, dtype=np.int64))
