"""Making a checkout of HydraGNN importable where MPI and pyg-lib are not installed.

HydraGNN needs torch-scatter, e3nn, scikit-learn and tensorboard. MPI is replaced by one process,
and so is the neighbour search of PyG, which needs pyg-lib. All other code runs as it is.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

edges: list[Tensor] = [torch.empty(2, 0, dtype=torch.int64)]
"""Edges of the batch that is computed, for a SchNet without edge features.

It looks for neighbours anew in every layer, by a function of PyG that needs pyg-lib. It is given
these instead, which costs it nothing; without periodic images they are what it would find.
"""


class CannotRun(Exception):
    """HydraGNN, or something it needs, is not there; the message says what."""


class OneProcess:
    """MPI communicator of one process."""

    def Get_rank(self) -> int:
        return 0

    def Get_size(self) -> int:
        return 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allreduce(self, value: Any, op: Any = None) -> Any:
        return value


def stand_in(name: str, **contents: Any) -> ModuleType:
    """Put a module with these contents where ``import`` looks."""
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def stand_in_for_mpi() -> None:
    """Have ``from mpi4py import MPI`` find communicators of one process."""
    one = OneProcess()
    mpi = stand_in("mpi4py.MPI", COMM_WORLD=one, COMM_SELF=one, MIN=None, SUM=None)
    stand_in("mpi4py", MPI=mpi)


def load(checkout: Path, device: str = "cpu") -> None:
    """Import HydraGNN in this process, with a process group of one rank.

    Parameters
    ----------
    checkout
        Root of a checkout of HydraGNN.
    device
        `cpu` hides all others, since it takes any that it finds.

    Raises
    ------
    CannotRun
        Where there is no such checkout or a package is missing.
    """
    if "hydragnn" in sys.modules:
        return
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    make_importable(checkout)
    try:
        import_module("hydragnn")
    except ImportError as error:
        raise CannotRun(f"HydraGNN cannot be imported ({error})") from None
    hand_over_edges()
    # Sums over ranks want a process group even for one.
    distributed: Any = torch.distributed  # its types leave out HashStore
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def make_importable(checkout: Path) -> None:
    """Have ``import hydragnn`` find a checkout, and one process where it looks for MPI.

    Raises
    ------
    CannotRun
        Where there is no such checkout.
    """
    if not (checkout / "hydragnn" / "models" / "create.py").is_file():
        raise CannotRun("--hydragnn names no checkout of HydraGNN; correct it")
    stand_in_for_mpi()
    sys.path.insert(0, str(checkout))


def hand_over_edges() -> None:
    """Have SchNet take :data:`edges` for what the search of PyG would find."""
    schnet: Any = import_module("torch_geometric.nn.models.schnet")
    schnet.radius_graph = lambda *_, **__: edges[0]


def made(network: Mapping[str, Any], *loaders: Any) -> tuple[dict[str, Any], Any, Any]:
    """Complete a `NeuralNetwork` section by the loaders' graphs; its model, and the optimiser.

    The model is wrapped in what has the attribute `module` that loops ask for, as there is no DDP.
    """
    update_config = function("utils.input_config_parsing.config_utils", "update_config")
    config = update_config({"NeuralNetwork": copy.deepcopy(dict(network))}, *loaders)
    section = config["NeuralNetwork"]
    model = function("models", "create_model_config")(section)
    select = function("utils.optimizer.optimizer", "select_optimizer")
    optimiser = select(model, section["Training"]["Optimizer"])
    return section, function("utils.distributed.distributed", "ModuleCompat")(model), optimiser


def function(module: str, name: str) -> Any:
    """A function or class of HydraGNN."""
    return getattr(import_module(f"hydragnn.{module}"), name)
