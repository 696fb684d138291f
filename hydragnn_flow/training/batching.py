"""Batching: which graphs make up each training step, planned from the index alone.

A step is the batch of all ranks together. Seed, epoch and budget alone decide its graphs, so a job
on one, two or eight GCDs takes the same steps. For a split that is streamed from disk the number of
ranks counts too, because each rank reads blocks of its own.

Here a whole epoch is planned at once, which takes time and memory in proportion to the split. An
epoch of a large split, or one that is a part of a budget, is planned window by window in
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
"""Ranks that some graphs go to, from their places in the split and their costs, each [n]."""

WINDOW = 16
"""Blocks among which a stream is shuffled: 16 of 4 MB, 64 MB of memory a rank."""
# Configuration keys of the limits that a single graph can exceed.
_KEYS = {"atoms": "Training.Batching.max_nodes", "edges": "Training.Batching.max_edges"}


class Sizes(Protocol):
    """Sizes of a split's graphs; a ``GraphSplit`` has them without reading payload."""

    @property
    def name(self) -> str:
        """Name of the split, for messages."""

    @property
    def n_atoms(self) -> Ints:
        """Atoms of each graph, [n_graphs]."""

    @property
    def n_edges(self) -> Ints:
        """Edges of each graph, [n_graphs]; read only if the budget limits edges."""

    def atoms_of(self, graphs: Ints) -> Ints:
        """Atoms of some graphs, [n]."""

    def edges_of(self, graphs: Ints) -> Ints:
        """Edges of some graphs, [n]."""

    def __len__(self) -> int:
        """Number of graphs."""


@dataclass(frozen=True)
class Budget:
    """Limits of a batch, and the number of batches in a step over all ranks together.

    Every given limit holds; at least one is needed.
    """

    graphs: int | None = None
    atoms: int | None = None
    edges: int | None = None
    oversized: Literal["error", "single", "skip"] = "error"
    """A graph above a limit by itself is refused, gets its own step, or is left out."""
    batches: int = 1
    """Batches in a step. A graph is too large where it is for one of them, however many there are,
    so that their number does not decide what is trained on."""

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits.values()) < 1:
            raise ValueError("a budget needs a limit of graphs, atoms or edges, each 1 at least")

    @classmethod
    def of(cls, network: NetworkConfig, batches: int = 1) -> Budget:
        """Budget of steps of some batches that `Training.batch_size` or `Training.Batching` set."""
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
        """Given limits of all batches of a step, by name."""
        return {name: self.batches * limit for name, limit in self.limits.items()}

    @property
    def limits(self) -> dict[str, int]:
        """Given limits of a batch by name."""
        limits = {"graphs": self.graphs, "atoms": self.atoms, "edges": self.edges}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def least_steps(self, graphs: int, atoms: int, edges: int) -> int:
        """Lower bound on the number of steps for the given totals of graphs, atoms and edges.

        A plan exceeds it by little if a step holds many graphs.
        """
        totals = {"graphs": graphs, "atoms": atoms, "edges": edges}
        return max(-(-totals[name] // limit) for name, limit in self.of_a_step.items())


@dataclass(frozen=True, eq=False)
class Step:
    """The graphs that all ranks together compute before the weights change."""

    order: Ints
    """Indices of the graphs, those of the first rank first, [graphs]."""
    bounds: Ints
    """Boundaries of the ranks' graphs in ``order``, [n_ranks + 1]."""
    atoms: int
    """Atoms over all ranks."""
    drawn: int = 0
    """Graphs drawn since the epoch began, up to the end of this step, where an epoch is a part of
    an endless order."""

    @property
    def graphs(self) -> int:
        """Graphs over all ranks."""
        return len(self.order)

    def of_rank(self, rank: int) -> Ints:
        """Graphs that a rank computes; possibly none."""
        return self.order[self.bounds[rank] : self.bounds[rank + 1]]

    @property
    def by_rank(self) -> list[Ints]:
        """Graphs of every rank."""
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

    The plan has as few steps as the shuffled order allows, evenly filled, so none is a tiny
    remainder.

    Parameters
    ----------
    index
        The split.
    budget
        Limits of a step. If it limits graphs alone, steps differ by one graph at most.
    seed, epoch
        They alone decide the order, so a resumed job takes the same steps as one that never
        stopped.
    world
        Number of ranks. The graphs of a step are dealt to them at nearly equal cost.
    blocks
        Bounds of the blocks of a streamed split, [n_blocks + 1]. The blocks are shuffled and dealt
        to the ranks in ranges of equal cost, so each rank reads blocks of its own; two ranks take
        some graphs each of a block on their border.
    window
        Number of neighbouring blocks of a rank's range among which its graphs are shuffled. At no
        time are more than ``window`` blocks begun and unfinished.
    bootstrap
        Whether as many graphs are drawn with replacement by the seed, the same in every epoch, so
        that about 63 % of them are there at all.
    dealing
        Deals the graphs of a step to the ranks; not of a streamed split.

    Returns
    -------
    list of Step
        Each graph once, or as often as it was drawn, except those that the budget leaves out.

    Raises
    ------
    InputError
        Naming the graph above the budget, if the budget refuses such graphs.
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

    Each rank goes through a range of the split from its beginning to its end, or through the graphs
    that ``dealing`` gives it. A graph above the budget gets its own step, whatever the budget says
    of such graphs.
    """
    costs = Costs.of(index, budget)
    graphs = np.arange(len(index), dtype=np.int64)
    owner = ranges(costs.leading, world) if dealing is None else dealing(graphs, costs.leading)
    order = np.argsort(owner, kind="stable")
    return _steps(index, costs, *side_by_side(costs, order, owner[order], world), world)


def graphs_kept(index: Sizes, budget: Budget) -> NDArray[np.bool_]:
    """Mask of the graphs that a plan holds, [n_graphs].

    Raises
    ------
    InputError
        Naming the graph above the budget, if the budget refuses such graphs or none is left.
    """
    return kept_graphs(index, budget, Costs.of(index, budget))


@dataclass(frozen=True)
class Costs:
    """Cost of each graph in terms of each limit."""

    limits: Ints
    """Of a step, [n_limits]."""
    values: Ints
    """[n_limits, n_graphs]."""
    too_large: NDArray[np.bool_]
    """Above a limit of a batch by itself, [n_graphs]."""
    leading: Ints
    """Each graph's cost in terms of the limit that decides how many steps there are, [n_graphs]."""

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
    """Mask of the graphs that the budget keeps, [n_graphs].

    Parameters
    ----------
    index, budget
        Some graphs, and what is asked of them.
    costs
        Of these graphs.
    numbers
        Their places in the split, where they are a part of it; then none of them need be left.

    Raises
    ------
    InputError
        Naming the graph above the budget, if the budget refuses such graphs or none is left.
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
    """How often each graph is drawn, where as many are drawn as there are, [n_graphs]."""
    there = np.flatnonzero(times)
    # Three numbers, so that no epoch draws the same.
    drawn = np.random.default_rng([seed, 0, 1]).integers(0, max(len(there), 1), len(there))
    return np.bincount(there[drawn], minlength=len(times)).astype(np.int64)


def _shuffled_blocks(rng: np.random.Generator, blocks: Ints) -> tuple[Ints, Ints]:
    """The graphs block by block, the blocks shuffled, and the place of each graph's block."""
    shuffled = rng.permutation(len(blocks) - 1)
    counts = np.diff(blocks)[shuffled]
    before = np.cumsum(counts) - counts
    order = np.arange(blocks[-1]) + np.repeat(blocks[shuffled] - before, counts)
    return order, np.repeat(np.arange(len(counts)), counts)


def ranges(costs: Ints, world: int) -> Ints:
    """Cut a sequence into a range of nearly equal cost per rank; each graph's rank."""
    up_to = np.cumsum(costs)
    total = max(int(costs.sum()), 1)
    # By the middle of each graph: a graph on a border goes to the rank that has most of it.
    owner: Ints = (2 * up_to - costs) * world // (2 * total)
    return np.minimum(owner, world - 1)


def side_by_side(costs: Costs, order: Ints, owner: Ints, world: int) -> tuple[Ints, Ints]:
    """Merge the ranks' sequences so that all ranks are equally far in theirs at any place.

    A piece of the merged sequence then holds nearly equal cost for every rank.

    Parameters
    ----------
    order, owner
        Graphs and their ranks, rank after rank.
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
    """Cut a sequence of graphs into steps; deal them to the ranks if that is not done yet."""
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
    """A step of some graphs; they are dealt to the ranks if they have no owners yet."""
    ranks = deal(costs.leading[graphs], world) if owner is None else owner
    ends = np.zeros(world + 1, dtype=np.int64)
    np.cumsum(np.bincount(ranks, minlength=world), out=ends[1:])
    by_rank = graphs[np.argsort(ranks, kind="stable")]
    return Step(by_rank, ends, int(index.n_atoms[graphs].sum()))


def cut(values: Ints, limits: Ints, leading: Ints) -> list[int]:
    """Cut a sequence into as few pieces as the limits allow, and these evenly.

    Parameters
    ----------
    values
        Cost of each element in terms of each limit, none beyond it alone, [n_limits, n].
    leading
        The costs that are to be even, [n].

    Returns
    -------
    list of int
        Where each piece begins and, at last, where the last one ends.
    """
    sums = np.zeros((len(values) + 1, values.shape[1] + 1), dtype=np.int64)
    np.cumsum(np.vstack([values, leading]), axis=1, out=sums[:, 1:])
    *rows, filled = sums
    limited = list(zip(rows, limits.tolist(), strict=True))

    # From the end: the latest pieces need not begin earlier than here to hold what follows.
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
    """Deal graphs to the ranks, the costliest first, each to the rank with the least so far."""
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
