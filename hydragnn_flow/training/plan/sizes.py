"""Sizes of filled batches: few numbers of rows that hold the batches of a training.

A recorded step has tensors of one size, so batches are filled up (padded) to one of a few sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.training.plan.batching import Sizes

Ints = NDArray[np.int64]

TRAINING, EVALUATION = "training", "evaluation"
"""Purposes of batches, each of which has sizes of its own."""
# Fewest batches for each size, as its recording takes the time of four or five ordinary steps.
_WORTH_IT = 16


class Size(NamedTuple):
    """Number of graphs, atoms and edges of a filled batch, padding included."""

    graphs: int
    atoms: int
    edges: int

    def holds(self, graphs: int, atoms: int, edges: int, largest: int) -> bool:
        """Return whether a batch can be filled up to this size.

        Padding needs at least one graph, whose atoms are at least one and at most ``largest``.
        """
        spare = self.graphs - graphs
        return spare > 0 and spare <= self.atoms - atoms <= spare * largest and edges <= self.edges


def choose_sizes(batches: Ints, largest: int, number: int, most: int = 6) -> list[Size]:
    """Choose the sizes with the fewest padding edges, in ascending order; none for a few batches.

    Parameters
    ----------
    batches
        Number of graphs, atoms and edges of each batch, ``[n, 3]``.
    largest
        Number of atoms of the largest graph of the split.
    number
        Number of such batches to come.
    most
        Largest number of sizes.
    """
    most = min(most, number // _WORTH_IT)
    if most < 1 or not len(batches):
        return []
    ordered = batches[np.argsort(batches[:, 2], kind="stable")]
    ends = np.unique(np.linspace(0, len(ordered), min(len(ordered), 128) + 1).astype(int))
    edges = ordered[ends[1:] - 1, 2]
    # Dynamic programme over the ordered batches: least edges of those up to each end, by k sizes.
    each = np.tril((ends[1:, None] - ends[None, :-1]) * edges[:, None].astype(float))
    each[np.triu_indices(len(edges), 1)] = np.inf
    least, begins = each[:, 0], []
    for _ in range(min(most, len(edges)) - 1):
        before = np.concatenate([[0.0], least[:-1]])
        total = before[None, :] + each
        begins.append(total.argmin(axis=1))
        least = total.min(axis=1)
    sizes, last = set(), len(edges) - 1
    for begin in [*reversed(begins), np.zeros(len(edges), dtype=int)]:
        if last >= 0:
            first = int(begin[last])
            sizes.add(_size_of(ordered[ends[first] : ends[last + 1]], largest))
            last = first - 1
    return sorted(sizes, key=lambda size: size.edges)


def rows_of(split: Sizes, batches: Sequence[Ints]) -> Ints:
    """Return the numbers of graphs, atoms and edges of batches of a split, ``[n, 3]``.

    ``batches`` have indices of graphs; those without graphs are left out.
    """
    if not (batches := [graphs for graphs in batches if len(graphs)]):
        return np.empty((0, 3), dtype=np.int64)
    graphs = np.concatenate(batches)
    firsts = np.cumsum([0, *map(len, batches[:-1])])
    each = np.ones_like(graphs), split.atoms_of(graphs), split.edges_of(graphs)
    return np.stack([np.add.reduceat(values, firsts) for values in each], axis=1)


def _size_of(batches: Ints, largest: int) -> Size:
    """Return the smallest size, with some room, that holds each of some batches ``[n, 3]``."""
    graphs, atoms, edges = batches.T
    room = 1.03  # later epochs draw other batches, of which a few are larger than all of the first
    most, spare = int(room * graphs.max()), 1
    while True:
        spares = most + spare - graphs
        least, most_atoms = (atoms + spares).max(), (atoms + spares * largest).min()
        if least <= most_atoms:
            full = min(int(room * least), int(most_atoms))
            return Size(most + spare, full, int(room * edges.max()))
        spare += 1
