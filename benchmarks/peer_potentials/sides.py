"""Both sides of the contest: ours in a process of its own, a peer's in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from model_accuracy.outcome import Outcome, errors
from model_accuracy.sets import CUTOFF, SETS
from peers.hydragnn_package import CannotRun
from results.code import REPOSITORY

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.data import GraphSplit
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment
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


class _Clock:
    """Says whether its CPU-seconds have passed since it was first asked, before the first step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start: float | None = None

    def __call__(self) -> bool:
        if self._start is None:
            self._start = time.process_time()
        return self.passed >= 1.0

    @property
    def passed(self) -> float:
        """Fraction of the time."""
        return 0.0 if self._start is None else (time.process_time() - self._start) / self._seconds


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
    checked, clock = network(pair), _Clock(seconds)

    def rate(schedule: Schedule, epoch: int, step: int, steps: int) -> float:
        part = int(clock.passed * _PARTS)
        return schedule.learning_rate * decay_factor(part, (0, _PARTS))

    with tempfile.TemporaryDirectory() as folder, patch.object(Schedule, "rate", rate):
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=folder,
            store=str(store),
            network=checked,
            until_epoch=checked.Training.num_epoch,
            rung=0,
            seed=seed,
        )
        result = run_segment(spec, should_stop=clock)
        used, found = clock.passed * seconds, None
        if result.best_epoch:
            graphs = GraphStore.open(store)
            weights = load_checkpoint(spec.folder / FILE)["best"]
            model = restore_model(checked, graphs.manifest, weights)
            split = graphs["testset"]
            found = errors(SETS[SET], split, predict_batches(model, split_batches(split)))
    remark = "" if result.status in ("ok", "interrupted") else f"{result.status}: {result.reason}"
    return Outcome(used, result.to_epoch, result.best_epoch or 0, found, remark)


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
        text=True,
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
