"""Training with HydraGNN's own ``train_validate_test``, from a checkout of HydraGNN.

As its examples do (``examples/md17/md17_mlip.py``): ``create_dataloaders``, ``update_config``,
``create_model_config``, AdamW, ``ReduceLROnPlateau`` with their values, ``train_validate_test``.
The differences are to its advantage: the weights are those of the best validation loss, no test
split is evaluated after every epoch, one process needs no DDP, and a training that has become NaN
ends.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from peers.hydragnn_package import edges, function, load, made

_TEST_BATCH = 32


@dataclass
class Trained:
    """Outcome of a training."""

    model: Any
    """With the best weights, where there are any."""
    seconds: float
    """CPU time from before the first epoch to after the last [s], validation included."""
    epochs: int = 0
    best_epoch: int | None = None
    least: float = math.inf
    """Least validation loss."""
    best: dict[str, Tensor] = field(default_factory=dict)
    is_nan: bool = False
    """True if training ended because the validation loss was NaN."""


def train(
    checkout: Path,
    graphs: Mapping[str, Sequence[Data]],
    network: Mapping[str, Any],
    seconds: float,
    seed: int,
) -> Trained:
    """Train for a CPU time, whole epochs, the last one of which passes it.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    graphs
        With HydraGNN's keys, by split: `trainset`, `valset`, `testset`.
    network
        A `NeuralNetwork` section.
    seconds
        CPU time of all threads.
    seed
        Seed of the weights and of the order of graphs, which HydraGNN itself begins with 0 always.

    Raises
    ------
    CannotRun
        Where there is no such checkout or a package is missing.
    """
    load(checkout)
    with TemporaryDirectory() as folder, _quietly_in(folder):
        loaders = function("preprocess", "create_dataloaders")(
            *(graphs[split] for split in ("trainset", "valset", "testset")),
            network["Training"]["batch_size"],
        )
        loaders[0].sampler.seed = seed
        set_seed = torch.manual_seed
        # HydraGNN seeds weights with 0.
        with patch.object(torch, "manual_seed", lambda _: set_seed(seed)):
            section, wrapped, optimiser = made(network, *loaders)
        watch = _Watch(optimiser, wrapped, seconds)
        nothing = DataLoader([], batch_size=1)
        with suppress(_Over):
            function("train", "train_validate_test")(
                wrapped,
                optimiser,
                _Handed(loaders[0]),
                _Handed(loaders[1]),
                nothing,
                None,
                watch,
                section,
                "benchmark",
                verbosity=0,
                compute_grad_energy=section["Architecture"]["enable_interatomic_potential"],
            )
    trained = watch.trained()
    if trained.best:
        wrapped.load_state_dict(trained.best)
    return trained


def predict(model: Any, graphs: Sequence[Data], potential: bool) -> list[NDArray[np.float64]]:
    """Outputs of a model for graphs, in their order.

    Returns
    -------
    list of array
        The energies [n_graphs, 1] and forces [n_atoms, 3] of a potential, otherwise the output of
        each head.
    """
    model.eval()
    parts: list[list[Tensor]] = []
    for batch in DataLoader(list(graphs), batch_size=_TEST_BATCH):
        edges[0] = batch.edge_index
        parts.append(_energy_and_forces(model, batch) if potential else _outputs(model, batch))
    return [
        torch.cat(of_head).double().numpy().reshape(-1, of_head[0].shape[-1])
        for of_head in zip(*parts, strict=True)
    ]


def _energy_and_forces(model: nn.Module, batch: Batch) -> list[Tensor]:
    batch.pos.requires_grad_()
    of_atoms = model(batch)[0]
    energies = of_atoms.new_zeros(batch.num_graphs, 1).index_add(0, batch.batch, of_atoms)
    (gradient,) = torch.autograd.grad(energies.sum(), batch.pos)
    return [energies.detach(), -gradient]


def _outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    with torch.no_grad():
        return list(model(batch))


class _Over(Exception):
    """Enough has been trained."""


class _Watch:
    """A scheduler, which is what HydraGNN's loop hands each validation loss to.

    It keeps the best weights, and ends the loop when its time is over or the loss is NaN.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, model: Any, seconds: float) -> None:
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimiser, mode="min", factor=0.5, patience=5, min_lr=0.00001
        )
        self._found, self._seconds = Trained(model, 0.0), seconds
        self._start = time.process_time()

    def step(self, val_loss: Tensor) -> None:
        """Called after each epoch."""
        found, loss = self._found, float(val_loss)
        found.epochs += 1
        if math.isnan(loss):
            found.is_nan = True
            raise _Over
        if loss < found.least:
            found.least, found.best_epoch = loss, found.epochs
            found.best = copy.deepcopy(found.model.state_dict())
        self._scheduler.step(loss)
        if time.process_time() - self._start >= self._seconds:
            raise _Over

    def trained(self) -> Trained:
        """Outcome up to now."""
        self._found.seconds = time.process_time() - self._start
        return self._found


class _Handed:
    """A loader whose batch's edges are there for SchNet's neighbour search."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            edges[0] = batch.edge_index
            yield batch


@contextmanager
def _quietly_in(folder: str) -> Iterator[None]:
    """HydraGNN writes logs where it is, and prints."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        os.chdir(before)
