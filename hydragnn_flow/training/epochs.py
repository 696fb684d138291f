"""Epochs of a training: windows of an endless order of graphs, planned from the index alone.

An epoch is a number of graphs, of steps, or as many steps as time allows; a whole pass is one, too.
It is planned window by window while it is trained: only the graphs of a window are drawn, and only
their sizes are read, so 100 steps of a hundred million graphs cost what 100 steps of a thousand do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.batching import (
    Budget,
    Costs,
    Dealing,
    Ints,
    Sizes,
    Step,
    graphs_kept,
    ranges,
    side_by_side,
    steps_of,
)
from hydragnn_flow.training.orders import InBlocks, InTurns, Order, Shuffled
from hydragnn_flow.training.sampling import shares_of

BLOCKS = 16
"""Blocks among which a rank shuffles its part of a stream: of 4 MB, 64 MB of memory."""
# Graphs of a window: some megabytes to plan it. Steps of one where it is not known how many follow.
_MOST_GRAPHS, _STEPS = 2**18, 128
# Steps of a window beyond the last one wanted, so that this one is as full as the others.
_SPARE = 8
# Graphs whose sizes tell how many a step holds.
_SAMPLE = 4096


@dataclass(frozen=True, eq=False)
class Epoch:
    """A part of an endless order, cut into steps.

    Order, budget and the place where it starts decide its steps, on every number of ranks alike; in
    a stream, the number of ranks does too.
    """

    index: Sizes
    order: Order
    budget: Budget
    start: int
    """Graphs that were drawn before it."""
    world: int
    """Number of ranks."""
    n_graphs: int | None = None
    """Graphs that it draws."""
    n_steps: int | None = None
    """Steps that it takes. Where neither is given it ends when its time is up."""
    blocks: Ints | None = None
    """Bounds of the blocks of a stream, in the order of which each rank has ranges of its own that
    are shuffled among :data:`BLOCKS` blocks, [n_blocks + 1]."""
    seed: int = 0
    """Seed of this shuffling."""
    dealing: Dealing | None = None
    """Deals the graphs of a step to the ranks; at nearly equal cost if not given."""

    @cached_property
    def steps(self) -> int:
        """Number of steps, an estimate where it takes several windows to tell.

        Where time ends the epoch, that of a pass through the split.
        """
        if self.n_steps is not None:
            return self.n_steps
        graphs = self.n_graphs or len(self.index)
        is_one_window = self.n_graphs is not None and graphs <= _MOST_GRAPHS
        if is_one_window and self.budget.limits.keys() != {"graphs"}:
            return len(self._first[1])
        return max(1, math.ceil(graphs / self._graphs_that_fit))

    @property
    def graphs_per_step(self) -> float:
        """Graphs of a step over all ranks."""
        if self.n_graphs is None:
            return self._graphs_that_fit
        return self.n_graphs / max(self.steps, 1)

    @cached_property
    def _graphs_that_fit(self) -> float:
        """Graphs of a full step; without a limit of graphs alone, as some of the split say."""
        if self.budget.limits.keys() == {"graphs"}:
            return self.budget.of_a_step["graphs"]
        graphs = self.order.graphs(0, min(len(self.index), _SAMPLE))
        costs = Costs.of(self.index, self.budget, graphs)
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
            Naming a graph above the budget, if the budget refuses such graphs, or none is left.
        """
        taken = place = last = 0
        while not self._has_ended(taken, place):
            count, steps = self._window(taken, place) if place else self._first
            if left := steps[max(0, first - taken) :]:
                yield left
            taken, place = taken + len(steps), place + count
            if steps:
                last = place
            elif place - last >= len(self.index) or self._has_ended(taken, place):
                # Without a step for long: by chance, or because no graph fits.
                graphs_kept(self.index, self.budget)
                last = place

    def _has_ended(self, taken: int, place: int) -> bool:
        graphs, steps = self.n_graphs, self.n_steps
        return (graphs is not None and place >= graphs) or (steps is not None and taken >= steps)

    @cached_property
    def _first(self) -> tuple[int, list[Step]]:
        return self._window(0, 0)

    def _window(self, taken: int, place: int) -> tuple[int, list[Step]]:
        """Number of graphs of the next window, and its steps."""
        count = self._size(taken, place)
        start = self.start + place
        graphs = self.order.graphs(start, start + count)
        costs = Costs.of(self.index, self.budget, graphs)
        kept, owner = costs.kept(self.index.name, self.budget), None
        order = np.flatnonzero(kept)
        if self.blocks is not None:
            order, owner = self._of_ranks(self.blocks, costs, start)
            order, owner = order[kept[order]], owner[kept[order]]
        # The next epoch begins where the steps of this one end, or with what follows its graphs.
        divides = self.n_graphs is None
        steps = steps_of(costs, order, owner, self.world, self.dealing, divides=divides)
        if self.n_steps is not None:
            steps = steps[: self.n_steps - taken]
        # What is left of a window whose graphs were shuffled among the ranks is left out.
        ends = [step.drawn if owner is None else count for step in steps]
        return count, [replace(s, drawn=place + end) for s, end in zip(steps, ends, strict=True)]

    def _size(self, taken: int, place: int) -> int:
        """Number of graphs of the next window."""
        if self.n_graphs is not None:  # so that no window, and no step, is a small remainder
            left = self.n_graphs - place
            return -(-left // -(-left // _MOST_GRAPHS))
        each = self._graphs_that_fit
        steps = max(1, min(_STEPS, int(_MOST_GRAPHS / each)))
        if self.blocks is not None:
            of_block = len(self.index) / max(len(self.blocks) - 1, 1)
            steps = max(steps, math.ceil(BLOCKS * self.world * of_block / each))
        if self.n_steps is not None:
            steps = min(steps, self.n_steps - taken + (_SPARE if self.blocks is None else 0))
        return math.ceil(steps * each)

    def _of_ranks(self, blocks: Ints, costs: Costs, start: int) -> tuple[Ints, Ints]:
        """Places in a window of a stream, from shuffled ranges of the ranks, and their ranks."""
        block = np.searchsorted(blocks, costs.graphs, side="right")
        number = np.cumsum(np.diff(block, prepend=block[:1]) != 0)
        random = np.random.default_rng([self.seed, start, 0, 1]).random(len(block))
        owner = ranges(costs.leading, self.world)
        turn = np.lexsort((number + BLOCKS * random, owner))
        return side_by_side(costs, turn, owner[turn], self.world)


def plan_epoch(
    index: Sizes,
    budget: Budget,
    seed: int,
    epoch: int,
    world: int,
    blocks: Ints | None = None,
    bootstrap: bool = False,
    dealing: Dealing | None = None,
) -> list[Step]:
    """Plan the steps of a whole pass through a split at once.

    Parameters
    ----------
    index, budget, world, blocks, dealing
        Arguments of :class:`Epoch`.
    seed, epoch
        They alone decide the order.
    bootstrap
        Whether as many graphs are drawn with replacement by the seed, the same in every epoch, so
        that about 63 % of them are there at all.

    Raises
    ------
    InputError
        Naming the graph above the budget, if the budget refuses such graphs.
    """
    size = len(index)
    order = Shuffled(size, seed, bootstrap) if blocks is None else InBlocks(blocks, seed, bootstrap)
    planned = Epoch(
        *(index, order, budget, epoch * size, world),
        n_graphs=size,
        blocks=blocks,
        seed=seed,
        dealing=dealing,
    )
    return [step for window in planned.windows() for step in window]


class Epochs:
    """Plans the epochs of a trial or member, each from where the one before it ended.

    Parameters
    ----------
    spec
        Trial or member that is trained.
    train
        Training split of the store.
    world
        Number of ranks of the segment.
    branch_names
        Names of the branches by number, if the store has any.
    dealing
        Function that assigns the graphs of a step to ranks; by default at nearly equal cost.

    Raises
    ------
    InputError
        If `data.sampling` does not suit the branches.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        train: GraphSplit,
        world: int,
        branch_names: Sequence[str] = (),
        dealing: Dealing | None = None,
    ) -> None:
        self._spec, self._train, self._world = spec, train, world
        self._dealing = dealing
        self._blocks = train.block_bounds if train.mode == "stream" else None
        self._order: Order
        if spec.sampling != "proportional":
            shares = shares_of(spec.sampling, train.branch_runs.graphs, branch_names)
            assert shares is not None
            self._order = InTurns(train.branch_runs, shares, spec.seed, spec.bootstrap)
        elif self._blocks is not None:
            self._order = InBlocks(self._blocks, spec.seed, spec.bootstrap)
        else:
            self._order = Shuffled(len(train), spec.seed, spec.bootstrap)

    @property
    def seconds(self) -> float | None:
        """GCD time of an epoch's steps [s] if time limits the training; otherwise None."""
        if self._spec.budget is None or self._spec.budget[0] != "seconds":
            return None
        return self._spec.budget[1] / self._spec.network.Training.num_epoch

    def plan(self, epoch: int, start: int, limits: Budget) -> Epoch:
        """The steps of an epoch.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0.
        start
            Graphs that the epochs before it have drawn, where it is not known by its number.
        limits
            Limits of its steps.
        """
        unit, size = self._spec.budget or ("pass", len(self._train))
        parts = 1 if unit == "pass" else self._spec.network.Training.num_epoch
        number = part_of(int(size), parts, epoch)
        if unit in ("pass", "samples"):
            start = int(size) * epoch // parts
        return Epoch(
            *(self._train, self._order, limits, start, self._world),
            n_graphs=number if unit in ("pass", "samples") else None,
            n_steps=number if unit == "steps" else None,
            blocks=self._blocks,
            seed=self._spec.seed,
            dealing=self._dealing,
        )


def part_of(size: int, epochs: int, epoch: int) -> int:
    """Share of an epoch, counted from 0, in a budget that some epochs divide evenly."""
    return size * (epoch + 1) // epochs - size * epoch // epochs
