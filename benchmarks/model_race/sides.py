"""Sides of the race: each trains, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch_geometric.data import Batch

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.segment import EpochPlan, SegmentSpec, StoreAccess
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.monitor import Stopped, TrainingMonitor
from hydragnn_flow.training.plan.batching import Step
from hydragnn_flow.training.trainer import Trainer
from model_race.networks import Case, network

CPU = torch.device("cpu")
# Of the one epoch that a race is; the time ends it.
_STEPS = 100_000


class Side(Protocol):
    """A network, its optimiser, and some batches ready in memory, taken one after the other."""

    def train(self, seconds: float) -> int:
        """Take steps (loss, gradient, update) for a number of CPU-seconds; at least one.

        Returns
        -------
        int
            Graphs of these steps.
        """


class Ours:
    """The epoch of :class:`Trainer`, with clipping, averaging of the weights, and its looks.

    Parameters
    ----------
    store
        Graphs to train on.
    case
        The network.
    batch_size
        Graphs in a step.
    device
        Where to compute; the batches are there.
    training
        More keys of `Training`.

    Raises
    ------
    InputError
        Where this package has no such network.
    """

    def __init__(
        self, store: Path, case: Case, batch_size: int, device: torch.device = CPU, **training: Any
    ) -> None:
        section = network(case, batch_size)
        section["Training"] |= training
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=str(store.with_suffix(".no-checkpoint")),
            store=StoreAccess(path=str(store)),
            network=load_network(section),
            epochs=EpochPlan(until_epoch=_STEPS),  # enough for a device to record steps
            rung=0,
            seed=0,
        )
        graphs = GraphStore.open(store, without=("y", "y_loc"))
        self.trainer = self._trainer = _InMemory(spec, graphs, device, World())
        self._trainer.keep()

    def train(self, seconds: float) -> int:
        """See :class:`Side`."""
        trainer, start = self._trainer, time.process_time()
        first = trainer.progress.step

        def is_over() -> bool:
            return trainer.progress.step > first and time.process_time() - start >= seconds

        monitor = TrainingMonitor(trainer.world, trainer.device, None, is_over)
        with suppress(Stopped):
            trainer._train_epoch(monitor)
        return sum(step.graphs for step in trainer.plan(0)[first : trainer.progress.step])

    def step(self) -> None:
        """Take one step, and do not look at its loss."""
        (step, *_), (batch, *_) = self._trainer.plan(0), self._trainer.kept
        self._trainer.model.train()
        self._trainer.train_step(step, batch)


class _InMemory(Trainer):
    """A trainer of one long epoch, whose batches are in memory already."""

    kept: Sequence[Batch] = ()

    def keep(self) -> None:
        """Read an epoch, which is what there is from here on."""
        steps = self.plan(0)
        self.kept = [piece for (piece,) in self.micro_batches(steps)]
        whole = self.epochs.plan(0, 0, self.budget)
        epoch = replace(whole, n_graphs=None, n_steps=_STEPS)
        vars(epoch)["_first"] = 0, [*islice(cycle(steps), _STEPS)]  # planned once, not in each turn
        self.epochs.plan = lambda *_: epoch  # type: ignore[method-assign]

    def micro_batches(self, steps: Sequence[Step]) -> Generator[list[Batch], None, None]:
        """The batches in memory, over and over."""
        if not self.kept:
            yield from super().micro_batches(steps)
        else:
            yield from ([batch] for batch in islice(cycle(self.kept), len(steps)))
