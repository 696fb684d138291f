"""One split of a store, or a subset of it: single graphs, and batches equal to PyG's."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch, Data

from hydragnn_flow.config.data import Mode
from hydragnn_flow.config.sources import BRANCH
from hydragnn_flow.data.columns import BranchRuns, bounds_of
from hydragnn_flow.data.reading.disk import DiskReader
from hydragnn_flow.data.reading.index import (
    GraphRows,
    Lines,
    Reader,
    SplitIndex,
    join_lines,
    lines_of,
)
from hydragnn_flow.data.store.manifest import Target
from hydragnn_flow.data.store.origins import MASKED, load_origins, named
from hydragnn_flow.data.store.statistics import target_array
from hydragnn_flow.errors import InputError, SelectionError

_BATCH = type(Batch(_base_cls=Data))


def empty_batch() -> Batch:
    """Return a PyG batch without tensors; ``Batch()`` makes classes first, for 0.1 ms of CPU."""
    batch: Batch = type.__call__(_BATCH)
    return batch


def collate(
    values: Mapping[str, NDArray[Any]], rows: Mapping[str, GraphRows], graphs: NDArray[np.int64]
) -> Batch:
    """Build a PyG batch from the tensors of its graphs, which are joined already.

    Parameters
    ----------
    values
        Values by key, concatenated in the order of the batch. The batch keeps these arrays, and
        ``edge_index`` is changed in place.
    rows
        Positions of each graph's rows in the split, by key.
    graphs
        Indices in the split of the graphs of the batch, [n].

    Returns
    -------
    Batch
        Equal, field for field, to ``Batch.from_data_list`` of the graphs.
    """
    atoms = bounds_of(rows["x"].counts(graphs))
    first_atom = torch.from_numpy(atoms[:-1])
    no_increment = torch.zeros(len(graphs), dtype=torch.int64)
    slices_of: dict[int, NDArray[np.int64]] = {id(rows["x"]): atoms}

    batch = empty_batch()
    slices, increments = {}, {}
    for key, array in values.items():
        kind = rows[key]
        if id(kind) not in slices_of:
            slices_of[id(kind)] = bounds_of(kind.counts(graphs))
        bounds = slices_of[id(kind)]
        increments[key] = no_increment
        if "index" in key or key == "face":
            array += np.repeat(atoms[:-1], np.diff(bounds))
            increments[key] = first_atom
        batch[key] = torch.from_numpy(array)
        slices[key] = torch.from_numpy(bounds)
    batch.batch = torch.from_numpy(np.repeat(np.arange(len(graphs)), np.diff(atoms)))
    batch.ptr = torch.from_numpy(atoms.copy())
    # PyG's own bookkeeping, by which to_data_list() and batch[i] split a batch again.
    batch._num_graphs = len(graphs)
    batch._slice_dict = slices
    batch._inc_dict = increments
    return batch


def checked(
    indices: Sequence[int] | NDArray[np.int64] | Tensor, length: int, where: str
) -> NDArray[np.int64]:
    """Return graph indices as non-negative int64, [n], after checking their range.

    Negative indices count from the end. ``length`` is the number of graphs.

    Raises
    ------
    SelectionError
        If there are no indices, or any is out of range; the message begins with ``where``.
    TypeError
        If the indices are not integers.
    """
    numbers = np.asarray(indices).reshape(-1)
    if len(numbers) == 0:
        raise SelectionError(f"{where}: a batch needs at least one graph; name some")
    if numbers.dtype.kind not in "iu":  # a mask would pass as graphs 0 and 1
        raise TypeError(f"graph indices are integers, not {numbers.dtype}")
    numbers = numbers.astype(np.int64)
    wrong = (numbers < -length) | (numbers >= length)
    if wrong.any():
        raise SelectionError(
            f"{where} has {length} graphs, so there is no graph {numbers[wrong][0]}; "
            f"choose from 0 to {length - 1}"
        )
    return np.where(numbers < 0, numbers + length, numbers)


_PASS = 64
"""Number of graphs that are read together when graphs are read in order."""


class GraphSplit:
    """Graphs of one split (such as ``trainset``) of a store, in the order they were written.

    Graphs and batches are copies, so that changes to them do not change the split.

    Parameters
    ----------
    store
        Path of the store.
    index
        Index of the split, which locates each graph's rows.
    targets
        Description of each key that is a label, by name.
    mode
        Way of reading: ``memory``, ``random`` or ``stream``, as in :meth:`GraphStore.open`.
    open_reader
        Function that opens the reader of the values, called when the first graph is read.
    """

    def __init__(
        self,
        store: str | Path,
        index: SplitIndex,
        targets: Mapping[str, Target],
        mode: Mode,
        open_reader: Callable[[SplitIndex], Reader],
    ) -> None:
        self.name = index.split
        self._store = Path(store)
        self._where = f"{store}: {index.split}"
        self.mode: Mode = mode
        self._index = index
        self._targets = targets
        self._open_reader = open_reader

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Data:
        return next(self._graphs(checked([index], len(self), self._where)))

    def __iter__(self) -> Iterator[Data]:
        return self.between(0, len(self))

    def between(self, start: int, stop: int) -> Iterator[Data]:
        """Yield the graphs from ``start`` to before ``stop``, in their order."""
        for first in range(start, stop, _PASS):
            yield from self._graphs(np.arange(first, min(first + _PASS, stop)))

    @cached_property
    def n_atoms(self) -> NDArray[np.int64]:
        """Number of atoms of each graph, int64 [len]; read from the index alone."""
        return self._index.atoms.counts(np.arange(len(self)))

    @cached_property
    def n_edges(self) -> NDArray[np.int64]:
        """Number of edges of each graph, int64 [len]; read from the index alone."""
        return self._index.edges.counts(np.arange(len(self)))

    def atoms_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of atoms of ``graphs`` (indices in the split), int64 [n]."""
        return self._index.atoms.counts(graphs)

    def edges_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of edges of ``graphs`` (indices in the split), int64 [n]."""
        return self._index.edges.counts(graphs)

    @cached_property
    def branch_runs(self) -> BranchRuns:
        """Branch of each graph of the split, as runs of consecutive graphs of one branch.

        A branch is the set of a network's output heads for one data set. The runs come from the
        manifest, or else from one read of the graphs. All graphs have branch 0 if they name none.
        """
        known = self._index.branch_runs
        if known is not None:
            return BranchRuns.of_pairs(known)
        if BRANCH not in self._index.keys:
            return BranchRuns.of_pairs([(0, len(self))])
        return BranchRuns.of([self._reader.column(BRANCH).reshape(-1)])

    def origins_of(self, graphs: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the origins of structures: the file of each, its index there, and its id.

        Parameters
        ----------
        graphs
            Indices of the graphs in the split, [n].

        Returns
        -------
        dict
            Arrays [n]: ``file``, paths; ``frame``, indices in the file from 0; ``id``, names or
            None. Empty if the store does not know the origins.
        """
        if self._origins is None:
            return {}
        some = self._origins.take(graphs)
        return {name: some[name].to_numpy() for name in some.column_names if name != MASKED}

    def where(self, graph: int) -> str:
        """Return what messages call a graph: its index in the split, and its origin if known."""
        said = f"{self.name}: graph {graph}"
        for file, frame, name in zip(*self.origins_of(np.array([graph])).values(), strict=True):
            said += f" ({named(f'{file}: structure {frame}', name)})" if file else ""
        return said

    @cached_property
    def masked(self) -> Mapping[int, Mapping[str, tuple[float | None, str]]]:
        """Labels that are masked, as they are far off: value and reason, by graph and target.

        The value is None if it is not a single number.
        """
        told = () if self._origins is None else self._origins[MASKED].to_pylist()
        return {graph: json.loads(text) for graph, text in enumerate(told) if text}

    @cached_property
    def _origins(self) -> Any:
        return load_origins(self._store, self.name, len(self))

    def counts(self, key: str) -> NDArray[np.int64]:
        """Return the number of rows of the tensor ``key`` in each graph, int64 [len].

        The numbers come from the index; no graph is read.
        """
        return self._index.rows(key).counts(np.arange(len(self)))

    @property
    def block_bounds(self) -> NDArray[np.int64]:
        """Boundaries of the split's blocks, as indices of graphs, int64 [n_blocks + 1].

        A block is about 4 MB of consecutive graphs. Element ``i`` is the first graph of block
        ``i``; the last element is the number of graphs.
        """
        return self._index.block_bounds

    @cached_property
    def graph_id(self) -> NDArray[np.int64]:
        """Index of each structure in its input, int64 [len]; if unknown, its index in the split."""
        if "graph_id" not in self._index.keys or len(self) == 0:
            return np.arange(len(self), dtype=np.int64)
        return self._reader.column("graph_id").astype(np.int64)

    @cached_property
    def branch(self) -> NDArray[np.int64] | None:
        """Index of the branch of each graph, int64 [len]; None if graphs name no branch.

        A branch is the set of a network's output heads for one data set.
        """
        if BRANCH not in self._index.keys or len(self) == 0:
            return None
        return np.repeat(self.branch_runs.branches, np.diff(self.branch_runs.bounds))

    def batch(self, indices: Sequence[int] | NDArray[np.int64] | Tensor) -> Batch:
        """Return a batch of graphs, in the order given.

        Parameters
        ----------
        indices
            Indices of graphs in this split, at least one; an index may occur several times.

        Returns
        -------
        Batch
            Batch equal to ``Batch.from_data_list([split[i] for i in indices])``, field for field.
        """
        graphs = checked(indices, len(self), self._where)
        return collate(self._reader.take(graphs), self._rows, graphs)

    def batches(self, selections: Iterable[NDArray[np.int64]]) -> Generator[Batch, None, None]:
        """Yield one batch for each selection, an array of indices in the split.

        All selections are taken from the iterable before the first batch. Mode ``stream`` reads
        ahead: it holds in memory the blocks that the next few selections need.
        """
        chosen = [checked(graphs, len(self), self._where) for graphs in selections]
        for graphs, values in zip(chosen, self._reader.stream(chosen), strict=True):
            yield collate(values, self._rows, graphs)

    def column(self, key: str) -> NDArray[Any]:
        """Return the tensor ``key`` of all graphs of the split, joined in one array."""
        return self._reader.column(key)

    def target(self, name: str, graphs: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the labels of one target, such as an energy, in the data's units.

        Parameters
        ----------
        name
            Name of the target.
        graphs
            Indices of graphs in the split, in the order of the result; by default all graphs.

        Returns
        -------
        numpy.ndarray
            Values in float64, [n_graphs, dim], or [sum of atoms, dim] for a node target.

        Raises
        ------
        InputError
            If the store has no such target.
        """
        if name not in self._targets:
            known = ", ".join(self._targets) or "none"
            raise InputError(f"target {name!r} is not in the store; it has {known}")
        if graphs is None:
            return target_array(self._reader.column(name), self._targets[name])
        pieces = [graphs[first : first + _PASS] for first in range(0, len(graphs), _PASS)]
        values = [self._reader.take(piece)[name] for piece in pieces]
        return target_array(np.concatenate(values), self._targets[name])

    def close(self) -> None:
        """Close the split's files, and release memory that is shared with other processes."""
        if "_reader" in self.__dict__:
            self._reader.close()
            del self._reader

    @cached_property
    def _reader(self) -> Reader:
        return self._open_reader(self._index)

    @cached_property
    def _rows(self) -> dict[str, GraphRows]:
        return {key: self._index.rows(key) for key in self._index.keys}

    def _graphs(self, graphs: NDArray[np.int64]) -> Iterator[Data]:
        values = self._reader.take(graphs)
        ends = {key: np.cumsum(rows.counts(graphs)) for key, rows in self._rows.items()}
        for number in range(len(graphs)):
            graph = Data()
            for key, described in self._index.keys.items():
                begin = ends[key][number - 1] if number else 0
                rows = values[key].swapaxes(0, described.dim)[begin : ends[key][number]]
                graph[key] = torch.from_numpy(rows.swapaxes(0, described.dim).copy())
            yield graph


class SplitPart:
    """Subset of the graphs of a split, with indices from 0 in its own order.

    Parameters
    ----------
    split
        Split that the graphs are taken from.
    graphs
        Indices in the split of the subset's graphs, in the order of the subset, [n].
    """

    def __init__(self, split: GraphSplit, graphs: NDArray[np.int64]) -> None:
        self._split, self._graphs = split, graphs
        self.name = f"{len(graphs)} of {split.name}"

    def __len__(self) -> int:
        return len(self._graphs)

    @cached_property
    def n_atoms(self) -> NDArray[np.int64]:
        """Number of atoms of each graph of the subset, int64 [len]."""
        return self._split.atoms_of(self._graphs)

    @cached_property
    def n_edges(self) -> NDArray[np.int64]:
        """Number of edges of each graph of the subset, int64 [len]."""
        return self._split.edges_of(self._graphs)

    @cached_property
    def branch(self) -> NDArray[np.int64] | None:
        """Index of the branch of each graph of the subset, int64 [len].

        A branch is the set of a network's output heads for one data set. The value is None if
        graphs name no branch.
        """
        whole = self._split.branch
        return None if whole is None else whole[self._graphs]

    def atoms_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of atoms of ``graphs`` (indices in this subset), int64 [n]."""
        return self.n_atoms[graphs]

    def edges_of(self, graphs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of edges of ``graphs`` (indices in this subset), int64 [n]."""
        return self.n_edges[graphs]

    def where(self, graph: int) -> str:
        """Return what messages call a graph (index in this subset), as :meth:`GraphSplit.where`."""
        return self._split.where(int(self._graphs[graph]))

    def batches(self, selections: Iterable[NDArray[np.int64]]) -> Generator[Batch, None, None]:
        """Yield one batch for each selection, an array of indices in this subset."""
        return self._split.batches(self._graphs[chosen] for chosen in selections)

    def target(self, name: str) -> NDArray[np.float64]:
        """Return the labels of the target ``name`` for all graphs of the subset, float64.

        The labels are in the data's units, [n_graphs, dim], or [sum of atoms, dim] for a node
        target.
        """
        return self._split.target(name, self._graphs)


Split = GraphSplit | SplitPart


# Number of blocks read ahead: enough for a disk to work while a batch is computed.
_AHEAD = 4


class StreamReader(DiskReader):
    """Reader of a split in blocks of about 4 MB, each read once and held while needed.

    The order of the graphs decides how many blocks are held at a time. If graphs are shuffled only
    within windows of neighbouring blocks, the reader holds one window, whatever the size of the
    split.
    """

    def stream(self, selections: Iterable[NDArray[np.int64]]) -> Iterator[dict[str, NDArray[Any]]]:
        chosen = list(selections)
        bounds = self._index.block_bounds
        homes = [np.searchsorted(bounds, graphs, side="right") - 1 for graphs in chosen]
        order = list(dict.fromkeys(int(block) for home in homes for block in home))
        place = {block: number for number, block in enumerate(order)}
        last_use = {block: step for step, home in enumerate(homes) for block in home.tolist()}
        held: dict[int, Future[dict[str, Lines]]] = {}
        asked = 0
        with ThreadPoolExecutor(1) as thread:
            try:
                for step, (graphs, home) in enumerate(zip(chosen, homes, strict=True)):
                    blocks = np.unique(home).tolist()
                    needed = max(place[block] for block in blocks) + 1 + _AHEAD
                    for block in order[asked:needed]:
                        held[block] = thread.submit(self._load, block)
                    asked = max(asked, needed)
                    there = {block: held[block].result() for block in blocks}
                    yield self._join(graphs, home, there)
                    for block in blocks:
                        if last_use[block] == step:
                            del held[block]
            finally:
                for future in held.values():
                    future.cancel()

    def _load(self, block: int) -> dict[str, Lines]:
        """Read the block with the index ``block``, and return its lines by key.

        The call is made in the thread that reads ahead.
        """
        first, last = self._index.block_bounds[block : block + 2].tolist()
        values = self.take(np.arange(first, last))
        return {key: lines_of(values[key], self._index.keys[key].dim) for key in values}

    def _join(
        self,
        graphs: NDArray[np.int64],
        home: NDArray[np.int64],
        blocks: dict[int, dict[str, Lines]],
    ) -> dict[str, NDArray[Any]]:
        """Return the values of ``graphs`` by key, concatenated, from blocks in memory.

        ``home`` has the index of the block (run of graphs that are read together) of each graph,
        [n]. ``blocks`` has, by index of the block and key, its rows in memory.
        """
        first = self._index.block_bounds[home]
        pieces_of: dict[int, list[tuple[int, slice]]] = {}
        values = {}
        for key, described in self._index.keys.items():
            rows = self._index.rows(key)
            pieces = pieces_of.get(id(rows))
            if pieces is None:
                starts = rows.starts(graphs) - rows.starts(first)
                ends = starts + rows.counts(graphs)
                slices = map(slice, starts.tolist(), ends.tolist())
                pieces = pieces_of[id(rows)] = list(zip(home.tolist(), slices, strict=True))
            n_lines = len(next(iter(blocks.values()))[key])
            lines = [
                [blocks[block][key][line][piece] for block, piece in pieces]
                for line in range(n_lines)
            ]
            values[key] = join_lines(lines, np.dtype(described.dtype), described)
        return values
