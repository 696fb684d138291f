"""HydraGNN's layout of a split inside a BP5 file: names, counts, offsets and attributes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.data.columns import concatenation_dim
from hydragnn_flow.data.store.bp5 import Bp5File
from hydragnn_flow.errors import StoreError


def read_counts(file: Bp5File, split: str, key: str) -> NDArray[np.int64]:
    """Read the number of rows of a key in each graph, int64 [n_graphs], without its values.

    Raises
    ------
    StoreError
        If graphs are not consecutive, or their numbers of rows do not add up.
    """
    name = f"{split}/{key}"
    counts: NDArray[np.int64] = file.read(f"{name}/variable_count").astype(np.int64)
    offsets = file.read(f"{name}/variable_offset")
    if (counts < 0).any() or not np.array_equal(offsets, np.cumsum(counts) - counts):
        raise StoreError(
            f"{file.path}: the graphs of {name} do not follow one another; "
            "write the file again from one process"
        )
    rows = file.variable(name).shape[stored_dim(file, split, key)]
    if counts.sum() != rows:
        raise StoreError(
            f"{file.path}: {name} has {rows} rows where its variable_count says {counts.sum()}; "
            "write the file again"
        )
    return counts


def stored_dim(file: Bp5File, split: str, key: str) -> int:
    """Return the dimension along which a file concatenates the graphs' values of a key."""
    return int(file.attribute(f"{split}/{key}/variable_dim")[0])


def lies_in_rows(file: Bp5File, split: str, key: str) -> bool:
    """Return True if an ``edge_index`` has its graphs below one another.

    HydraGNN concatenates along the dimension that varies, and along the first if none does: in a
    split whose graphs all have e edges the array is [2 n_graphs, e], not [2, sum of edges].

    Raises
    ------
    StoreError
        If another key is concatenated along a dimension that batches do not join.
    """
    name = f"{split}/{key}"
    dim = stored_dim(file, split, key)
    if dim == concatenation_dim(key, len(file.variable(name).shape)):
        return False
    if key == "edge_index" and dim == 0:
        return True
    raise StoreError(
        f"{file.path}: {name} varies along dimension {dim}, which cannot be joined to batches; "
        "store it with the varying dimension first"
    )
