"""Both sides of the contest: ours in a process of its own, a peer's in its environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from model_accuracy.ours import CpuClock, train_network
from model_accuracy.outcome import Outcome
from model_accuracy.sets import CUTOFF
from peers.hydragnn_package import CannotRun
from results.code import REPOSITORY

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.training.schedules import Schedule, decay_factor

SET = "acac"
_BENCHMARKS = REPOSITORY / "benchmarks"
_SPLITS = ("trainset", "valset", "testset")
# Fine enough for a cosine.
_PARTS = 10_000


@dataclass(frozen=True)
class Pair:
    """A network of ours and the peer's of the same architecture."""

    mpnn_type: str
    peer: str
    """Name of its package."""
    module: str
    """The peer's, beside this one."""
    architecture: Mapping[str, Any]
    """Ours, besides what all have."""
    learning_rate: float
    """The largest of ours."""


PAIRS = (
    Pair(
        "PAINN",
        "schnetpack",
        "schnetpack_painn",
        {"num_conv_layers": 3, "num_radial": 6},
        3e-3,
    ),
    Pair(
        "MACE",
        "mace-torch",
        "mace_torch",
        {
            "num_conv_layers": 2,
            "num_radial": 8,
            "max_ell": 2,
            "node_max_ell": 1,
            "correlation": 2,
        },
        1e-2,
    ),
)


def network(pair: Pair) -> NetworkConfig:
    """Our configuration, trained for as long as there is CPU time."""
    return load_network(
        {
            "Architecture": {
                "mpnn_type": pair.mpnn_type,
                "hidden_dim": 64,
                "radius": CUTOFF,
                "activation_function": "silu",
                "enable_interatomic_potential": True,
                "energy_peratom_weight": 5.0,
                "force_weight": 1.0,
                "output_heads": {
                    "node": {"num_headlayers": 1, "dim_headlayers": [64], "type": "mlp"}
                },
                **pair.architecture,
            },
            "Variables_of_interest": {
                "input_node_features": [0],
                "output_names": ["energy"],
                "type": ["node"],
            },
            "Training": {
                "num_epoch": 10_000,
                "batch_size": 4,
                "loss_function_type": "mse",
                "Optimizer": {"type": "AdamW", "learning_rate": pair.learning_rate},
            },
        }
    )


def train_ours(pair: Pair, store: Path, seconds: float, seed: int) -> Outcome:
    """Train by the package's own segments and test the best weights.

    The learning rate falls along half a cosine of the CPU time, as the peers' does; over epochs it
    would have to be known how many there will be.

    Parameters
    ----------
    pair
        Which network.
    store
        Of the set.
    seconds
        CPU time of the training.
    seed
        Of the weights and of the order of graphs.
    """
    clock = CpuClock(seconds)

    def rate(schedule: Schedule, epoch: int, step: int, steps: int) -> float:
        part = int(_PARTS * clock.used / seconds)
        return schedule.learning_rate * decay_factor(part, (0, _PARTS))

    with patch.object(Schedule, "rate", rate):
        return train_network(network(pair), SET, store, clock, seed)


def train_peer(pair: Pair, python: Path, graphs: Path, seconds: float, seed: int) -> Outcome:
    """Train a peer's network in its own environment.

    Parameters
    ----------
    pair
        Which network.
    python
        Interpreter of the environment.
    graphs
        As :func:`write_graphs` has written them.
    seconds, seed
        As ours.

    Raises
    ------
    CannotRun
        With the end of what the peer said.
    """
    arguments = ["-m", f"peer_potentials.{pair.module}", str(graphs), str(seed), str(seconds)]
    said = json.loads(_say(python, arguments).splitlines()[-1])
    energy, forces = said.pop("errors")
    return Outcome(**said, errors=(energy, forces))


def version_of(pair: Pair, python: Path) -> str:
    """Version of a peer in an environment.

    Raises
    ------
    CannotRun
        Where it is not installed.
    """
    code = f"from importlib.metadata import version; print(version({pair.peer!r}))"
    return _say(python, ["-c", code]).strip()


def _say(python: Path, arguments: list[str]) -> str:
    """What a peer's environment prints."""
    done = subprocess.run(
        # Not resolved: an environment's interpreter is a link.
        [str(python.absolute()), *arguments],
        capture_output=True,
        encoding="utf-8",
        cwd=_BENCHMARKS,
        # e3nn reads tables of its own with torch.load, which torch has meanwhile made stricter.
        env={
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "OMP_NUM_THREADS": "1",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        },
    )
    if done.returncode:
        raise CannotRun(f"its environment says: {done.stderr.strip()[-400:]}")
    return done.stdout


def write_graphs(store: Path, file: Path) -> None:
    """Write the graphs of a store as plain arrays: edges, labels and splits are those of ours."""
    opened = GraphStore.open(store)
    np.savez(
        file,
        **{
            f"{split}/{key}": values
            for split in _SPLITS
            for key, values in _arrays(opened[split]).items()
        },
    )


def _arrays(split: GraphSplit) -> dict[str, Any]:
    graphs = [split[index] for index in range(len(split))]
    return {
        "n_atoms": np.array([len(graph.pos) for graph in graphs]),
        "n_edges": np.array([graph.edge_index.shape[1] for graph in graphs]),
        "numbers": np.concatenate([graph.x[:, 0].long().numpy() for graph in graphs]),
        "positions": np.concatenate([graph.pos.float().numpy() for graph in graphs]),
        "edges": np.concatenate([graph.edge_index.long().numpy() for graph in graphs], axis=1),
        "energies": np.array([float(graph.energy) for graph in graphs], dtype=np.float64),
        "forces": np.concatenate([graph.forces.float().numpy() for graph in graphs]),
    }
