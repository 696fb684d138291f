"""Epochs of a training: full passes through the data, or fractions of its total length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hydragnn_flow.data import GraphSplit
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.batching import Budget, Dealing, Step, plan_epoch
from hydragnn_flow.training.drawn_epochs import DrawnEpoch, Length
from hydragnn_flow.training.orders import InBlocks, InTurns, Order, Shuffled
from hydragnn_flow.training.sampling import shares_of

LARGE = 1_000_000
"""Number of graphs above which an epoch is planned window by window while it is trained."""


@dataclass(frozen=True, eq=False)
class WholeEpoch:
    """Full pass through the data, planned at once."""

    planned: Sequence[Step]

    @property
    def steps(self) -> int:
        """Number of steps in the epoch."""
        return len(self.planned)

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs per step, over all ranks."""
        return sum(step.graphs for step in self.planned) / len(self.planned)

    def windows(self, first: int = 0) -> Iterator[list[Step]]:
        """Yield the steps from ``first`` on, as one window."""
        if first < len(self.planned):
            yield [*self.planned[first:]]


class Epochs:
    """Plans the epochs of a trial or member.

    An epoch is a shuffled pass through the training split, unless the training length is limited,
    branches are drawn in other proportions, or the split is large. Then all epochs are drawn from
    one endless order, each continuing where the last one ended.

    Parameters
    ----------
    spec
        The segment that is trained.
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
        shares = None
        if spec.sampling != "proportional":
            shares = shares_of(spec.sampling, train.branch_runs.graphs, branch_names)
        self.are_drawn = spec.budget is not None or shares is not None or len(train) > LARGE
        """True if epochs are drawn from an endless order."""
        self._order: Order
        if shares is not None:
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

    def plan(self, epoch: int, start: int, limits: Budget) -> WholeEpoch | DrawnEpoch:
        """Return the plan of an epoch.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0.
        start
            Number of graphs drawn by earlier epochs; ignored when an epoch is a full pass.
        limits
            Limits of each step.
        """
        spec, train = self._spec, self._train
        if not self.are_drawn:
            steps = plan_epoch(
                *(train, limits, spec.seed, epoch, self._world, self._blocks),
                bootstrap=spec.bootstrap,
                dealing=self._dealing,
            )
            return WholeEpoch(steps)
        each = None
        if self._blocks is not None:
            each = len(train) / max(len(self._blocks) - 1, 1)
        length = self._length(epoch)
        return DrawnEpoch(
            *(train, self._order, limits, length, start, self._world, each, spec.seed),
            dealing=self._dealing,
        )

    def _length(self, epoch: int) -> Length:
        if self._spec.budget is None:
            return Length(graphs=len(self._train))
        unit, size = self._spec.budget
        if unit == "seconds":
            return Length()
        number = part_of(int(size), self._spec.network.Training.num_epoch, epoch)
        return Length(steps=number) if unit == "steps" else Length(graphs=number)


def part_of(size: int, epochs: int, epoch: int) -> int:
    """Return the share of one epoch, counted from 0, in a total divided evenly among epochs."""
    return size * (epoch + 1) // epochs - size * epoch // epochs
