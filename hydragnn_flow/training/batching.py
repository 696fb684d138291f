"""Batching: which graphs make up each training step, planned from the index alone.

A step is the batch of all ranks together. Its graphs depend only on seed, epoch and batch limits,
so a job on one, two or eight GCDs takes the same steps. In a streamed split they also depend on the
number of ranks, because each rank reads blocks of its own.

This module plans a whole epoch at once, with time and memory proportional to the split. Epochs of a
large split or of limited length are planned window by window in
:mod:`hydragnn_flow.training.drawn_epochs`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.errors import InputError

Ints = NDArray[np.int64]
Dealing = Callable[[Ints, Ints], Ints]
"""Function that assigns graphs to ranks: (indices in the split, costs) -> ranks, [n] each."""

WINDOW = 16
"""Number of blocks among which a stream is shuffled: 16 of 4 MB, 64 MB of memory per rank."""
# Configuration keys of the limits that a single graph can exceed.
_KEYS = {"atoms": "Training.Batching.max_nodes", "edges": "Training.Batching.max_edges"}


class Sizes(Protocol):
    """Sizes of a split's graphs; a ``GraphSplit`` provides them without reading payload."""

    @property
    def name(self) -> str:
        """Name of the split, for messages."""

    @property
    def n_atoms(self) -> Ints:
        """Number of atoms of each graph, [n_graphs]."""

    @property
    def n_edges(self) -> Ints:
        """Number of edges of each graph, [n_graphs]; read only if batches are limited by edges."""

    def atoms_of(self, graphs: Ints) -> Ints:
        """Return the number of atoms of the given graphs, [n]."""

    def edges_of(self, graphs: Ints) -> Ints:
        """Return the number of edges of the given graphs, [n]."""

    def __len__(self) -> int:
        """Return the number of graphs."""


@dataclass(frozen=True)
class Budget:
    """Limits of a batch, and the number of batches per step over all ranks.

    At least one limit is needed. A batch keeps to every limit that is given.
    """

    graphs: int | None = None
    atoms: int | None = None
    edges: int | None = None
    oversized: Literal["error", "single", "skip"] = "error"
    """Treatment of a graph above a limit: refuse it, give it its own step, or leave it out."""
    batches: int = 1
    """Number of batches per step. A graph is too large if it exceeds the limits of one batch, so
    this number does not change which graphs are trained on."""

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits.values()) < 1:
            raise ValueError("a budget needs a limit of graphs, atoms or edges, each 1 at least")

    @classmethod
    def of(cls, network: NetworkConfig, batches: int = 1) -> Budget:
        """Return the limits that `Training.batch_size` or `Training.Batching` set."""
        batching = network.Training.Batching
        if batching is None or batching.mode == "fixed":
            return cls(graphs=network.Training.batch_size, batches=batches)
        return cls(
            batching.max_graphs,
            batching.max_nodes,
            batching.max_edges,
            batching.oversized_sample,
            batches,
        )

    @property
    def of_a_step(self) -> dict[str, int]:
        """Limits of a whole step (all its batches), by name."""
        return {name: self.batches * limit for name, limit in self.limits.items()}

    @property
    def limits(self) -> dict[str, int]:
        """Limits of one batch, by name; only those that are given."""
        limits = {"graphs": self.graphs, "atoms": self.atoms, "edges": self.edges}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def least_steps(self, graphs: int, atoms: int, edges: int) -> int:
        """Return a lower bound on the number of steps for total numbers of graphs, atoms and edges.

        A plan exceeds it only slightly if a step holds many graphs.
        """
        totals = {"graphs": graphs, "atoms": atoms, "edges": edges}
        return max(-(-totals[name] // limit) for name, limit in self.of_a_step.items())


@dataclass(frozen=True, eq=False)
class Step:
    """Graphs of one optimiser step, over all ranks."""

    order: Ints
    """Indices of the graphs, sorted by rank, [n_graphs]."""
    bounds: Ints
    """Boundaries between the ranks in ``order``, [n_ranks + 1]."""
    atoms: int
    """Number of atoms over all ranks."""
    drawn: int = 0
    """Number of graphs drawn from the endless order between the beginning of the epoch and the end
    of this step; 0 in an epoch that is a full pass."""

    @property
    def graphs(self) -> int:
        """Number of graphs over all ranks."""
        return len(self.order)

    def of_rank(self, rank: int) -> Ints:
        """Return the graphs that a rank computes; possibly none."""
        return self.order[self.bounds[rank] : self.bounds[rank + 1]]

    @property
    def by_rank(self) -> list[Ints]:
        """Graphs of every rank, in the order of ranks."""
        return [self.of_rank(rank) for rank in range(len(self.bounds) - 1)]


def plan_epoch(
    index: Sizes,
    budget: Budget,
    seed: int,
    epoch: int,
    world: int,
    blocks: Ints | None = None,
    window: int = WINDOW,
    bootstrap: bool = False,
    dealing: Dealing | None = None,
) -> list[Step]:
    """Plan the training steps of an epoch from shuffled graphs.

    The plan has as few steps as the shuffled order allows. They are filled evenly, so that none is
    a tiny remainder.

    Parameters
    ----------
    index
        Sizes of the split's graphs.
    budget
        Limits of a step. If it limits graphs alone, steps differ by one graph at most.
    seed, epoch
        The only inputs of the shuffle, so a resumed job takes the same steps as an uninterrupted
        one.
    world
        Number of ranks. The graphs of a step are divided among them at nearly equal cost.
    blocks
        Bounds of the blocks of a streamed split, [n_blocks + 1]. The blocks are shuffled and cut
        into one range of equal cost per rank, so each rank reads blocks of its own. Only a block at
        the border of two ranges is read by both ranks.
    window
        Number of neighbouring blocks within a rank's range among which graphs are shuffled. At most
        this many blocks are partly used at a time.
    bootstrap
        If true, as many graphs as the split has are drawn with replacement. The draw depends on the
        seed alone, is the same in every epoch and contains about 63 % of the graphs.
    dealing
        Function that assigns the graphs of a step to ranks; not for a streamed split.

    Returns
    -------
    list of Step
        Steps with each graph once, or as often as it was drawn, except graphs left out as
        oversized.

    Raises
    ------
    InputError
        If a graph is above a limit and such graphs are refused; it names the graph.
    """
    costs = Costs.of(index, budget)
    times = kept_graphs(index, budget, costs).astype(np.int64)
    if bootstrap:
        times = _resampled(times, seed)
    rng = np.random.default_rng([seed, epoch])
    if blocks is None:
        there = np.repeat(np.arange(len(index)), times)
        return _steps(index, costs, rng.permutation(there), None, world, dealing)
    order, number = _shuffled_blocks(rng, blocks)
    number, order = np.repeat(number, times[order]), np.repeat(order, times[order])
    when = number + window * rng.random(len(order))
    owner = ranges(costs.leading[order], world)
    turn = np.lexsort((when, owner))
    return _steps(index, costs, *side_by_side(costs, order[turn], owner[turn], world), world)


def plan_in_order(
    index: Sizes, budget: Budget, world: int, dealing: Dealing | None = None
) -> list[Step]:
    """Plan the steps of an evaluation: every graph once, unshuffled.

    Each rank goes through a contiguous range of the split, or through the graphs that ``dealing``
    assigns to it. A graph above a limit gets its own step, whatever ``budget.oversized`` is.
    """
    costs = Costs.of(index, budget)
    graphs = np.arange(len(index), dtype=np.int64)
    owner = ranges(costs.leading, world) if dealing is None else dealing(graphs, costs.leading)
    order = np.argsort(owner, kind="stable")
    return _steps(index, costs, *side_by_side(costs, order, owner[order], world), world)


def graphs_kept(index: Sizes, budget: Budget) -> NDArray[np.bool_]:
    """Return a mask of the graphs that a plan holds, [n_graphs].

    Raises
    ------
    InputError
        If a graph is above a limit and such graphs are refused, or if no graph is left.
    """
    return kept_graphs(index, budget, Costs.of(index, budget))


@dataclass(frozen=True)
class Costs:
    """Cost of each graph in units of each limit (graphs, atoms or edges)."""

    limits: Ints
    """Limits of a step, [n_limits]."""
    values: Ints
    """Cost of each graph for each limit, [n_limits, n_graphs]."""
    too_large: NDArray[np.bool_]
    """Mask of graphs that alone exceed a limit of a batch, [n_graphs]."""
    leading: Ints
    """Cost of each graph for the binding limit, which decides the number of steps, [n_graphs]."""

    @classmethod
    def of(cls, index: Sizes, budget: Budget) -> Costs:
        limits = np.array(list(budget.of_a_step.values()), dtype=np.int64)
        values = np.stack([_sizes(index, name) for name in budget.limits])
        too_large = np.any(budget.batches * values > limits[:, None], axis=0)
        fill = values[:, ~too_large].sum(axis=1) / limits
        return cls(limits, values, too_large, values[int(fill.argmax())])


def _sizes(index: Sizes, name: str) -> Ints:
    if name == "graphs":
        return np.ones(len(index), dtype=np.int64)
    return index.n_atoms if name == "atoms" else index.n_edges


def kept_graphs(
    index: Sizes, budget: Budget, costs: Costs, numbers: Ints | None = None
) -> NDArray[np.bool_]:
    """Return a mask of the graphs that are not left out as oversized, [n_graphs].

    Parameters
    ----------
    index, budget
        Sizes of the graphs, and the limits that they are compared with.
    costs
        Costs of the same graphs.
    numbers
        Indices of the graphs in their split if they are a subset of it. A subset may be left empty.

    Raises
    ------
    InputError
        If a graph is above a limit and such graphs are refused, or if no graph is left.
    """
    if budget.oversized == "single" or not costs.too_large.any():
        return np.ones(len(index), dtype=bool)
    if budget.oversized == "skip" and (numbers is not None or not costs.too_large.all()):
        return ~costs.too_large
    beyond = budget.batches * costs.values > costs.limits[:, None]
    row, graph = np.argwhere(beyond)[0]
    name, limit = list(budget.limits.items())[row]
    others = "'single'" if budget.oversized == "skip" else "'single' or 'skip'"
    number = graph if numbers is None else numbers[graph]
    raise InputError(
        f"{index.name}: graph {number} has {costs.values[row, graph]} {name}, more than the "
        f"{limit} of {_KEYS[name]}, as {beyond[row].sum()} of {len(index)} graphs have; raise it "
        f"(to {costs.values[row].max()} for all of them) or set Training.Batching.oversized_sample "
        f"to {others}"
    )


def _resampled(times: Ints, seed: int) -> Ints:
    """Return how often each graph occurs in a bootstrap sample of equal size, [n_graphs]."""
    there = np.flatnonzero(times)
    # Three numbers, so that the stream differs from that of every epoch, [seed, epoch].
    drawn = np.random.default_rng([seed, 0, 1]).integers(0, max(len(there), 1), len(there))
    return np.bincount(there[drawn], minlength=len(times)).astype(np.int64)


def _shuffled_blocks(rng: np.random.Generator, blocks: Ints) -> tuple[Ints, Ints]:
    """Return the graphs in shuffled blocks, and the position of each graph's block."""
    shuffled = rng.permutation(len(blocks) - 1)
    counts = np.diff(blocks)[shuffled]
    before = np.cumsum(counts) - counts
    order = np.arange(blocks[-1]) + np.repeat(blocks[shuffled] - before, counts)
    return order, np.repeat(np.arange(len(counts)), counts)


def ranges(costs: Ints, world: int) -> Ints:
    """Cut a sequence into one range of nearly equal cost per rank; returns each graph's rank."""
    up_to = np.cumsum(costs)
    total = max(int(costs.sum()), 1)
    # By its middle, a graph on a border goes to the rank whose range holds most of it.
    owner: Ints = (2 * up_to - costs) * world // (2 * total)
    return np.minimum(owner, world - 1)


def side_by_side(costs: Costs, order: Ints, owner: Ints, world: int) -> tuple[Ints, Ints]:
    """Merge the ranks' sequences so that ranks progress through theirs at the same pace.

    Any slice of the merged sequence then holds nearly equal cost for every rank.

    Parameters
    ----------
    order, owner
        Graphs and their ranks, sorted by rank, [n] each.
    """
    cost = costs.leading[order]
    totals = np.zeros(world, dtype=np.int64)
    np.add.at(totals, owner, cost)
    middle = np.cumsum(cost) - cost / 2 - (np.cumsum(totals) - totals)[owner]
    turn = np.lexsort((owner, middle / np.maximum(totals, 1)[owner]))
    return order[turn], owner[turn]


def _steps(
    index: Sizes,
    costs: Costs,
    order: Ints,
    owner: Ints | None,
    world: int,
    dealing: Dealing | None = None,
) -> list[Step]:
    """Cut a sequence of graphs into steps; assign graphs to ranks unless ``owner`` does."""
    alone = costs.too_large[order]
    places = np.flatnonzero(~alone)
    ordinary = order[places]
    bounds = cut(costs.values[:, ordinary], costs.limits, costs.leading[ordinary])
    groups = [places[start:stop] for start, stop in pairwise(bounds)]
    groups += list(np.flatnonzero(alone)[:, None])
    groups.sort(key=lambda group: int(group[0]))
    steps = []
    for group in groups:
        graphs, ranks = order[group], None if owner is None else owner[group]
        if dealing is not None:
            ranks = dealing(graphs, costs.leading[graphs])
        steps.append(dealt(index, costs, graphs, ranks, world))
    return steps


def dealt(index: Sizes, costs: Costs, graphs: Ints, owner: Ints | None, world: int) -> Step:
    """Return a step of some graphs; assign them to ranks at equal cost unless ``owner`` does."""
    ranks = deal(costs.leading[graphs], world) if owner is None else owner
    ends = np.zeros(world + 1, dtype=np.int64)
    np.cumsum(np.bincount(ranks, minlength=world), out=ends[1:])
    by_rank = graphs[np.argsort(ranks, kind="stable")]
    return Step(by_rank, ends, int(index.n_atoms[graphs].sum()))


def cut(values: Ints, limits: Ints, leading: Ints) -> list[int]:
    """Cut a sequence into as few pieces as the limits allow, evenly filled.

    Parameters
    ----------
    values
        Cost of each element for each limit, [n_limits, n]; no element exceeds a limit alone.
    leading
        Costs by which the pieces are balanced, [n].

    Returns
    -------
    list of int
        First index of each piece, followed by the length of the sequence.
    """
    sums = np.zeros((len(values) + 1, values.shape[1] + 1), dtype=np.int64)
    np.cumsum(np.vstack([values, leading]), axis=1, out=sums[:, 1:])
    *rows, filled = sums
    limited = list(zip(rows, limits.tolist(), strict=True))

    # Backwards: no piece needs to begin earlier than this to leave room for the rest.
    begins = [values.shape[1]]
    while begins[-1] > 0:
        stop = begins[-1]
        begins.append(max(int(row.searchsorted(row[stop] - limit)) for row, limit in limited))
    begins.reverse()
    bounds = [0]
    for left, begin in zip(range(len(begins) - 1, 0, -1), begins[1:], strict=True):
        start = bounds[-1]
        each = -(-(filled[-1] - filled[start]) // left)
        even = int(filled.searchsorted(filled[start] + each))
        most = min(int(row.searchsorted(row[start] + limit, "right")) for row, limit in limited) - 1
        bounds.append(min(max(even, begin), most))
    return bounds


def deal(costs: Ints, world: int) -> Ints:
    """Assign graphs to ranks, the costliest first, each to the least loaded rank."""
    ranks = np.zeros(len(costs), dtype=np.int64)
    if world == 1:
        return ranks
    if not np.diff(costs).any():  # to each in turn, as below, but at once
        return np.arange(len(costs)) % world
    loads = [(0, 0, rank) for rank in range(world)]
    sizes = costs.tolist()
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, graphs, rank = loads[0]
        ranks[place] = rank
        heapq.heapreplace(loads, (cost + sizes[place], graphs + 1, rank))
    return ranks
