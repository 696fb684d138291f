"""Epochs of a training: windows of an endless order of graphs, planned from the index alone.

An epoch is limited by a number of graphs, such as a whole pass, or by a number of steps. It is
planned window by window during training: only the graphs of a window are drawn, and only their
sizes are read, so 100 steps of a hundred million graphs cost what 100 steps of a thousand do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.plan.batching import (
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
from hydragnn_flow.training.plan.sampling import InBlocks, InTurns, Order, Shuffled, shares_of

BLOCKS = 16
"""Number of blocks (groups of graphs in a shard) among which a rank shuffles the graphs that it
streams. Sixteen blocks of 4 MB take 64 MB of memory."""
# Most graphs of a window, some megabytes to plan it, and its steps if the end is not known.
_MOST_GRAPHS, _STEPS = 2**18, 128


@dataclass(frozen=True, eq=False)
class Epoch:
    """Epoch of a training: a section of an endless shuffled order of graphs, cut into steps.

    Order, batch limits and start determine the graphs of each step. In a streamed split, the graphs
    of a step also depend on the number of ranks.
    """

    index: Sizes
    order: Order
    budget: Budget
    start: int
    """Position in ``order`` at which the epoch starts: the number of graphs drawn before."""
    world: int
    """Number of ranks."""
    n_graphs: int | None = None
    """Number of graphs to draw, if graphs limit the epoch."""
    n_steps: int | None = None
    """Number of steps, if steps limit the epoch."""
    blocks: Ints | None = None
    """First graph of each block (group of graphs in a shard) of a streamed split, and the end of
    the last block, [n_blocks + 1]. Each rank reads its own range of blocks, and shuffles graphs
    among :data:`BLOCKS` blocks. None if the split is not streamed."""
    seed: int = 0
    """Seed of the shuffle among blocks."""
    dealing: Dealing | None = None
    """Function that assigns the graphs of a step to ranks; by default at nearly equal work."""

    @cached_property
    def steps(self) -> int:
        """Number of training steps in the epoch; an estimate if it is planned in several windows.

        A window is a part that is planned at once.
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
        """Mean number of graphs in a training step, over all ranks.

        It is an estimate unless the whole epoch is planned at once.
        """
        if self.n_graphs is None or self.n_graphs > _MOST_GRAPHS:
            return self._graphs_that_fit
        steps = self._first[1]
        return sum(step.graphs for step in steps) / max(len(steps), 1)

    @cached_property
    def _graphs_that_fit(self) -> float:
        """Number of graphs in a full step; an estimate unless graphs alone are limited."""
        if self.budget.limits.keys() == {"graphs"}:
            return self.budget.of_a_step["graphs"]
        # Number of graphs whose sizes show how many fit into a step.
        graphs = self.order.graphs(0, min(len(self.index), 4096))
        costs = Costs.of(self.index, self.budget, graphs)
        means = costs.values[:, ~costs.too_large].mean(axis=1) if not costs.too_large.all() else 1
        return float(max(1.0, (costs.limits / np.maximum(means, 1e-9)).min()))

    def windows(self, first: int = 0) -> Iterator[list[Step]]:
        """Yield the epoch's steps in lists, one for each window (part that is planned at once).

        A window is planned when its list is asked for.

        Parameters
        ----------
        first
            Number of steps at the beginning of the epoch to skip, as they have been taken.

        Raises
        ------
        InputError
            If a graph exceeds the batch limits and they refuse such graphs, or no graph is left.
        """
        taken = place = last = 0
        while not self._has_ended(taken, place):
            if self.budget.limits.keys() == {"graphs"} and first > taken:
                # Every graph is in a step, so those of a window that is skipped are only counted.
                count = self._size(taken, place)
                number = -(-count // self.budget.of_a_step["graphs"])
                if taken + number <= first:
                    taken, place, last = taken + number, place + count, place + count
                    continue
            count, steps = self._window(taken, place) if place else self._first
            if left := steps[max(0, first - taken) :]:
                yield left
            taken, place = taken + len(steps), place + count
            if steps:
                last = place
            elif place - last >= len(self.index) or self._has_ended(taken, place):
                # A full pass yielded no step: by chance, or because no graph fits.
                graphs_kept(self.index, self.budget)
                last = place

    def _has_ended(self, taken: int, place: int) -> bool:
        graphs, steps = self.n_graphs, self.n_steps
        return (graphs is not None and place >= graphs) or (steps is not None and taken >= steps)

    @cached_property
    def _first(self) -> tuple[int, list[Step]]:
        return self._window(0, 0)

    def _window(self, taken: int, place: int) -> tuple[int, list[Step]]:
        """Plan the next window; return its number of graphs and its steps.

        It follows the first ``taken`` steps and ``place`` graphs of the epoch.
        """
        count = self._size(taken, place)
        start = self.start + place
        graphs = self.order.graphs(start, start + count)
        costs = Costs.of(self.index, self.budget, graphs)
        kept, owner = costs.kept(self.index, self.budget), None
        order = np.flatnonzero(kept)
        if self.blocks is not None:
            order, owner = self._of_ranks(self.blocks, costs, start)
            order, owner = order[kept[order]], owner[kept[order]]
        # The next epoch begins after the last step, or after the graphs that limit this one.
        divides = self.n_graphs is None
        steps = steps_of(costs, order, owner, self.world, self.dealing, divides=divides)
        if self.n_steps is not None:
            steps = steps[: self.n_steps - taken]
        # The rest of a window whose graphs were shuffled among the ranks is dropped.
        ends = [step.drawn if owner is None else count for step in steps]
        return count, [replace(s, drawn=place + end) for s, end in zip(steps, ends, strict=True)]

    def _size(self, taken: int, place: int) -> int:
        """Return the number of graphs in the next window; arguments are those of `_window`."""
        of_blocks = 0  # in which every rank has its blocks to shuffle
        if self.blocks is not None:
            of_block = len(self.index) / max(len(self.blocks) - 1, 1)
            of_blocks = math.ceil(BLOCKS * self.world * of_block)
        if self.n_graphs is not None:  # so that no window, and no step, is a small remainder
            left = self.n_graphs - place
            return -(-left // -(-left // max(_MOST_GRAPHS, of_blocks)))
        each = self._graphs_that_fit
        steps = max(1, min(_STEPS, int(_MOST_GRAPHS / each)), math.ceil(of_blocks / each))
        if self.n_steps is not None:
            # Steps planned beyond the last one wanted, so that it is as full as the others.
            steps = min(steps, self.n_steps - taken + (8 if self.blocks is None else 0))
        return math.ceil(steps * each)

    def _of_ranks(self, blocks: Ints, costs: Costs, start: int) -> tuple[Ints, Ints]:
        """Return a shuffled order of the graphs of a streamed window, and the rank of each graph.

        The order has indices into ``costs``, [n_graphs] like the ranks. Each rank gets one range of
        the window, and its graphs are shuffled within. ``start`` is the window's position in the
        endless order of graphs; the shuffle depends on it.
        """
        block = np.searchsorted(blocks, costs.graphs, side="right")
        number = np.cumsum(np.diff(block, prepend=block[:1]) != 0)
        random = np.random.default_rng([self.seed, start, 0, 1]).random(len(block))
        owner = ranges(costs.work, self.world)
        turn = np.lexsort((number + BLOCKS * random, owner))
        return side_by_side(costs, turn, owner[turn], self.world)


class Epochs:
    """Planner of a trial's or member's epochs: divides its graphs into epochs and steps.

    Parameters
    ----------
    spec
        Segment (job) that trains the trial or member.
    train
        Training split of the store.
    world
        Number of ranks of the segment.
    branch_names
        Name of each branch (data set), in the order of their indices; empty if they have none.
    dealing
        Function that assigns the graphs of a step to ranks; by default at nearly equal work.

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
        if spec.epochs.sampling != "proportional":
            shares = shares_of(spec.epochs.sampling, train.branch_runs.graphs, branch_names)
            assert shares is not None
            self._order = InTurns(train.branch_runs, shares, spec.seed, spec.epochs.bootstrap)
        elif self._blocks is not None:
            self._order = InBlocks(self._blocks, spec.seed, spec.epochs.bootstrap)
        else:
            self._order = Shuffled(len(train), spec.seed, spec.epochs.bootstrap)

    def plan(self, epoch: int, start: int, limits: Budget) -> Epoch:
        """Return the plan of one epoch: which graphs each step has, and which rank computes them.

        Parameters
        ----------
        epoch
            Index of the epoch, from 0.
        start
            Number of graphs drawn by earlier epochs; used only if steps limit epochs.
        limits
            Limits of a batch, and number of batches per step.
        """
        unit, size = self._spec.epochs.budget or ("pass", len(self._train))
        parts = 1 if unit == "pass" else self._spec.network.Training.num_epoch
        number = part_of(int(size), parts, epoch)
        if unit != "steps":
            start = int(size) * epoch // parts
        return Epoch(
            *(self._train, self._order, limits, start, self._world),
            n_graphs=None if unit == "steps" else number,
            n_steps=number if unit == "steps" else None,
            blocks=self._blocks,
            seed=self._spec.seed,
            dealing=self._dealing,
        )


def part_of(size: int, epochs: int, epoch: int) -> int:
    """Return how many of ``size`` items (graphs or steps) one epoch gets in an even division.

    ``epochs`` is the number of epochs, ``epoch`` the index of this epoch, from 0.
    """
    return size * (epoch + 1) // epochs - size * epoch // epochs
