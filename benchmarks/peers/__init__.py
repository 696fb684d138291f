"""Other ways to the same batches, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data


class Peer(Protocol):
    """A reader of the graphs of one store.

    Every peer makes its batches from the same graphs, with the same keys and PyG's bookkeeping.
    """

    name: str

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The graphs at ``indices``, in that order, as ``Batch.from_data_list`` joins them."""


def check_equal(peer: Peer, graphs: Sequence[Data]) -> None:
    """Check that a peer's batch of the first graphs is the batch of ``graphs``.

    Raises
    ------
    AssertionError
        Naming the peer and the first key that differs: its figures would mean nothing.
    """
    batch = peer.batch(np.arange(len(graphs)))
    _compare(batch, Batch.from_data_list(list(graphs)), peer.name)
    _compare(batch.to_data_list()[-1], graphs[-1], f"{peer.name}, to_data_list")


def _compare(found: Data, expected: Data, where: str) -> None:
    left, right = found.to_dict(), expected.to_dict()
    assert left.keys() == right.keys(), f"{where}: keys {', '.join(left)}"
    for key, value in right.items():
        same = left[key].dtype == value.dtype and left[key].equal(value)
        assert same, f"{where}: {key} differs"
