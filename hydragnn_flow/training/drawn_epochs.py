"""Epochs drawn from an endless order, which are planned while they are trained.

Such an epoch is a number of steps, of graphs, or as many steps as time allows; the next one goes on
where it ended. It is planned in windows of steps one after the other: only the graphs of a window
are drawn, and only their sizes are read, so 100 steps of a hundred million graphs cost what 100
steps of a thousand do.
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

# Of a window: steps enough for readers to work ahead within it, and some megabytes to plan it.
_MOST_STEPS, _MOST_GRAPHS = 128, 2**18
# Graphs whose sizes tell how many a step holds.
_SAMPLE = 4096
# Steps of a window beyond the last one wanted, so that this one is as full as the others.
_SPARE = 8


@dataclass(frozen=True)
class Length:
    """Length of an epoch; where neither is given it ends when its time is up."""

    steps: int | None = None
    graphs: int | None = None


@dataclass(frozen=True, eq=False)
class DrawnEpoch:
    """An epoch drawn from an endless order.

    Seed, budget and the place where it starts decide its steps, on every number of ranks alike; in
    a stream, the number of ranks does too.
    """

    index: Sizes
    order: Order
    budget: Budget
    length: Length
    start: int
    """Graphs that were drawn before it."""
    world: int
    """Number of ranks."""
    graphs_of_a_block: float | None = None
    """Mean number, where the order goes by blocks of a stream. Each rank then has a range of a
    window to itself, some blocks long, and shuffles within it."""
    seed: int = 0
    """Of this shuffling."""
    dealing: Dealing | None = None
    """Deals the graphs of a step to the ranks; at nearly equal cost if not given."""

    @property
    def steps(self) -> int:
        """Number of steps, an estimate where batches are not limited by graphs alone.

        Where time ends the epoch, that of a pass through the split.
        """
        if self.length.steps is not None:
            return self.length.steps
        return max(1, math.ceil((self.length.graphs or len(self.index)) / self.graphs_per_step))

    @cached_property
    def graphs_per_step(self) -> float:
        """Graphs of a step over all ranks; without a limit of graphs alone, as many as fill it."""
        limits = self.budget.of_a_step
        if limits.keys() == {"graphs"}:
            return limits["graphs"]
        graphs = self.order.graphs(0, min(len(self.index), _SAMPLE))
        costs = Costs.of(_Part(self.index, graphs), self.budget)
        means = costs.values[:, ~costs.too_large].mean(axis=1) if not costs.too_large.all() else 1
        return float(max(1.0, (costs.limits / np.maximum(means, 1e-9)).min()))

    def windows(self, first: int = 0) -> Iterator[list[Step]]:
        """The steps from one on, window by window; each is planned when it is asked for.

        Parameters
        ----------
        first
            Steps of the epoch that have been taken.

        Raises
        ------
        InputError
            Naming a graph above the budget, if the budget refuses such graphs.
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
        """Whether a graph of the split can be trained on; asked where none has come for long."""
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
        """Graphs of the next window."""
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
        """Number of steps of a window that the epoch takes, and those from ``first`` on."""
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
        # Steps are pieces of the order, so that the next epoch can begin where one ends: a graph
        # that gets a step of its own divides the one that it lies in.
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
            # What is left of a window whose graphs were shuffled among the ranks is left out.
            drawn = place + (count if owner is not None else int(piece[-1]) + 1)
            steps.append(replace(step, order=graphs[step.order], drawn=drawn))
        return len(pieces[:wanted]), steps

    def _side_by_side(self, costs: Costs, place: int) -> tuple[Ints, Ints]:
        """A window of a stream, each rank's range of it shuffled, and the owners of its graphs."""
        owner = ranges(costs.leading, self.world)
        rng = np.random.default_rng([self.seed, self.start + place])
        turn = np.lexsort((rng.random(len(owner)), owner))
        return side_by_side(costs, turn, owner[turn], self.world)


class _Part:
    """Sizes of some graphs of a split."""

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
