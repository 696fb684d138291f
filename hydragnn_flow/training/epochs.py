"""The epochs of a training: whole passes, or parts of a budget."""

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
"""Graphs of a split beyond which an epoch is planned while it is trained."""


@dataclass(frozen=True, eq=False)
class WholeEpoch:
    """An epoch that was planned at once."""

    planned: Sequence[Step]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.planned)

    @property
    def graphs_per_step(self) -> float:
        """Mean number over all ranks."""
        return sum(step.graphs for step in self.planned) / len(self.planned)

    def windows(self, first: int = 0) -> Iterator[list[Step]]:
        """The steps from one on, all at once."""
        if first < len(self.planned):
            yield [*self.planned[first:]]


class Epochs:
    """Plans the epochs of a trial or member.

    Without a budget, and with graphs drawn in proportion, an epoch of a split of usual size is a
    shuffled pass of its own. All others are drawn from one endless order, each from where the one
    before it ended.

    Parameters
    ----------
    spec
        What is trained.
    train
        The training split.
    world
        Number of ranks.
    branch_names
        Names of the branches, in the order of their numbers, if the store has any.
    dealing
        Deals the graphs of a step to the ranks; at nearly equal cost if not given.

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
        """Whether they are drawn from an endless order."""
        self._order: Order
        if shares is not None:
            self._order = InTurns(train.branch_runs, shares, spec.seed, spec.bootstrap)
        elif self._blocks is not None:
            self._order = InBlocks(self._blocks, spec.seed, spec.bootstrap)
        else:
            self._order = Shuffled(len(train), spec.seed, spec.bootstrap)

    @property
    def seconds(self) -> float | None:
        """GCD time of an epoch's steps [s], where that is what ends it."""
        if self._spec.budget is None or self._spec.budget[0] != "seconds":
            return None
        return self._spec.budget[1] / self._spec.network.Training.num_epoch

    def plan(self, epoch: int, start: int, limits: Budget) -> WholeEpoch | DrawnEpoch:
        """The steps of an epoch.

        Parameters
        ----------
        epoch
            Counted from 0.
        start
            Graphs that the epochs before it have drawn; of no account for whole epochs.
        limits
            Of its steps.
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
    """What an epoch, counted from 0, has of a budget that some epochs divide evenly."""
    return size * (epoch + 1) // epochs - size * epoch // epochs
