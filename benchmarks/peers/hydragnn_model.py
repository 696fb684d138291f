"""HydraGNN's own models and training step, from a checkout of HydraGNN.

HydraGNN needs torch-scatter, e3nn, scikit-learn and tensorboard. MPI gets a stand-in of one
process, and so does the neighbour search of PyG that needs pyg-lib. All other code runs as it is.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from graph_store.race import Epoch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader


class CannotRun(Exception):
    """HydraGNN, or something it needs, is not there; the message says what."""


class HydraGNNModel:
    """``create_model_config`` and ``train``, as HydraGNN's examples call them.

    The model is not wrapped in DDP, in which those examples put it for a single process too: the
    race is about the model.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    graphs
        What to train on, with HydraGNN's keys.
    network
        A `NeuralNetwork` section.

    Raises
    ------
    CannotRun
        Where there is no such checkout or a package is missing.
    """

    def __init__(self, checkout: Path, graphs: Sequence[Data], network: Mapping[str, Any]) -> None:
        _load(checkout)
        loader = DataLoader(list(graphs), batch_size=network["Training"]["batch_size"])
        configuring = import_module("hydragnn.utils.input_config_parsing.config_utils")
        config = {"NeuralNetwork": copy.deepcopy(dict(network))}
        with redirect_stderr(StringIO()):  # progress bars
            section = configuring.update_config(config, loader, loader, loader)["NeuralNetwork"]
        self._potential: bool = section["Architecture"]["enable_interatomic_potential"]
        model = import_module("hydragnn.models").create_model_config(section)
        optimiser = import_module("hydragnn.utils.optimizer.optimizer").select_optimizer
        self._optimiser = optimiser(model, section["Training"]["Optimizer"])
        # What gives a model the attribute `module` that `train` asks for where there is no DDP.
        wrap = import_module("hydragnn.utils.distributed.distributed").ModuleCompat
        self._model: Any = wrap(model)
        self._train: Callable[..., Any] = import_module("hydragnn.train").train
        # A potential has losses of the energy, the energy per atom and the forces.
        self._losses = 3 if self._potential else len(section["Variables_of_interest"]["type"])
        self._batches = list(loader)
        self.parameters = sum(weight.numel() for weight in model.parameters())

    def train(self) -> Epoch:
        """See :class:`model_race.sides.Side`."""
        for batch in self._batches:
            with redirect_stdout(StringIO()):
                self._train(
                    _Loader(self._fresh(batch)),
                    self._model,
                    self._optimiser,
                    verbosity=0,
                    num_tasks=self._losses,
                    compute_grad_energy=self._potential,
                )
            yield batch

    def predict(self) -> Epoch:
        """See :class:`model_race.sides.Side`."""
        self._model.eval()
        for batch in self._batches:
            data = self._fresh(batch)
            if self._potential:
                data.pos.requires_grad = True
                self._model.module.energy_force_loss(self._model(data), data, create_graph=False)
            else:
                with torch.no_grad():
                    self._model(data)
            yield batch

    def _fresh(self, batch: Batch) -> Batch:
        """The batch as a loader gives it: HydraGNN marks and replaces some of its tensors."""
        fresh = copy.copy(batch)
        fresh.pos = batch.pos.detach()
        _edges[0] = batch.edge_index
        return fresh


class _Loader:
    """A loader of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.dataset = [batch]

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter(self.dataset)


class _OneProcess:
    """What an MPI communicator of one process answers."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def allreduce(self, value: Any, op: Any = None) -> Any:
        return value


_edges: list[Tensor] = [torch.empty(2, 0, dtype=torch.int64)]


def _load(checkout: Path) -> None:
    """Make HydraGNN importable in this process."""
    if "hydragnn" in sys.modules:
        return
    if not (checkout / "hydragnn" / "models" / "create.py").is_file():
        raise CannotRun(f"{checkout} is no checkout of HydraGNN; correct --hydragnn")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # it takes any device it finds; the race is on the CPU
    mpi = ModuleType("mpi4py.MPI")
    vars(mpi).update(COMM_WORLD=_OneProcess(), COMM_SELF=_OneProcess(), MIN=None, SUM=None)
    package = ModuleType("mpi4py")
    vars(package)["MPI"] = mpi
    sys.modules |= {"mpi4py": package, "mpi4py.MPI": mpi}
    sys.path.insert(0, str(checkout))
    try:
        import_module("hydragnn")
    except ImportError as error:
        raise CannotRun(f"HydraGNN cannot be imported ({error})") from None
    # Its SchNet without edge features looks for neighbours in every layer, by a function of PyG
    # that needs pyg-lib. It is given the edges of the batch, which costs it nothing.
    schnet: Any = import_module("torch_geometric.nn.models.schnet")
    schnet.radius_graph = lambda *_, **__: _edges[0]
    # Sums over ranks want a process group even for one.
    distributed: Any = torch.distributed  # its types leave out HashStore
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
