"""Filled batches: batches of graphs padded to given numbers of rows, in one piece of memory.

Fused steps need equally many rows of each member, recorded steps the same number in every step. In
a filled batch, each member's own graphs come first, then padding atoms, edges and graphs. Labels
of padding are infinite, so that they count in no loss, and no edge leads from a padding atom to a
real one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.data import Manifest
from hydragnn_flow.training.loading import sent
from hydragnn_flow.training.plan.sizes import Size

Ints = NDArray[np.int64]
# Keys that networks read per atom and per edge; all others that they read have a row per graph.
_OF_ATOMS, _OF_EDGES = ("x", "pos", "pe"), ("edge_attr", "rel_pe")
# Tensors begin at multiples of this number of bytes, as those that torch allocates.
_ALIGNED = 256


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
        Number of graphs with padding, of all members together.
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
        made = Batch(_base_cls=Data)
        for key, (begin, dtype, shape) in self.places.items():
            kind = _TYPES[dtype.name]
            end = begin + kind.itemsize * math.prod(shape)
            made[key] = memory[begin:end].view(kind).view(shape)
        made._num_graphs, made.is_filled = self.graphs, True
        return made


_BITS = (8, 16, 32, 64)
# torch's types of the keys' NumPy types, which have the same names.
_TYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", *(f"{u}int{bits}" for u in ("", "u") for bits in _BITS))
}


@dataclass(frozen=True)
class FilledBatch:
    """Filled batch on the host.

    Attributes
    ----------
    size
        Number of rows of each member.
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

    def on(self, device: torch.device) -> Batch:
        """Return the filled batch on a device, copied asynchronously."""
        return self.layout.batch(sent(self.memory, device))


class Filler:
    """Maker of filled batches from the graphs of one store.

    Parameters
    ----------
    manifest
        Manifest of the store; its keys belong to atoms, edges or graphs.
    beyond
        Length of padding edges [Å], at which messages that fade with length are zero. Many padding
        edges may reach one atom, and their messages would otherwise add up to large values.
    """

    def __init__(self, manifest: Manifest, beyond: float) -> None:
        self._beyond = beyond
        self._labels = frozenset(manifest.targets)
        self._layouts: dict[tuple[Size, int], Layout] = {}
        # Level of each key that networks read, rows of each of its elements, and axis of the rows.
        self._keys = {
            name: (level, (key.rows or 1) if level == "graph" else 1, key.dim)
            for name, key in manifest.keys.items()
            if (level := _level(name, manifest)) is not None
        }

    def filled(self, batch: Batch, graphs: Sequence[int], size: Size | None = None) -> FilledBatch:
        """Return a copy of a batch in which each member has equally many rows.

        Parameters
        ----------
        batch
            Graphs of the first member, then those of the second, and so on.
        graphs
            Number of graphs of each member, ``[n_members]``.
        size
            Number of rows of each member; by default the smallest that holds them all.
        """
        ptr, edge_index = batch.ptr.numpy(), batch.edge_index.numpy()
        ends = np.cumsum(graphs)
        atoms = np.diff(ptr[ends], prepend=0)
        if len(atoms) == 1:
            edges = np.array([edge_index.shape[1]])
        else:
            owner = np.searchsorted(ptr[ends], edge_index[0], side="right")
            edges = np.bincount(owner, minlength=len(atoms))
        if size is None:
            # Every member gets a padding graph, and every padding graph an atom at least.
            most = int(max(graphs)) + 1
            size = Size(most, int((atoms + most - np.array(graphs)).max()), int(edges.max()))
        layout = self._layout(batch, size, len(atoms))
        memory = torch.empty(layout.size, dtype=torch.uint8)
        made = layout.arrays(memory)
        counts = {"graph": np.asarray(graphs), "node": atoms, "edge": edges}
        rows = dict(zip(("graph", "node", "edge"), size, strict=True))
        for name, (level, each, axis) in self._keys.items():
            if name not in made:
                continue
            target, source = made[name], batch[name].numpy()
            if axis:
                target, source = (np.moveaxis(values, axis, 0) for values in (target, source))
            # Padding repeats the very first row, whose values are valid.
            padding = np.inf if name in self._labels else source[:each]
            first = 0
            for member, own in enumerate((each * counts[level]).tolist()):
                begin, end = member * rows[level] * each, (member + 1) * rows[level] * each
                target[begin : begin + own] = source[first : first + own]
                left = target[begin + own : end]
                left.reshape(-1, each, *left.shape[1:])[:] = padding
                first += own
        self._fill_edges(made, batch, counts, size)
        return FilledBatch(size, layout, memory, batch)

    def _fill_edges(
        self,
        made: Mapping[str, NDArray[Any]],
        batch: Batch,
        counts: Mapping[str, Ints],
        size: Size,
    ) -> None:
        """Write edges, and the graphs of atoms, of each member in turn."""
        index, shifts = batch.edge_index.numpy(), batch.edge_shifts.numpy()
        sizes = np.empty((len(counts["graph"]), size.graphs), dtype=np.int64)
        of_graphs, graph, atom, edge = np.diff(batch.ptr.numpy()), 0, 0, 0
        own = zip(*(counts[level].tolist() for level in ("graph", "node", "edge")), strict=True)
        for member, (graphs, atoms, edges) in enumerate(own):
            # Padding graphs share padding atoms evenly, so that none is larger than a real graph.
            left, spare = size.atoms - atoms, size.graphs - graphs
            sizes[member, :graphs] = of_graphs[graph : graph + graphs]
            sizes[member, graphs:] = np.diff(np.arange(spare + 1) * left // spare)
            begin = member * size.edges
            end, middle = begin + size.edges, begin + edges
            to = made["edge_index"]
            np.add(index[:, edge : edge + edges], member * size.atoms - atom, to[:, begin:middle])
            # Padding edges lead from padding atoms to themselves, in the order of the atoms.
            even = np.arange(end - middle) * left // max(end - middle, 1)
            to[:, middle:end] = member * size.atoms + atoms + even
            made["edge_shifts"][begin:middle] = shifts[edge : edge + edges]
            made["edge_shifts"][middle:end] = (self._beyond, 0.0, 0.0)
            graph, atom, edge = graph + graphs, atom + atoms, edge + edges
        made["batch"][:] = np.repeat(np.arange(sizes.size), sizes.reshape(-1))
        made["ptr"][0] = 0
        np.cumsum(sizes, out=made["ptr"][1:])

    def _layout(self, batch: Batch, size: Size, members: int) -> Layout:
        known = self._layouts.get((size, members))
        if known is not None:
            return known
        rows = dict(zip(("graph", "node", "edge"), (members * each for each in size), strict=True))
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
                shapes[name] = batch[name].numpy().dtype, shape
        places, begin = {}, 0
        for name, (dtype, shape) in shapes.items():
            places[name] = begin, np.dtype(dtype), tuple(shape)
            taken = np.dtype(dtype).itemsize * math.prod(shape)
            begin += -(-taken // _ALIGNED) * _ALIGNED
        made = Layout(places, begin, rows["graph"])
        self._layouts[size, members] = made
        return made


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
    return None if key.rows is None or "index" in name else "graph"
