"""Which graphs make up each step: a pure function of seed and epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_batches(n_graphs: int, batch_size: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Shuffle the graphs of an epoch into global batches of nearly equal size.

    Parameters
    ----------
    n_graphs
        Graphs in the split.
    batch_size
        Largest number of graphs in a step, over all ranks together.
    seed, epoch
        Together decide the order; nothing else does, so a resumed or re-sized job sees the same
        batches as one that was never stopped.

    Returns
    -------
    list of int64 arrays
        Graph indices per step. Sizes differ by at most one, so no step ends in a tiny remainder.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_graphs).astype(np.int64)
    return np.array_split(order, -(-n_graphs // batch_size))


def rank_share(batch: NDArray[np.int64], rank: int, world: int) -> NDArray[np.int64]:
    """The graphs of a global batch that one of ``world`` ranks computes."""
    return batch[rank::world]
