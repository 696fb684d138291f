"""Columns of a split: each key's values of all graphs, concatenated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from hydragnn_flow.config.sources import BRANCH, WEIGHT
from hydragnn_flow.data.store.manifest import Key
from hydragnn_flow.errors import InputError

# Types that BP5 stores and HydraGNN reads back as numbers (it reads uint8 as text; BP5 has no bool
# and no half precision).
_STORED_DTYPES = [np.dtype(name) for name in ("float32", "float64", "int32", "int64")]


@dataclass(frozen=True)
class Column:
    """Values of one key (a named tensor of every graph), joined over several graphs."""

    values: NDArray[Any]
    """Values of all graphs, concatenated along ``dim``."""
    dim: int
    """Dimension along which graphs are concatenated."""
    counts: NDArray[np.int64]
    """Number of rows of each graph (extent of its tensor along ``dim``), [n_graphs]."""

    def starts(self) -> NDArray[np.int64]:
        """Return the index in ``values`` of each graph's first row, int64 [n_graphs].

        Rows are counted along ``dim``.
        """
        starts: NDArray[np.int64] = np.cumsum(self.counts) - self.counts
        return starts


def global_edges(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    """Return the edges of all graphs as indices into the atoms of all graphs, [2, n_edges]."""
    edges = columns["edge_index"]
    starts = np.repeat(columns["x"].starts(), edges.counts)
    return edges.values.astype(np.int64, copy=False) + starts


def edge_lengths(
    columns: Mapping[str, Column], senders: NDArray[np.int64], receivers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the distance between the ends of each edge, [n_edges]; zero without positions.

    ``senders`` and ``receivers`` are indices into the atoms of all graphs, [n_edges].
    """
    squares = np.zeros(len(senders))
    if "pos" in columns:
        for axis in range(columns["pos"].values.shape[1]):
            position = columns["pos"].values[:, axis].astype(np.float64)
            vector = position[receivers] - position[senders]
            if "edge_shifts" in columns:
                vector += columns["edge_shifts"].values[:, axis]
            squares += vector**2
    return np.sqrt(squares)


def concatenation_dim(key: str, ndim: int) -> int:
    """Return the dimension along which PyG joins a tensor of several graphs in a batch.

    ``key`` is the name of the tensor, ``ndim`` its number of dimensions. The result is the last
    dimension for ``face`` and for keys whose name contains ``index``, and the first dimension for
    all others.
    """
    return ndim - 1 if "index" in key or key == "face" else 0


def pack(
    graphs: Sequence[Data],
    where: Sequence[str],
    like: Mapping[str, Key] | None = None,
    labels: Collection[str] = (),
) -> dict[str, Column]:
    """Join the tensors of several graphs into one column for each key, after checking them.

    A key is the name of a tensor that every graph has.

    Parameters
    ----------
    graphs
        Graphs, at least one; all with the same keys, data types and trailing shapes.
    where
        Name of each graph in error messages.
    like
        Description of each key of graphs packed earlier, by name of the key. These graphs must
        match the descriptions; None for the first graphs.
    labels
        Keys whose values may be NaN, as labels that are missing are.

    Raises
    ------
    InputError
        If a value is missing, differs in shape or type from the first graph's, is not finite, or
        refers to atoms that do not exist; the message names graph and key.
    """
    keys = list(like) if like else [str(key) for key in graphs[0].to_dict()]
    per_graph = [
        _arrays(graph, keys, name, labels) for graph, name in zip(graphs, where, strict=True)
    ]
    columns = {}
    for key in keys:
        values = [arrays[key] for arrays in per_graph]
        dim = concatenation_dim(key, values[0].ndim)
        dtype, rest = values[0].dtype.name, trailing(values[0], dim)
        if like:
            dtype, rest = like[key].dtype, like[key].shape
        for name, value in zip(where, values, strict=True):
            if value.dtype != dtype or trailing(value, dim) != rest:
                raise InputError(
                    f"{name}: {key} is {value.dtype} {list(value.shape)}, which does not fit "
                    f"those before it, {dtype} with rows of {list(rest)}; make them alike"
                )
        counts = np.array([value.shape[dim] for value in values], dtype=np.int64)
        columns[key] = Column(np.concatenate(values, axis=dim), dim, counts)
    check_graphs(columns, where)
    if WEIGHT in columns:
        weights = columns[WEIGHT].values
        valid = (weights >= 0) & (weights < np.inf) & (weights.shape == (len(where), 1))
        what = "[1, 1] with a finite number from 0 on, the graph's weight in the training loss"
        _check_ones(WEIGHT, columns[WEIGHT], valid, where, what)
    return columns


def bounds_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the boundaries of graphs in joined rows, int64 [n_graphs + 1].

    Element ``i`` is the index of the first row of graph ``i``; the last element is the number of
    all rows. ``counts`` has the number of rows of each graph, [n_graphs].
    """
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def trailing(value: NDArray[Any], dim: int) -> tuple[int, ...]:
    """Return an array's shape without ``dim``, the dimension in which graphs are concatenated."""
    return value.shape[:dim] + value.shape[dim + 1 :]


def _arrays(
    graph: Data, keys: list[str], where: str, labels: Collection[str]
) -> dict[str, NDArray[Any]]:
    """Return the tensors of one graph as arrays by key, after checks of each.

    ``where`` names the graph in error messages.
    """
    stored = graph.to_dict()
    if set(stored) != set(keys):
        differing = ", ".join(sorted(set(stored) ^ set(keys)))
        raise InputError(
            f"{where}: key(s) {differing} are not in every graph; give all graphs the same keys"
        )
    arrays = {}
    for key in keys:
        # PyG treats these names specially when it makes batches.
        if "batch" in key or key in ("ptr", "num_nodes"):
            raise InputError(f"{where}: the key {key!r} is reserved by PyG; rename it")
        if "/" in key:
            raise InputError(f"{where}: the key {key!r} has a slash; rename it")
        value = stored[key]
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            raise InputError(f"{where}: {key} is no tensor of one dimension or more; make it one")
        if value.dtype is torch.bool:
            value = value.to(torch.int32)
        array = value.detach().cpu().contiguous().numpy()
        if array.dtype not in _STORED_DTYPES:
            known = ", ".join(dtype.name for dtype in _STORED_DTYPES)
            raise InputError(f"{where}: {key} is {array.dtype}; convert it to one of {known}")
        if 0 in trailing(array, concatenation_dim(key, array.ndim)):
            raise InputError(f"{where}: {key} is {list(array.shape)}, without values; leave it out")
        may_lack = key in labels or (key == "y" and bool(labels))  # in which HydraGNN has them
        if not (np.isfinite(array) | (may_lack & np.isnan(array))).all():
            raise InputError(f"{where}: {key} holds NaN or infinity; correct or remove the graph")
        arrays[key] = array
    return arrays


def check_graphs(columns: Mapping[str, Column], where: Sequence[str]) -> None:
    """Check that the tensors of each graph have matching numbers of rows.

    Tensors of atoms need a row for each atom, tensors of edges a row for each edge. Edges must
    refer to atoms that exist.

    Parameters
    ----------
    columns
        Columns of the graphs by key.
    where
        Name of each graph in error messages.

    Raises
    ------
    InputError
        If keys are inconsistent; the message names graph and key.
    """
    for key in ("x", "pos", "edge_index"):
        if key not in columns:
            raise InputError(f"{where[0]}: the graph has no {key}, which every graph needs; add it")
    if columns["x"].values.ndim != 2 or columns["edge_index"].values.shape[0] != 2:
        raise InputError(
            f"{where[0]}: x is not [n_atoms, n_features] or edge_index not [2, n_edges]; "
            "reshape them"
        )
    atoms, edges = columns["x"].counts, columns["edge_index"]
    rows = {"pos": atoms, "edge_shifts": edges.counts, "edge_attr": edges.counts}
    for key, expected in rows.items():
        if key in columns and (wrong := columns[key].counts != expected).any():
            raise InputError(
                f"{where[int(wrong.argmax())]}: {key} has another number of rows than the "
                "graph has atoms or edges; correct it"
            )
    if (atoms == 0).any():
        raise InputError(f"{where[int((atoms == 0).argmax())]} has no atoms; remove it")
    if BRANCH in columns:
        branches = columns[BRANCH].values
        valid = (branches >= 0) & (branches.dtype.kind == "i")
        what = "one integer from 0 on, the number of the graph's branch"
        _check_ones(BRANCH, columns[BRANCH], valid, where, what)
    index = edges.values
    wrong_edge = ((index < 0) | (index >= np.repeat(atoms, edges.counts))).any(axis=0)
    if wrong_edge.any():
        graph = int(np.searchsorted(np.cumsum(edges.counts), wrong_edge.argmax(), side="right"))
        raise InputError(
            f"{where[graph]}: edge_index names an atom the graph does not have; correct it"
        )


def _check_ones(
    key: str, column: Column, valid: NDArray[np.bool_], where: Sequence[str], what: str
) -> None:
    """Check that each graph has one value of a key, and a valid one.

    ``valid`` tells it of each value of ``column``. For error messages, ``where`` has the name of
    each graph, and ``what`` says what the value must be.
    """
    values, wrong = column.values.reshape(-1), column.counts != 1
    is_one = len(values) == len(where)
    wrong |= ~valid.reshape(-1) if is_one else True
    if wrong.any():
        graph = int(wrong.argmax())
        shown = values[graph] if is_one else f"{len(values)} values for {len(where)} graph(s)"
        raise InputError(
            f"{where[graph]}: {key} is {shown} ({values.dtype}), and not {what}; correct it"
        )


Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BranchRuns:
    """Branch of every graph of a split, stored as runs of consecutive graphs of one branch.

    A branch is the set of a network's output heads for one data set. A split has only a few runs
    for each data set, however many graphs the split has.
    """

    bounds: Ints
    """Index of the first graph of each run, then the number of all graphs, [n_runs + 1]."""
    branches: Ints
    """Index of the branch of each run, [n_runs]."""

    @classmethod
    def of(cls, pieces: Iterable[NDArray[np.integer]]) -> BranchRuns:
        """Group the graphs of a split into runs of one branch, given the branch of every graph.

        A branch is the set of a network's output heads for one data set.

        Parameters
        ----------
        pieces
            Arrays of branch indices, one index for each graph. Joined in order, the arrays cover
            all graphs of the split.
        """
        pairs: list[tuple[int, int]] = []
        for piece in pieces:
            starts = _begins(piece)
            lengths = np.diff(starts, append=len(piece))
            pairs += zip(piece[starts].tolist(), lengths.tolist(), strict=True)
        return cls.of_pairs(pairs)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[int, int]]) -> BranchRuns:
        """Build the runs of a split from pairs: branch index, number of consecutive graphs.

        A branch is the set of a network's output heads for one data set. Consecutive pairs of the
        same branch become one run.
        """
        branches, lengths = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        starts = _begins(branches)
        return cls(np.append(bounds_of(lengths)[starts], lengths.sum()), branches[starts])

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of branch index and number of consecutive graphs, in the order of the split.

        A branch is the set of a network's output heads for one data set.
        """
        return [*zip(self.branches.tolist(), np.diff(self.bounds).tolist(), strict=True)]

    @cached_property
    def graphs(self) -> dict[int, int]:
        """Number of the split's graphs of each branch, by branch index, for branches that occur.

        A branch is the set of a network's output heads for one data set.
        """
        lengths = np.diff(self.bounds)
        return {
            int(branch): int(lengths[self.branches == branch].sum())
            for branch in np.unique(self.branches)
        }

    def branch_of(self, graphs: Ints) -> Ints:
        """Return the branch index of each of ``graphs``, int64 [n].

        A branch is the set of a network's output heads for one data set. ``graphs`` has indices of
        graphs in the split, [n].
        """
        return self.branches[np.searchsorted(self.bounds, graphs, side="right") - 1]

    def of_branch(self, branch: int) -> BranchMembers:
        """Return a translator from indices within one branch to indices in the split.

        A branch is the set of a network's output heads for one data set.
        """
        runs = np.flatnonzero(self.branches == branch)
        lengths = np.diff(self.bounds)[runs]
        return BranchMembers(self.bounds[runs], bounds_of(lengths)[:-1])


@dataclass(frozen=True, eq=False)
class BranchMembers:
    """Graphs of one branch of a split, numbered from 0 in the order of the split.

    A branch is the set of a network's output heads for one data set.
    """

    starts: Ints
    """Index in the split of the first graph of each run of the branch, [n_runs]."""
    before: Ints
    """Number of the branch's graphs before each run, [n_runs]."""

    def graphs(self, numbers: Ints) -> Ints:
        """Convert graphs' indices within the branch [n] to indices in the split, int64 [n]."""
        run = np.searchsorted(self.before, numbers, side="right") - 1
        return self.starts[run] + numbers - self.before[run]


def spread(runs: BranchRuns, most: int, run: int = 1) -> Iterator[Ints]:
    """Yield a sample of a split: groups of consecutive graphs, spread evenly over each branch.

    A group is an array of indices in the split, of graphs that follow one another in their branch.
    Each branch gives the same number of groups, or all its groups if it has fewer.

    Parameters
    ----------
    runs
        Branch (output heads for one data set) of each graph of the split, as runs.
    most
        Maximum number of graphs in total; each branch gives one group even if that exceeds it.
    run
        Number of graphs in a group; the last group of a branch may have fewer.
    """
    for branch, number in runs.graphs.items():
        members = runs.of_branch(branch)
        there = -(-number // run)
        wanted = max(1, most // run // len(runs.graphs))
        for one in np.unique(np.linspace(0, there - 1, min(there, wanted)).round().astype(int)):
            yield members.graphs(np.arange(one * run, min((one + 1) * run, number)))


def shares_of_branches(runs: BranchRuns, number: int) -> dict[int, int]:
    """Divide a number of graphs among a split's branches; return each share by branch index.

    The shares are equal, except that a branch with fewer graphs than its share gives all its
    graphs, and the other branches share the rest.

    Parameters
    ----------
    runs
        Branch (output heads for one data set) of each graph of the split, as runs.
    number
        Total number of graphs to take; each branch gives at least one.
    """
    found: dict[int, int] = {}
    left = number
    for place, branch in enumerate(sorted(runs.graphs, key=runs.graphs.__getitem__)):
        found[branch] = min(runs.graphs[branch], max(1, left // (len(runs.graphs) - place)))
        left -= found[branch]
    return found


def _begins(values: NDArray[np.integer]) -> Ints:
    """Return the index of the first element of each run of equal values, [n_runs]."""
    first = np.ones(min(len(values), 1), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, values[1:] != values[:-1]]))
