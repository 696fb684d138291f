"""Stores that hand out one graph at a time, joined by PyG's collation."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data


class ListOfData:
    """All graphs as objects in memory: PyG's fastest way where they fit."""

    name = "list of Data"

    def __init__(self, graphs: Sequence[Data]) -> None:
        self._graphs = graphs

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return Batch.from_data_list([self._graphs[index] for index in indices.tolist()])


class Lmdb:
    """Pickled graphs in LMDB, as the data sets of the Open Catalyst Project are kept.

    Raises
    ------
    ImportError
        Where the package lmdb is not installed.
    """

    name = "LMDB of pickled Data"

    def __init__(self, path: Path, graphs: Sequence[Data]) -> None:
        lmdb = import_module("lmdb")
        size = 2 * sum(value.nbytes + 1024 for graph in graphs for _, value in graph)
        environment = lmdb.open(str(path), map_size=size, subdir=False, lock=False)
        with environment.begin(write=True) as transaction:
            for number, graph in enumerate(graphs):
                transaction.put(_key(number), pickle.dumps(graph, protocol=-1))
        self._read = environment.begin()

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return Batch.from_data_list(
            [pickle.loads(self._read.get(_key(index))) for index in indices.tolist()]
        )


class Hdf5:
    """One contiguous HDF5 data set for each key, and where each graph begins in it.

    Raises
    ------
    ImportError
        Where the package h5py is not installed.
    """

    name = "HDF5, contiguous"

    def __init__(self, path: Path, graphs: Sequence[Data]) -> None:
        h5py = import_module("h5py")
        whole = Batch.from_data_list(list(graphs))
        self._bounds = {key: bounds.tolist() for key, bounds in whole._slice_dict.items()}
        with h5py.File(path, "w") as file:
            for key in self._bounds:
                file[key] = whole[key].numpy()
            # Numbered from 0 within each graph, as stored graphs are.
            first_atom = np.repeat(whole.ptr[:-1].numpy(), np.diff(self._bounds["edge_index"]))
            file["edge_index"][...] = whole.edge_index.numpy() - first_atom
        self._file = h5py.File(path, "r")
        self._sets = {key: self._file[key] for key in self._bounds}

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`peers.Peer`."""
        return Batch.from_data_list([self._graph(index) for index in indices.tolist()])

    def _graph(self, index: int) -> Data:
        graph = Data()
        for key, values in self._sets.items():
            start, stop = self._bounds[key][index : index + 2]
            part = values[:, start:stop] if key == "edge_index" else values[start:stop]
            graph[key] = torch.from_numpy(part)
        return graph


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")
