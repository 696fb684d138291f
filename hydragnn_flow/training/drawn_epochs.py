"""Epochs drawn from an endless order, planned while they are trained.

Such an epoch is limited by a number of steps or graphs, or by time. The next one continues in the
order where it ended. Planning goes window by window: only the graphs of a window are drawn and only
their sizes are read. So 100 steps of a hundred million graphs cost as much to plan as 100 steps of
a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hydragnn_flow.errors import InputError
from hydragnn_flow.training.batching import (
    WINDOW,
    Budget,
    Costs,
    Dealing,
    Ints,
    Sizes,
    Step,
    cut,
    dealt,
    kept_graphs,
    ranges,
    side_by_side,
)
from hydragnn_flow.training.orders import Order

# Limits of a window: long enough for readers to work ahead, small enough to plan in some megabytes.
_MOST_STEPS, _MOST_GRAPHS = 128, 2**18
# Number of graphs from whose sizes the graphs per step are estimated.
_SAMPLE = 4096
# Steps planned beyond the last one wanted, so that the last is filled like the others.
_SPARE = 8


@dataclass(frozen=True)
class Length:
    """Length of an epoch in steps or graphs; with neither, time ends the epoch."""

    steps: int | None = None
    graphs: int | None = None


@dataclass(frozen=True, eq=False)
class DrawnEpoch:
    """Epoch drawn from an endless order.

    Its steps depend only on seed, batch limits and starting position, not on the number of ranks.
    In a stream they depend on the number of ranks too.
    """

    index: Sizes
    order: Order
    budget: Budget
    length: Length
    start: int
    """Number of graphs drawn before this epoch."""
    world: int
    """Number of ranks."""
    graphs_of_a_block: float | None = None
    """Mean number of graphs per block if the order goes by the blocks of a stream. Each rank then
    shuffles within its own range of a window, which is several blocks long."""
    seed: int = 0
    """Seed of the shuffle within a window."""
    dealing: Dealing | None = None
    """Function that assigns the graphs of a step to ranks; by default at nearly equal cost."""

    @property
    def steps(self) -> int:
        """Number of steps; an estimate if batches are limited by atoms or edges.

        If time ends the epoch, the number of steps of one pass through the split.
        """
        if self.length.steps is not None:
            return self.length.steps
        return max(1, math.ceil((self.length.graphs or len(self.index)) / self.graphs_per_step))

    @cached_property
    def graphs_per_step(self) -> float:
        """Number of graphs per step over all ranks; an estimate if atoms or edges limit batches."""
        limits = self.budget.of_a_step
        if limits.keys() == {"graphs"}:
            return limits["graphs"]
        graphs = self.order.graphs(0, min(len(self.index), _SAMPLE))
        costs = Costs.of(_Part(self.index, graphs), self.budget)
        means = costs.values[:, ~costs.too_large].mean(axis=1) if not costs.too_large.all() else 1
        return float(max(1.0, (costs.limits / np.maximum(means, 1e-9)).min()))

    def windows(self, first: int = 0) -> Iterator[list[Step]]:
        """Yield the steps from ``first`` on, window by window; each window is planned on demand.

        Parameters
        ----------
        first
            Number of steps of the epoch that have been taken already.

        Raises
        ------
        InputError
            If a graph is above a limit and such graphs are refused; it names the graph.
        """
        taken = place = last = 0
        while not self._ended(taken, place):
            count = self._window(taken, place)
            if (
                self._is_of_graphs
                and (steps := -(-count // int(self.graphs_per_step))) <= first - taken
            ):
                taken, place = taken + steps, place + count
                continue
            steps, found = self._planned(place, count, self._wanted(taken), first - taken)
            if found:
                yield found
            taken, place = taken + steps, place + count
            last = place if steps else last
            if place - last >= len(self.index):
                if not self._any_fits:
                    raise InputError(
                        f"{self.index.name}: no graph that is drawn fits the limits of "
                        f"Training.Batching; raise them"
                    )
                last = place  # by chance, or because a data set is drawn seldom

    @cached_property
    def _any_fits(self) -> bool:
        """True if any graph fits the batch limits; checked only after a full pass yielded none."""
        graphs = np.arange(len(self.index))
        part = _Part(self.index, graphs)
        kept = kept_graphs(part, self.budget, Costs.of(part, self.budget), graphs)
        return bool(kept.any())

    @property
    def _is_of_graphs(self) -> bool:
        return self.budget.limits.keys() == {"graphs"}

    def _wanted(self, taken: int) -> int | None:
        return None if self.length.steps is None else self.length.steps - taken

    def _ended(self, taken: int, place: int) -> bool:
        steps, graphs = self.length.steps, self.length.graphs
        return (steps is not None and taken >= steps) or (graphs is not None and place >= graphs)

    def _window(self, taken: int, place: int) -> int:
        """Return the number of graphs in the next window."""
        each = self.graphs_per_step
        steps = max(1, min(_MOST_STEPS, int(_MOST_GRAPHS / each)))
        if self.graphs_of_a_block is not None:
            steps = max(steps, math.ceil(WINDOW * self.world * self.graphs_of_a_block / each))
        wanted = self._wanted(taken)
        if wanted is not None:
            spare = 0 if self._is_of_graphs or self.graphs_of_a_block is not None else _SPARE
            steps = min(steps, wanted + spare)
        count = math.ceil(steps * each)
        return count if self.length.graphs is None else min(count, self.length.graphs - place)

    def _planned(
        self, place: int, count: int, wanted: int | None, first: int
    ) -> tuple[int, list[Step]]:
        """Return how many of a window's steps belong to the epoch, and those from ``first`` on."""
        graphs = self.order.graphs(self.start + place, self.start + place + count)
        part = _Part(self.index, graphs)
        costs = Costs.of(part, self.budget)
        kept = kept_graphs(part, self.budget, costs, graphs)
        order, owner = np.arange(count), None
        if self.graphs_of_a_block is not None:
            order, owner = self._side_by_side(costs, place)
            kept, too_large = kept[order], costs.too_large[order]
        else:
            too_large = costs.too_large
        ordinary = np.flatnonzero(kept & ~too_large)
        alone = np.flatnonzero(kept & too_large)
        values = order[ordinary]
        bounds = cut(costs.values[:, values], costs.limits, costs.leading[values])
        # Steps are slices of the order, so that the next epoch can begin where one ends. A graph
        # with a step of its own splits the slice that it lies in.
        begins = ordinary[bounds[1:-1]] if len(ordinary) else ordinary
        edges = np.unique(np.concatenate([[0, count], begins, alone, alone + 1]))
        pieces = [piece for piece in np.split(np.arange(count), edges[1:-1]) if kept[piece].any()]
        steps = []
        for piece in pieces[max(0, first) : wanted]:
            mine = piece[kept[piece]]
            ranks = None if owner is None else owner[mine]
            if self.dealing is not None:
                ranks = self.dealing(graphs[order[mine]], costs.leading[order[mine]])
            step = dealt(part, costs, order[mine], ranks, self.world)
            # A window shuffled by rank cannot be continued: its unused graphs are skipped.
            drawn = place + (count if owner is not None else int(piece[-1]) + 1)
            steps.append(replace(step, order=graphs[step.order], drawn=drawn))
        return len(pieces[:wanted]), steps

    def _side_by_side(self, costs: Costs, place: int) -> tuple[Ints, Ints]:
        """Shuffle each rank's range of a streamed window; returns graphs and their ranks."""
        owner = ranges(costs.leading, self.world)
        rng = np.random.default_rng([self.seed, self.start + place])
        turn = np.lexsort((rng.random(len(owner)), owner))
        return side_by_side(costs, turn, owner[turn], self.world)


class _Part:
    """Sizes of a subset of a split's graphs."""

    def __init__(self, index: Sizes, graphs: Ints) -> None:
        self._index, self._graphs = index, graphs
        self.name = index.name

    @cached_property
    def n_atoms(self) -> Ints:
        return self._index.atoms_of(self._graphs)

    @cached_property
    def n_edges(self) -> Ints:
        return self._index.edges_of(self._graphs)

    def atoms_of(self, graphs: Ints) -> Ints:
        return self.n_atoms[graphs]

    def edges_of(self, graphs: Ints) -> Ints:
        return self.n_edges[graphs]

    def __len__(self) -> int:
        return len(self._graphs)
