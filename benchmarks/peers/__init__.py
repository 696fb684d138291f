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
