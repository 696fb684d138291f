"""Which graphs make up each step, worked out from the index alone.

A step is the batch of all ranks together. Its graphs follow from the seed, the epoch and the
budget and from nothing else, so a job on one, two or eight GCDs takes the same steps. Only where a
split is streamed from disk do they depend on the number of ranks, since each rank reads blocks of
its own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.errors import InputError

Ints = NDArray[np.int64]

# Blocks of about 4 MB make a window of about 64 MB, which is well shuffled and stays in memory.
WINDOW = 16
# What a user calls the limits that one graph can be beyond.
_KEYS = {"atoms": "Training.Batching.max_nodes", "edges": "Training.Batching.max_edges"}


class Sizes(Protocol):
    """What a plan needs to know of a split; a ``GraphSplit`` knows it without reading payload."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def n_atoms(self) -> Ints:
        """Atoms of each graph, [n_graphs]."""

    @property
    def n_edges(self) -> Ints:
        """Edges of each graph, [n_graphs]; asked for only where a budget limits edges."""

    def __len__(self) -> int:
        """Number of graphs."""


@dataclass(frozen=True)
class Budget:
    """What a step may hold over all ranks together; every limit given holds, and one is needed."""

    graphs: int | None = None
    atoms: int | None = None
    edges: int | None = None
    oversized: Literal["error", "single", "skip"] = "error"
    """A graph beyond the budget is refused, gets a step of its own, or is left out."""

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits.values()) < 1:
            raise ValueError("a budget needs a limit of graphs, atoms or edges, each 1 at least")

    @classmethod
    def of(cls, network: NetworkConfig) -> Budget:
        """The budget that `Training.batch_size` or `Training.Batching` sets."""
        batching = network.Training.Batching
        if batching is None or batching.mode == "fixed":
            return cls(graphs=network.Training.batch_size)
        return cls(
            batching.max_graphs, batching.max_nodes, batching.max_edges, batching.oversized_sample
        )

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are given, by name."""
        limits = {"graphs": self.graphs, "atoms": self.atoms, "edges": self.edges}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def least_steps(self, graphs: int, atoms: int, edges: int) -> int:
        """Number of steps, at least, that so many graphs, atoms and edges need.

        A plan has few more where a step holds many graphs.
        """
        totals = {"graphs": graphs, "atoms": atoms, "edges": edges}
        return max(-(-totals[name] // limit) for name, limit in self.limits.items())


@dataclass(frozen=True, eq=False)
class Step:
    """The graphs that all ranks together compute before the weights change."""

    order: Ints
    """Indices of the graphs, those of the first rank first, [graphs]."""
    bounds: Ints
    """Where each rank's part begins and ends in ``order``, [n_ranks + 1]."""
    atoms: int
    """Atoms over all ranks."""

    @property
    def graphs(self) -> int:
        """Graphs over all ranks."""
        return len(self.order)

    def part(self, rank: int) -> Ints:
        """The graphs that a rank computes; there may be none."""
        return self.order[self.bounds[rank] : self.bounds[rank + 1]]

    @property
    def parts(self) -> list[Ints]:
        """The graphs of every rank."""
        return [self.part(rank) for rank in range(len(self.bounds) - 1)]


def plan_epoch(
    index: Sizes,
    budget: Budget,
    seed: int,
    epoch: int,
    world: int,
    blocks: Ints | None = None,
    window: int = WINDOW,
) -> list[Step]:
    """Shuffle the graphs of an epoch into steps.

    As few steps as the shuffled order allows, evenly filled, so that none ends in a tiny remainder.

    Parameters
    ----------
    index
        The split.
    budget
        What a step may hold. Where it limits graphs alone, steps differ by one graph at most.
    seed, epoch
        Together decide the order; nothing else does, so a job that was resumed sees the same steps
        as one that was never stopped.
    world
        Number of ranks. The graphs of a step are dealt to them at nearly equal cost.
    blocks
        Where the blocks of a streamed split begin and end, [n_blocks + 1]. The blocks are shuffled
        and shared out in ranges of equal cost, so that each rank reads blocks of its own; of a
        block on the border between two ranks, each takes some graphs.
    window
        A rank's graphs are shuffled among this many neighbouring blocks of its range: between any
        two of them, no more than ``window`` blocks have been begun and not finished.

    Returns
    -------
    list of Step
        Each graph once, but for those the budget leaves out.

    Raises
    ------
    InputError
        Naming the graph that is beyond the budget, where that is to be refused.
    """
    costs = _Costs.of(index, budget)
    kept = _kept(index, budget, costs)
    rng = np.random.default_rng([seed, epoch])
    if blocks is None:
        order: Ints = rng.permutation(len(index)).astype(np.int64)
        order = order[kept[order]]
        return _steps(index, costs, order, None, world)
    order, number = _shuffled_blocks(rng, blocks)
    when = number + window * rng.random(len(order))
    stays = kept[order]
    order, when = order[stays], when[stays]
    owner = _ranges(costs.leading[order], world)
    turn = np.lexsort((when, owner))
    return _steps(index, costs, *_side_by_side(costs, order[turn], owner[turn], world), world)


def plan_in_order(index: Sizes, budget: Budget, world: int) -> list[Step]:
    """Steps through a split that is read and not trained on: every graph once, unshuffled.

    Each rank goes through a range of the split from its beginning to its end. A graph beyond the
    budget gets a step of its own, whatever the budget says of such graphs.
    """
    costs = _Costs.of(index, budget)
    order = np.arange(len(index), dtype=np.int64)
    owner = _ranges(costs.leading, world)
    return _steps(index, costs, *_side_by_side(costs, order, owner, world), world)


def graphs_kept(index: Sizes, budget: Budget) -> NDArray[np.bool_]:
    """Which graphs a plan holds, [n_graphs].

    Raises
    ------
    InputError
        Naming the graph that is beyond the budget, where that is to be refused or nothing is left.
    """
    return _kept(index, budget, _Costs.of(index, budget))


@dataclass(frozen=True)
class _Costs:
    """What each graph takes of each limit."""

    limits: Ints
    """[n_limits]."""
    values: Ints
    """[n_limits, n_graphs]."""
    too_large: NDArray[np.bool_]
    """Beyond a limit on its own, [n_graphs]."""
    leading: Ints
    """Each graph's cost in terms of the limit that decides how many steps there are, [n_graphs]."""

    @classmethod
    def of(cls, index: Sizes, budget: Budget) -> _Costs:
        limits = np.array(list(budget.limits.values()), dtype=np.int64)
        values = np.stack([_sizes(index, name) for name in budget.limits])
        too_large = np.any(values > limits[:, None], axis=0)
        fill = values[:, ~too_large].sum(axis=1) / limits
        return cls(limits, values, too_large, values[int(fill.argmax())])


def _sizes(index: Sizes, name: str) -> Ints:
    if name == "graphs":
        return np.ones(len(index), dtype=np.int64)
    return index.n_atoms if name == "atoms" else index.n_edges


def _kept(index: Sizes, budget: Budget, costs: _Costs) -> NDArray[np.bool_]:
    """Which graphs take part."""
    if budget.oversized == "single" or not costs.too_large.any():
        return np.ones(len(index), dtype=bool)
    if budget.oversized == "skip" and not costs.too_large.all():
        return ~costs.too_large
    beyond = costs.values > costs.limits[:, None]
    row, graph = np.argwhere(beyond)[0]
    name, limit = list(budget.limits.items())[row]
    others = "'single'" if budget.oversized == "skip" else "'single' or 'skip'"
    raise InputError(
        f"{index.name}: graph {graph} has {costs.values[row, graph]} {name}, more than the {limit} "
        f"of {_KEYS[name]}, as {beyond[row].sum()} of {len(index)} graphs have; raise it (to "
        f"{costs.values[row].max()} for all of them) or set Training.Batching.oversized_sample to "
        f"{others}"
    )


def _shuffled_blocks(rng: np.random.Generator, blocks: Ints) -> tuple[Ints, Ints]:
    """The graphs block by block, the blocks shuffled, and the place of each graph's block."""
    shuffled = rng.permutation(len(blocks) - 1)
    counts = np.diff(blocks)[shuffled]
    before = np.cumsum(counts) - counts
    order = np.arange(blocks[-1]) + np.repeat(blocks[shuffled] - before, counts)
    return order, np.repeat(np.arange(len(counts)), counts)


def _ranges(costs: Ints, world: int) -> Ints:
    """Cut a sequence into a range of nearly equal cost per rank; each graph's rank."""
    up_to = np.cumsum(costs)
    total = max(int(costs.sum()), 1)
    # By the middle of each graph: a graph on a border goes to the rank that has most of it.
    owner: Ints = (2 * up_to - costs) * world // (2 * total)
    return np.minimum(owner, world - 1)


def _side_by_side(costs: _Costs, order: Ints, owner: Ints, world: int) -> tuple[Ints, Ints]:
    """Merge the ranks' sequences so that all ranks are equally far in theirs at any place.

    A piece of the merged sequence then holds a share of nearly equal cost for every rank.

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


def _steps(index: Sizes, costs: _Costs, order: Ints, owner: Ints | None, world: int) -> list[Step]:
    """Cut a sequence of graphs into steps; deal them to the ranks where they have none yet."""
    alone = costs.too_large[order]
    places = np.flatnonzero(~alone)
    ordinary = order[places]
    bounds = _cut(costs.values[:, ordinary], costs.limits, costs.leading[ordinary])
    groups = [places[start:stop] for start, stop in pairwise(bounds)]
    groups += list(np.flatnonzero(alone)[:, None])
    groups.sort(key=lambda group: int(group[0]))
    steps = []
    for group in groups:
        graphs = order[group]
        ranks = _deal(costs.leading[graphs], world) if owner is None else owner[group]
        parts = np.zeros(world + 1, dtype=np.int64)
        np.cumsum(np.bincount(ranks, minlength=world), out=parts[1:])
        by_rank = graphs[np.argsort(ranks, kind="stable")]
        steps.append(Step(by_rank, parts, int(index.n_atoms[graphs].sum())))
    return steps


def _cut(values: Ints, limits: Ints, leading: Ints) -> list[int]:
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
        share = -(-(filled[-1] - filled[start]) // left)
        even = int(filled.searchsorted(filled[start] + share))
        most = min(int(row.searchsorted(row[start] + limit, "right")) for row, limit in limited) - 1
        bounds.append(min(max(even, begin), most))
    return bounds


def _deal(costs: Ints, world: int) -> Ints:
    """Deal graphs to the ranks, the costliest first, each to the rank with the least so far."""
    ranks = np.zeros(len(costs), dtype=np.int64)
    if world == 1:
        return ranks
    loads = [(0, 0, rank) for rank in range(world)]
    sizes = costs.tolist()
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, graphs, rank = loads[0]
        ranks[place] = rank
        heapq.heapreplace(loads, (cost + sizes[place], graphs + 1, rank))
    return ranks
