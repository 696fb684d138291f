"""HydraGNN's own models and training step, from a checkout of HydraGNN."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from peers.hydragnn_package import edges, function, load, made

CPU = torch.device("cpu")


class HydraGNNModel:
    """``create_model_config`` and ``train``, as HydraGNN's examples call them.

    The model is not wrapped in DDP, in which those examples put it for a single process too: the
    race is about the model.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    graphs
        Graphs to train on, with HydraGNN's keys.
    network
        A `NeuralNetwork` section.
    device
        Where to compute; the batches are there.

    Raises
    ------
    CannotRun
        Where there is no such checkout or a package is missing.
    """

    def __init__(
        self,
        checkout: Path,
        graphs: Sequence[Data],
        network: Mapping[str, Any],
        device: torch.device = CPU,
    ) -> None:
        load(checkout, device.type)
        loader = DataLoader(list(graphs), batch_size=network["Training"]["batch_size"])
        with redirect_stderr(StringIO()):  # progress bars
            section, self._model, self._optimiser = made(network, loader, loader, loader)
        self._potential: bool = section["Architecture"]["enable_interatomic_potential"]
        self._train: Callable[..., Any] = function("train", "train")
        # A potential has losses of the energy, the energy per atom and the forces.
        self._losses = 3 if self._potential else len(section["Variables_of_interest"]["type"])
        self._batches = [batch.to(device) for batch in loader]

    def train(self, seconds: float) -> int:
        """See :class:`model_race.sides.Side`: one call of ``train``, as for one long epoch."""
        loader = _Loader(self._endless(), seconds)
        with redirect_stdout(StringIO()):
            self._train(
                loader,
                self._model,
                self._optimiser,
                verbosity=0,
                num_tasks=self._losses,
                compute_grad_energy=self._potential,
            )
        return loader.graphs

    def _endless(self) -> Iterator[Batch]:
        """The batches as a loader gives them: HydraGNN marks and replaces some of their tensors."""
        while True:
            for batch in self._batches:
                fresh = copy.copy(batch)
                fresh.pos = batch.pos.detach()
                edges[0] = batch.edge_index
                yield fresh


class _Loader:
    """Gives batches until its CPU-seconds have passed; at least one."""

    def __init__(self, batches: Iterator[Batch], seconds: float) -> None:
        self._batches, self._seconds = batches, seconds
        self.graphs = 0
        self.dataset: list[Data] = []  # asked for its DDStore, which it has not

    def __len__(self) -> int:
        return 1_000_000_000

    def __iter__(self) -> Iterator[Batch]:
        start = time.process_time()
        while self.graphs == 0 or time.process_time() - start < self._seconds:
            batch = next(self._batches)
            self.graphs += batch.num_graphs
            yield batch
