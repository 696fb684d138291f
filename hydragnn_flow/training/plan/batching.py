"""Batching: how a sequence of graphs is cut into steps, and a step is dealt to the ranks.

A step is the batch of all ranks together. Its graphs depend only on seed, epoch and batch limits,
so a job on one, two or eight GCDs takes the same steps. In a streamed split they also depend on the
number of ranks, because each rank reads blocks of its own. Which graphs come next is decided in
:mod:`hydragnn_flow.training.plan.epochs`.
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
"""Function that assigns graphs to ranks: (indices in the split, work) -> ranks, [n] each."""

# Most graphs that are dealt one by one. The small ones of more graphs are dealt in bundles, the
# largest of which are a sixteenth of a rank's share.
_ONE_BY_ONE, _BUNDLES = 1024, 32
# Configuration keys of the limits that a single graph can exceed.
_KEYS = {"atoms": "Training.Batching.max_nodes", "edges": "Training.Batching.max_edges"}


class Sizes(Protocol):
    """Interface to the numbers of atoms and edges of a split's graphs.

    A ``GraphSplit`` provides them without reading the graphs.
    """

    def atoms_of(self, graphs: Ints) -> Ints:
        """Return the number of atoms of the given graphs, [n]."""

    def edges_of(self, graphs: Ints) -> Ints:
        """Return the number of edges of the given graphs, [n]."""

    def where(self, graph: int) -> str:
        """Return what messages call a graph: its split, its index there, and its origin."""

    def __len__(self) -> int:
        """Return the number of graphs."""


@dataclass(frozen=True)
class Budget:
    """Limits of a batch of graphs, and the number of batches in a training step on all ranks.

    The limits are numbers of graphs, atoms and edges. At least one limit is needed, and a batch
    keeps to every limit that is not None.
    """

    graphs: int | None = None
    atoms: int | None = None
    edges: int | None = None
    oversized: Literal["error", "single", "skip"] = "error"
    """Treatment of a graph above a limit: refuse it, give it its own step, or leave it out."""
    batches: int = 1
    """Number of batches per step. A graph is too large if it exceeds the limits of one batch, so
    this number does not change which graphs are trained on."""

    @classmethod
    def of(cls, network: NetworkConfig, batches: int = 1) -> Budget:
        """Return the limits of a batch that `Training.batch_size` or `Training.Batching` sets.

        ``batches`` is the number of such batches in a step, over all ranks.
        """
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
        """Limits of a training step (all its batches): name (graphs, atoms, edges) -> maximum."""
        return {name: self.batches * limit for name, limit in self.limits.items()}

    @property
    def limits(self) -> dict[str, int]:
        """Given limits of one batch: name (``graphs``, ``atoms``, ``edges``) -> maximum."""
        limits = {"graphs": self.graphs, "atoms": self.atoms, "edges": self.edges}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def least_steps(self, graphs: int, atoms: int, edges: int) -> int:
        """Return a lower bound of the number of steps for graphs of a total size.

        ``graphs``, ``atoms`` and ``edges`` are total numbers. A plan exceeds the bound only
        slightly if a step holds many graphs.
        """
        totals = {"graphs": graphs, "atoms": atoms, "edges": edges}
        return max(-(-totals[name] // limit) for name, limit in self.of_a_step.items())


@dataclass(frozen=True, eq=False)
class Step:
    """Graphs of one optimiser step, and the rank that computes each of them."""

    order: Ints
    """Indices of the graphs, sorted by rank, [n_graphs]."""
    bounds: Ints
    """Boundaries between the ranks in ``order``, [n_ranks + 1]."""
    atoms: int
    """Number of atoms over all ranks."""
    drawn: int = 0
    """Number of graphs drawn from the beginning of the epoch to the end of this step."""

    @property
    def graphs(self) -> int:
        """Number of graphs in the step, over all ranks."""
        return len(self.order)

    def of_rank(self, rank: int) -> Ints:
        """Return the indices of the graphs that a rank computes in this step, [n]."""
        return self.order[self.bounds[rank] : self.bounds[rank + 1]]


def plan_in_order(
    index: Sizes, budget: Budget, world: int, dealing: Dealing | None = None
) -> list[Step]:
    """Return the steps in which ranks evaluate a split: every graph once, unshuffled.

    ``world`` is the number of ranks. Each rank goes through a contiguous range of the split, or
    through the graphs that ``dealing`` assigns to it. A graph above a limit gets its own step,
    whatever ``budget.oversized`` is.
    """
    graphs = np.arange(len(index), dtype=np.int64)
    costs = Costs.of(index, budget, graphs)
    owner = ranges(costs.work, world) if dealing is None else dealing(graphs, costs.work)
    order = np.argsort(owner, kind="stable")
    return steps_of(costs, *side_by_side(costs, order, owner[order], world), world)


def graphs_kept(index: Sizes, budget: Budget) -> NDArray[np.bool_]:
    """Return a mask [n_graphs], True for each graph of a split that is trained on.

    With ``budget.oversized`` = ``skip`` these are the graphs within the batch limits, else all.

    Raises
    ------
    InputError
        If a graph exceeds a limit and such graphs are refused, or if no graph is left.
    """
    costs = Costs.of(index, budget, np.arange(len(index), dtype=np.int64))
    return costs.kept(index, budget, some_must_be_left=True)


@dataclass(frozen=True)
class Costs:
    """Costs of graphs, one for each batch limit: 1 graph, its number of atoms or of edges."""

    graphs: Ints
    """Indices of the graphs in the split, [n]."""
    atoms: Ints
    """Number of atoms of each graph, [n]."""
    limits: Ints
    """Limits of a whole step, one for each limited quantity, [n_limits]."""
    values: Ints
    """Cost of each graph for each limit, [n_limits, n]."""
    too_large: NDArray[np.bool_]
    """Mask of the graphs that exceed a limit of one batch alone, [n]."""
    leading: Ints
    """Cost of each graph in the binding limit (graphs, atoms or edges), [n]."""
    work: Ints
    """Number of edges of each graph, at least 1, or of atoms if no graph has edges, [n]. Ranks get
    nearly equal work, whatever the limits are."""

    @classmethod
    def of(cls, index: Sizes, budget: Budget, graphs: Ints) -> Costs:
        """Return the costs of some graphs of a split, for the limits of a budget.

        ``graphs`` are the indices of the graphs in the split, [n].
        """
        atoms, edges = index.atoms_of(graphs), index.edges_of(graphs)
        known = {"graphs": np.ones_like(graphs), "atoms": atoms, "edges": edges}
        limits = np.array(list(budget.of_a_step.values()), dtype=np.int64)
        values = np.stack([known[name] for name in budget.limits])
        too_large = np.any(budget.batches * values > limits[:, None], axis=0)
        fill = values[:, ~too_large].sum(axis=1) / limits
        work = np.maximum(edges if edges.any() else atoms, 1)
        return cls(graphs, atoms, limits, values, too_large, values[int(fill.argmax())], work)

    def kept(
        self, index: Sizes, budget: Budget, some_must_be_left: bool = False
    ) -> NDArray[np.bool_]:
        """Return a mask [n], True for each graph that is trained on.

        Parameters
        ----------
        index
            Split of the graphs, for messages.
        budget
            Limits of a batch, and the treatment of graphs above them.
        some_must_be_left
            True to raise an error if no graph is left.

        Raises
        ------
        InputError
            If the budget refuses graphs above its limits and there are some, or no graph is left;
            the message names the first graph above a limit.
        """
        if budget.oversized == "single" or not self.too_large.any():
            return np.ones(len(self.graphs), dtype=bool)
        if budget.oversized == "skip" and not (some_must_be_left and self.too_large.all()):
            return ~self.too_large
        beyond = budget.batches * self.values > self.limits[:, None]
        row, graph = np.argwhere(beyond)[0]
        name, limit = list(budget.limits.items())[row]
        others = "'single'" if budget.oversized == "skip" else "'single' or 'skip'"
        raise InputError(
            f"{index.where(int(self.graphs[graph]))} has {self.values[row, graph]} {name}, more "
            f"than the {limit} of {_KEYS[name]}, as {beyond[row].sum()} of {len(self.graphs)} "
            f"graphs have; raise it (to {self.values[row].max()} for all of them) or set "
            f"Training.Batching.oversized_sample to {others}"
        )


def ranges(costs: Ints, world: int) -> Ints:
    """Return the rank of each graph, [n], in consecutive ranges of graphs of nearly equal work.

    Parameters
    ----------
    costs
        Work of each graph in the order of the split, [n].
    world
        Number of ranks that share the graphs.
    """
    up_to = np.cumsum(costs)
    total = max(int(costs.sum()), 1)
    # By its middle, a graph on a border goes to the rank whose range holds most of it.
    owner: Ints = (2 * up_to - costs) * world // (2 * total)
    return np.minimum(owner, world - 1)


def side_by_side(costs: Costs, order: Ints, owner: Ints, world: int) -> tuple[Ints, Ints]:
    """Merge the sequences of graphs of all ranks, so that ranks progress at the same pace.

    Any slice of the merged sequence then holds nearly equal work for every rank. Returns the merged
    sequence and the rank of each of its graphs, [n] each.

    Parameters
    ----------
    costs
        Costs of the graphs.
    order, owner
        Indices of graphs in ``costs``, and their ranks, sorted by rank, [n] each.
    world
        Number of ranks of the segment.
    """
    cost = costs.work[order]
    totals = np.zeros(world, dtype=np.int64)
    np.add.at(totals, owner, cost)
    middle = np.cumsum(cost) - cost / 2 - (np.cumsum(totals) - totals)[owner]
    turn = np.lexsort((owner, middle / np.maximum(totals, 1)[owner]))
    return order[turn], owner[turn]


def steps_of(
    costs: Costs,
    order: Ints,
    owner: Ints | None,
    world: int,
    dealing: Dealing | None = None,
    *,
    divides: bool = False,
) -> list[Step]:
    """Cut a sequence of graphs into steps, and assign graphs to ranks unless they have ranks.

    Parameters
    ----------
    costs
        Costs of the graphs.
    order, owner
        Sequence of indices into ``costs``, and the rank of each graph, [n] each; ``owner`` is None
        if ranks are assigned here.
    world
        Number of ranks of the segment.
    dealing
        Function that assigns the graphs of a step to ranks; by default at nearly equal work.
    divides
        True to cut the sequence before and after each graph above the batch limits, which gets a
        step of its own; every step is then a piece of the sequence. False to keep the other graphs
        of its step together.
    """
    alone = costs.too_large[order]
    places = np.flatnonzero(~alone)
    ordinary = order[places]
    bounds = cut(costs.values[:, ordinary], costs.limits, costs.leading[ordinary])
    groups = [places[start:stop] for start, stop in pairwise(bounds)]
    groups += list(np.flatnonzero(alone)[:, None])
    groups.sort(key=lambda group: int(group[0]))
    if divides and alone.any():
        begins = {int(group[0]) for group in groups} | {*(np.flatnonzero(alone) + 1).tolist()}
        groups = [part for part in np.split(np.arange(len(order)), sorted(begins)) if len(part)]
    steps = []
    for group in groups:
        mine = order[group]
        if owner is not None:
            ranks = owner[group]
        elif dealing is not None:
            ranks = dealing(costs.graphs[mine], costs.work[mine])
        else:
            ranks = deal(costs.work[mine], world)
        ends = np.zeros(world + 1, dtype=np.int64)
        np.cumsum(np.bincount(ranks, minlength=world), out=ends[1:])
        by_rank = costs.graphs[mine[np.argsort(ranks, kind="stable")]]
        steps.append(Step(by_rank, ends, int(costs.atoms[mine].sum()), int(mine[-1]) + 1))
    return steps


def cut(values: Ints, limits: Ints, leading: Ints) -> list[int]:
    """Cut a sequence into as few pieces as limits allow, evenly filled; return where they begin.

    Parameters
    ----------
    values
        Cost of each element for each limit, [n_limits, n]; no element exceeds a limit alone.
    limits
        Largest total cost of a piece for each limit, [n_limits].
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
    """Return the rank of each graph, [n], assigned costliest first to the least loaded rank.

    Beyond a thousand graphs the small ones are assigned in bundles.

    Parameters
    ----------
    costs
        Work of each graph, at least 1, [n].
    world
        Number of ranks that share the graphs.
    """
    ranks = np.zeros(len(costs), dtype=np.int64)
    if world == 1:
        return ranks
    if len(costs) > _ONE_BY_ONE:
        bundle = _bundled(costs, max(int(costs.sum()) // (_BUNDLES * world), 1))
        return _deal_in_rounds(np.bincount(bundle, costs).astype(np.int64), world)[bundle]
    loads = [(0, 0, rank) for rank in range(world)]
    sizes = costs.tolist()
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, graphs, rank = loads[0]
        ranks[place] = rank
        heapq.heapreplace(loads, (cost + sizes[place], graphs + 1, rank))
    return ranks


def _bundled(costs: Ints, size: int) -> Ints:
    """Return the bundle of each graph, [n]: small graphs of about ``size``, or a large one."""
    is_small = costs < size
    before = np.cumsum(np.where(is_small, costs, 0)) - costs
    bundle: Ints = np.where(is_small, before // size, 0)
    first_large = int(bundle.max(initial=-1)) + 1
    return np.where(is_small, bundle, first_large + np.cumsum(~is_small) - 1)


def _deal_in_rounds(costs: Ints, world: int) -> Ints:
    """Return what assigning one by one to the least loaded rank gives, [n], in few rounds.

    In a round, ranks get one bundle each, in the order of their loads, up to the first rank whose
    load exceeds what another has by then.
    """
    ranks, loads = np.empty(len(costs), dtype=np.int64), np.zeros(world, dtype=np.int64)
    order = np.argsort(-costs, kind="stable")
    while len(order):
        least = np.argsort(loads, kind="stable")[: len(order)]
        new = loads[least] + costs[order[: len(least)]]
        is_beyond = loads[least[1:]] > np.minimum.accumulate(new)[:-1]
        number = 1 + int(np.append(is_beyond, True).argmax())
        ranks[order[:number]] = least[:number]
        loads[least[:number]] = new[:number]
        order = order[number:]
    return ranks
