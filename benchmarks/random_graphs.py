"""Random graphs with the keys, types and sizes of material graphs, made fast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

# Made at a time: enough for NumPy to be fast, little enough to be no load on the memory.
_GRAPHS_AT_ONCE = 256


def random_graphs(count: int, seed: int) -> Iterator[Data]:
    """Graphs of 8-64 atoms with 12-40 edges per atom: 31 kB each on average.

    Parameters
    ----------
    count
        Number of graphs.
    seed
        The same seed gives the same graphs.
    """
    rng = np.random.default_rng(seed)
    for first in range(0, count, _GRAPHS_AT_ONCE):
        n = min(_GRAPHS_AT_ONCE, count - first)
        atoms = rng.integers(8, 65, n)
        edges = (atoms * rng.uniform(12, 40, n)).astype(np.int64)
        yield from _graphs(atoms, edges, first, rng)


def tiny_graphs(count: int) -> Iterator[Data]:
    """Graphs of 2 atoms and 2 edges, all alike: only their number matters."""
    two = np.array([2])
    (graph,) = _graphs(two, two, 0, np.random.default_rng(0))
    alike = graph.to_dict()
    for number in range(count):
        yield Data.from_dict({**alike, "graph_id": torch.tensor([number])})


def _graphs(
    atoms: NDArray[np.int64], edges: NDArray[np.int64], first: int, rng: np.random.Generator
) -> Iterator[Data]:
    """Graphs of the given sizes, each a view of arrays made for all of them."""
    n, n_atoms, n_edges = len(atoms), int(atoms.sum()), int(edges.sum())

    def rows(length: int, width: int) -> torch.Tensor:
        return torch.from_numpy(rng.random((length, width), dtype=np.float32))

    ends = rng.random((2, n_edges), dtype=np.float32) * np.repeat(atoms, edges)
    numbers = rng.integers(1, 95, (n_atoms, 1)).astype(np.float32)
    shifts = rng.integers(-1, 2, (n_edges, 3)).astype(np.float32)
    of_atoms, of_edges = atoms.tolist(), edges.tolist()
    parts = {
        "x": torch.split(torch.from_numpy(numbers), of_atoms),
        "pos": torch.split(rows(n_atoms, 3), of_atoms),
        "forces": torch.split(rows(n_atoms, 3), of_atoms),
        "edge_index": torch.split(torch.from_numpy(ends.astype(np.int64)), of_edges, dim=1),
        "edge_attr": torch.split(rows(n_edges, 1), of_edges),
        "edge_shifts": torch.split(torch.from_numpy(shifts), of_edges),
        "cell": torch.split(rows(3 * n, 3), 3),
        "pbc": torch.split(torch.ones(3 * n, dtype=torch.int32), 3),
        "energy": torch.split(torch.from_numpy(rng.random(n)), 1),
        "graph_id": torch.split(torch.arange(first, first + n), 1),
    }
    for tensors in zip(*parts.values(), strict=True):
        yield Data.from_dict(dict(zip(parts, tensors, strict=True)))
