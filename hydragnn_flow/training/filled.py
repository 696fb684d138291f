"""Filled batches: batches of graphs padded to few numbers of rows, in one piece of memory.

A recorded step has tensors of one size, so batches are filled up (padded) to one of a few sizes.

The batch's own graphs come first, then padding graphs, atoms and edges. Labels of padding are
infinite, so that they count in no loss, and no edge leads from a padding atom to a real one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

from hydragnn_flow.data import Manifest
from hydragnn_flow.data.reading.split import empty_batch
from hydragnn_flow.training.plan.batching import Ints, Sizes

# Keys that networks read per atom and per edge; all others that they read have a row per graph.
_OF_ATOMS, _OF_EDGES = ("x", "pos", "pe"), ("edge_attr", "rel_pe")


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


@dataclass(frozen=True)
class Layout:
    """Places of the tensors of filled batches of one size in a piece of memory.

    Attributes
    ----------
    places
        First byte, NumPy type and shape of each tensor, by key.
    size
        Number of bytes of the memory.
    graphs
        Number of graphs, padding included.
    """

    places: Mapping[str, tuple[int, np.dtype[Any], tuple[int, ...]]]
    size: int
    graphs: int

    def arrays(self, memory: Tensor) -> dict[str, NDArray[Any]]:
        """Return the tensors by key as arrays that share ``memory``, uint8 ``[size]`` on a CPU."""
        whole = memory.numpy()
        return {
            key: whole[begin : begin + dtype.itemsize * math.prod(shape)].view(dtype).reshape(shape)
            for key, (begin, dtype, shape) in self.places.items()
        }

    def batch(self, memory: Tensor) -> Batch:
        """Return the filled batch whose tensors share ``memory``, uint8 ``[size]``."""
        made = empty_batch()
        for key, (begin, dtype, shape) in self.places.items():
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            end = begin + kind.itemsize * math.prod(shape)
            made[key] = memory[begin:end].view(kind).view(shape)
        made._num_graphs, made.is_filled = self.graphs, True
        return made


@dataclass(frozen=True)
class FilledBatch:
    """Filled batch on the host.

    Attributes
    ----------
    size
        Number of graphs, atoms and edges, padding included.
    layout
        Places of the tensors in ``memory``.
    memory
        All tensors, uint8 ``[layout.size]``.
    own
        The same batch without padding.
    """

    size: Size
    layout: Layout
    memory: Tensor
    own: Batch

    def pinned(self, device: torch.device) -> FilledBatch:
        """Return the batch in pinned memory, for asynchronous copies; on a CPU itself."""
        if device.type == "cpu":
            return self
        return replace(self, memory=self.memory.pin_memory())


class Filler:
    """Maker of filled batches from the graphs of one store.

    Parameters
    ----------
    manifest
        Manifest of the store; its keys belong to atoms, edges or graphs.
    targets
        Names of the targets whose labels count in losses.
    beyond
        Length of padding edges [Å], at which messages that fade with length are zero. Many padding
        edges may reach one atom, and their messages would otherwise add up to large values.
    sizes
        Sizes by purpose of a batch, in ascending order.
    largest
        Number of atoms of the largest graph.
    """

    def __init__(
        self,
        manifest: Manifest,
        targets: Iterable[str],
        beyond: float,
        sizes: Mapping[str, Sequence[Size]],
        largest: int,
    ) -> None:
        self._beyond, self._labels, self._sizes = beyond, frozenset(targets), sizes
        self.largest = largest
        """Number of atoms of the largest graph."""
        self._layouts: dict[Size, Layout] = {}
        # Level of each key that networks read, rows of each of its elements, and axis of the rows.
        self._keys = {
            name: (level, (key.rows or 1) if level == "graph" else 1, key.dim)
            for name, key in manifest.keys.items()
            if (level := _level(name, manifest)) is not None
        }

    def fitting(self, purpose: str, batch: Batch) -> Size | None:
        """Return the smallest size of a purpose that holds a batch; None if none does."""
        own = batch.num_graphs, batch.num_nodes, batch.num_edges
        sizes = self._sizes.get(purpose, ())
        return next((size for size in sizes if size.holds(*own, self.largest)), None)

    def filled(self, batch: Batch, size: Size) -> FilledBatch:
        """Return a copy of a batch with the numbers of graphs, atoms and edges of ``size``."""
        layout = self._layout(batch, size)
        memory = torch.empty(layout.size, dtype=torch.uint8)
        made = layout.arrays(memory)
        counts = {"graph": batch.num_graphs, "node": batch.num_nodes, "edge": batch.num_edges}
        for name, (level, each, axis) in self._keys.items():
            if name not in made:
                continue
            target, source = made[name], batch[name].numpy()
            if axis:
                target, source = (np.moveaxis(values, axis, 0) for values in (target, source))
            own = each * counts[level]
            target[:own] = source
            # Padding repeats the very first row, whose values are valid.
            left = target[own:].reshape(-1, each, *target.shape[1:])
            left[:] = np.inf if name in self._labels else source[:each]
        self._fill_edges(made, batch, size)
        return FilledBatch(size, layout, memory, batch)

    def _fill_edges(self, made: Mapping[str, NDArray[Any]], batch: Batch, size: Size) -> None:
        """Write the edges, and the graph of each atom."""
        graphs, atoms, edges = batch.num_graphs, batch.num_nodes, batch.num_edges
        # Padding graphs share padding atoms evenly, so that none is larger than a real graph.
        left, spare = size.atoms - atoms, size.graphs - graphs
        made["ptr"][: graphs + 1] = batch.ptr.numpy()
        made["ptr"][graphs:] = atoms + np.arange(spare + 1) * left // spare
        made["batch"][:] = np.repeat(np.arange(size.graphs), np.diff(made["ptr"]))
        # Padding edges lead from padding atoms to themselves, in the order of the atoms.
        more = size.edges - edges
        made["edge_index"][:, :edges] = batch.edge_index.numpy()
        made["edge_index"][:, edges:] = atoms + np.arange(more) * left // max(more, 1)
        made["edge_shifts"][:edges] = batch.edge_shifts.numpy()
        made["edge_shifts"][edges:] = (self._beyond, 0.0, 0.0)

    def _layout(self, batch: Batch, size: Size) -> Layout:
        known = self._layouts.get(size)
        if known is not None:
            return known
        rows = {"graph": size.graphs, "node": size.atoms, "edge": size.edges}
        shapes: dict[str, tuple[Any, list[int]]] = {
            "edge_index": (np.int64, [2, rows["edge"]]),
            "edge_shifts": (batch.edge_shifts.numpy().dtype, [rows["edge"], 3]),
            "batch": (np.int64, [rows["node"]]),
            "ptr": (np.int64, [rows["graph"] + 1]),
        }
        for name, (level, each, axis) in self._keys.items():
            if name in batch:
                shape = list(batch[name].shape)
                shape[axis] = rows[level] * each
                kind = batch[name].numpy().dtype
                is_label = name in self._labels and kind.kind != "f"  # as no integer is infinite
                shapes[name] = np.float64 if is_label else kind, shape
        places, begin = {}, 0
        for name, (dtype, shape) in shapes.items():
            places[name] = begin, np.dtype(dtype), tuple(shape)
            # As torch aligns tensors.
            begin += -(-np.dtype(dtype).itemsize * math.prod(shape) // 256) * 256
        return self._layouts.setdefault(size, Layout(places, begin, rows["graph"]))


def _level(name: str, manifest: Manifest) -> str | None:
    """Return the level of a key's rows; None for a key that no network reads."""
    key, target = manifest.keys[name], manifest.targets.get(name)
    if target is not None:
        return target.level
    # The number of rows cannot tell: a batch may have as many edges as atoms, or as graphs.
    if name in _OF_EDGES:
        return "edge"
    if name in _OF_ATOMS:
        return "node"
    # Edges have rows of each graph too, if all graphs have as many, but are filled on their own.
    of_graphs = key.rows is not None and name != "edge_shifts" and "index" not in name
    return "graph" if of_graphs else None
