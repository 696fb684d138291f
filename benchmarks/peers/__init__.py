"""Other ways to the same batches and networks, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data


class Peer(Protocol):
    """A reader of the graphs of one store."""

    name: str

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The graphs at ``indices``, in that order, as ``Batch.from_data_list`` joins them."""


class ListOfData:
    """All graphs as objects in memory: PyG's fastest way where they fit."""

    name = "list of Data"

    def __init__(self, graphs: Sequence[Data]) -> None:
        self._graphs = graphs

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """See :class:`Peer`."""
        return Batch.from_data_list([self._graphs[index] for index in indices.tolist()])


def check_equal(peer: Peer, graphs: Sequence[Data]) -> None:
    """Check that a peer's batch of the first graphs is the batch of ``graphs``.

    Raises
    ------
    AssertionError
        Naming the peer and the first key that differs: its figures would mean nothing.
    """
    found = peer.batch(np.arange(len(graphs))).to_dict()
    expected = Batch.from_data_list(list(graphs)).to_dict()
    assert found.keys() == expected.keys(), f"{peer.name}: keys {', '.join(found)}"
    for key, value in expected.items():
        same = found[key].dtype == value.dtype and found[key].equal(value)
        assert same, f"{peer.name}: {key} differs"
