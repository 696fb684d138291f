"""Collation of batches from whole arrays, equal to PyG's collation graph by graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.data.columns import bounds_of
from hydragnn_flow.data.reading.index import GraphRows
from hydragnn_flow.errors import SelectionError


def collate(
    values: Mapping[str, NDArray[Any]], rows: Mapping[str, GraphRows], graphs: NDArray[np.int64]
) -> Batch:
    """Build a batch from the concatenated values of some graphs, in the batch's order.

    Parameters
    ----------
    values
        Values of each key, new arrays that the batch takes over.
    rows
        Numbers of rows of each key in each graph.
    graphs
        Indices of the graphs in the split.

    Returns
    -------
    Batch
        Equal, field for field, to ``Batch.from_data_list`` of the graphs.
    """
    atoms = bounds_of(rows["x"].counts(graphs))
    first_atom = torch.from_numpy(atoms[:-1])
    no_increment = torch.zeros(len(graphs), dtype=torch.int64)
    slices_of: dict[int, NDArray[np.int64]] = {id(rows["x"]): atoms}

    batch = Batch(_base_cls=Data)
    slices, increments = {}, {}
    for key, array in values.items():
        kind = rows[key]
        if id(kind) not in slices_of:
            slices_of[id(kind)] = bounds_of(kind.counts(graphs))
        bounds = slices_of[id(kind)]
        increments[key] = no_increment
        if "index" in key or key == "face":
            array += np.repeat(atoms[:-1], np.diff(bounds))
            increments[key] = first_atom
        batch[key] = torch.from_numpy(array)
        slices[key] = torch.from_numpy(bounds)
    batch.batch = torch.from_numpy(np.repeat(np.arange(len(graphs)), np.diff(atoms)))
    batch.ptr = torch.from_numpy(atoms.copy())
    # PyG's own bookkeeping, by which to_data_list() and batch[i] split a batch again.
    batch._num_graphs = len(graphs)
    batch._slice_dict = slices
    batch._inc_dict = increments
    return batch


def checked(
    indices: Sequence[int] | NDArray[np.int64] | Tensor, length: int, where: str
) -> NDArray[np.int64]:
    """Return graph indices counted from the front, after checking their range.

    Raises
    ------
    SelectionError
        If there are none, or one is out of range; the message names ``where``.
    TypeError
        If the indices are not integers.
    """
    numbers = np.asarray(indices).reshape(-1)
    if len(numbers) == 0:
        raise SelectionError(f"{where}: a batch needs at least one graph; name some")
    if numbers.dtype.kind not in "iu":  # a mask would pass as graphs 0 and 1
        raise TypeError(f"graph indices are integers, not {numbers.dtype}")
    numbers = numbers.astype(np.int64)
    wrong = (numbers < -length) | (numbers >= length)
    if wrong.any():
        raise SelectionError(
            f"{where} has {length} graphs, so there is no graph {numbers[wrong][0]}; "
            f"choose from 0 to {length - 1}"
        )
    return np.where(numbers < 0, numbers + length, numbers)
