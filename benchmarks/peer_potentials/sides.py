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
import torch
from model_accuracy.ours import CpuClock, train_network
from model_accuracy.outcome import Outcome
from model_accuracy.sets import SETS
from model_race.networks import network_of
from peers.hydragnn_package import CannotRun
from results import REPOSITORY

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.training.optimizers import Schedule, decay_factor

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
    set: str = "acac"

    @property
    def name(self) -> str:
        """Both networks, and the set unless it is acac."""
        return f"{self.mpnn_type}, {self.peer}" + ("" if self.set == "acac" else f", {self.set}")


_PAINN = {"num_conv_layers": 3, "num_radial": 6}
_PNA = {"num_gaussians": 32, "edge_features": ["lengths"], "graph_pooling": "mean"}
_MACE = {"num_conv_layers": 2, "num_radial": 8, "max_ell": 2, "node_max_ell": 1, "correlation": 2}
PAIRS = (
    Pair("PAINN", "schnetpack", "schnetpack_painn", _PAINN, 1e-2),
    Pair("MACE", "mace-torch", "mace_torch", _MACE, 1e-2),
    Pair("PNA", "matgl", "matgl_megnet", _PNA, 5e-3, "perov_5"),
)


def network(pair: Pair) -> NetworkConfig:
    """Our configuration, trained for as long as there is CPU time."""
    chosen = SETS[pair.set]
    level = "node" if chosen.potential else "graph"
    outputs = {chosen.measures[0].target: level}
    section = network_of(pair.mpnn_type, outputs, potential=chosen.potential)
    section["Architecture"] |= {**pair.architecture, "max_neighbours": chosen.neighbours}
    section["Training"] |= {"num_epoch": 10_000, "batch_size": chosen.batch_size}
    if chosen.potential:
        section["Architecture"]["energy_peratom_weight"] = 5.0
        head = section["Architecture"]["output_heads"][level]
        head |= {"num_headlayers": 1, "dim_headlayers": [64]}
        section["Training"]["batch_size"] = 4
    section["Training"]["Optimizer"] = {"type": "Muon", "learning_rate": pair.learning_rate}
    return load_network(section)


def train_ours(pair: Pair, store: Path, seconds: float, seed: int) -> Outcome:
    """Train by the package's own segments and test the best weights.

    The learning rate falls along half a cosine of the CPU time, as the peers' does; over epochs it
    would have to be known how many there will be.
    """
    clock = CpuClock(seconds)

    def rate(schedule: Schedule, epoch: int, step: int, steps: int) -> float:
        part = int(_PARTS * clock.used / seconds)
        return schedule.learning_rate * decay_factor(part, (0, _PARTS))

    with patch.object(Schedule, "rate", rate):
        return train_network(network(pair), pair.set, store, clock, seed)


def train_peer(pair: Pair, python: Path, graphs: Path, seconds: float, seed: int) -> Outcome:
    """Train a peer's network in its own environment, on a file of :func:`write_graphs`.

    Raises
    ------
    CannotRun
        With the end of what the peer said.
    """
    arguments = ["-m", f"peer_potentials.{pair.module}", str(graphs), str(seed), str(seconds)]
    said = json.loads(_say(python, arguments).splitlines()[-1])
    return Outcome(**said | {"errors": tuple(said["errors"])})


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
    """Output of a peer's environment."""
    done = subprocess.run(
        # Not resolved: an environment's interpreter is a link.
        [str(python.absolute()), *arguments],
        capture_output=True,
        encoding="utf-8",
        cwd=REPOSITORY / "benchmarks",
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


def write_graphs(pair: Pair, store: Path, file: Path) -> None:
    """Write the graphs of a store as plain arrays: edges, labels and splits are those of ours."""
    opened = GraphStore.open(store)
    arrays = {
        f"{split}/{key}": values
        for split in ("trainset", "valset", "testset")
        for key, values in _arrays(opened[split], SETS[pair.set].measures[0].target).items()
    }
    np.savez(file, **arrays)


def _arrays(split: GraphSplit, target: str) -> dict[str, Any]:
    """Arrays of a split; forces of a set of properties, which has none, are 0."""
    graphs = [split[index] for index in range(len(split))]
    return {
        "n_atoms": np.array([len(graph.pos) for graph in graphs]),
        "n_edges": np.array([graph.edge_index.shape[1] for graph in graphs]),
        "numbers": np.concatenate([graph.x[:, 0].long().numpy() for graph in graphs]),
        "positions": np.concatenate([graph.pos.float().numpy() for graph in graphs]),
        "edges": np.concatenate([graph.edge_index.long().numpy() for graph in graphs], axis=1),
        "shifts": np.concatenate([graph.edge_shifts.float().numpy() for graph in graphs]),
        "energies": np.array([float(graph[target]) for graph in graphs], dtype=np.float64),
        "forces": np.concatenate(
            [graph.get("forces", torch.zeros_like(graph.pos)).float().numpy() for graph in graphs]
        ),
    }
