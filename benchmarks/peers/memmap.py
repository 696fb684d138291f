"""The limit: the same batches from plain memory-mapped arrays, with no store around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data


class Memmap:
    """A file for each key, mapped by :class:`numpy.memmap`; graphs are copied as runs of memory."""

    name = "numpy.memmap"

    def __init__(self, folder: Path, graphs: Sequence[Data]) -> None:
        folder.mkdir()
        whole = Batch.from_data_list(list(graphs))
        self._arrays: dict[str, NDArray[np.generic]] = {}
        # Where each graph begins and ends, once for all keys in which that is the same.
        self._bounds: dict[bytes, NDArray[np.int64]] = {}
        self._bounds_of: dict[str, bytes] = {}
        for key, tensor in whole._slice_dict.items():
            bounds = np.asarray(tensor)
            values = whole[key].numpy()
            if key == "edge_index":
                # Numbered from 0 within each graph, as stored graphs are.
                values = values - np.repeat(whole.ptr[:-1].numpy(), np.diff(bounds))
            np.save(folder / f"{key}.npy", values)
            self._arrays[key] = np.load(folder / f"{key}.npy", mmap_mode="r")
            self._bounds_of[key] = bounds.tobytes()
            self._bounds[bounds.tobytes()] = bounds
        # Slices of a memoryview cost a third of slices of an array. An edge_index has two rows.
        self._views = {
            key: [row.data for row in values] if key == "edge_index" else [values.data]
            for key, values in self._arrays.items()
        }

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        runs, ends = {}, {}
        for name, bounds in self._bounds.items():
            starts, stops = bounds[indices], bounds[indices + 1]
            runs[name] = list(map(slice, starts.tolist(), stops.tolist()))
            ends[name] = np.concatenate([[0], np.cumsum(stops - starts)])
        atoms, edges = ends[self._bounds_of["x"]], ends[self._bounds_of["edge_index"]]
        first_atom = torch.from_numpy(atoms[:-1])

        batch = Batch(_base_cls=Data)
        slices, increments = {}, dict.fromkeys(self._arrays, torch.zeros_like(first_atom))
        for key, values in self._arrays.items():
            name = self._bounds_of[key]
            joined = bytearray().join(
                [view[run] for view in self._views[key] for run in runs[name]]
            )
            shape = (2, -1) if key == "edge_index" else (-1, *values.shape[1:])
            batch[key] = torch.from_numpy(np.frombuffer(joined, values.dtype).reshape(shape))
            slices[key] = torch.from_numpy(ends[name])
        batch.edge_index += torch.from_numpy(np.repeat(atoms[:-1], np.diff(edges)))
        increments["edge_index"] = first_atom
        batch.batch = torch.from_numpy(np.repeat(np.arange(len(indices)), np.diff(atoms)))
        batch.ptr = torch.from_numpy(atoms)
        batch._num_graphs = len(indices)
        batch._slice_dict, batch._inc_dict = slices, increments
        return batch
