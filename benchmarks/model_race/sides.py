"""What races: something that trains and predicts, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from graph_store.race import Epoch

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.segment import SegmentSpec
from hydragnn_flow.training.trainer import Trainer
from model_race.networks import Case, network


class Side(Protocol):
    """A network, its optimiser, and the batches of an epoch ready in memory."""

    parameters: int
    """Numbers that are trained."""

    def train(self) -> Epoch:
        """Take the steps of an epoch, loss, gradient and update; yields each batch when done."""

    def predict(self) -> Epoch:
        """Predict for the same batches, forces included in a potential."""


class Ours:
    """The step that :class:`Trainer` takes, with clipping and averaging of the weights.

    Parameters
    ----------
    store
        Graphs to train on.
    case
        The network.
    batch_size
        Graphs in a step.

    Raises
    ------
    InputError
        Where this package has no such network.
    """

    def __init__(self, store: Path, case: Case, batch_size: int) -> None:
        section = network(case, batch_size)
        config = load_network(section)
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=str(store.with_suffix(".no-checkpoint")),
            store=str(store),
            network=section,
            until_epoch=1,
            rung=0,
            seed=0,
        )
        graphs = GraphStore.open(store, without=("y", "y_loc"))
        self._trainer = Trainer(spec, config, graphs, torch.device("cpu"), World())
        self._steps = self._trainer.plan(0)
        self._batches = list(self._trainer.batches(self._trainer.train, self._steps))
        self.parameters = sum(weight.numel() for weight in self._trainer.model.parameters())

    def train(self) -> Epoch:
        """See :class:`Side`."""
        self._trainer.model.train()
        for step, batch in zip(self._steps, self._batches, strict=True):
            self._trainer.train_step(step, batch)
            yield batch

    def predict(self) -> Epoch:
        """See :class:`Side`."""
        model = self._trainer.model.eval()
        for batch in self._batches:
            with torch.no_grad():
                model(batch)
            yield batch
