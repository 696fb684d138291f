"""One of our networks on one data set: train for a CPU time, test the best weights."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.config.network import NetworkConfig
from hydragnn_flow.segment import EpochPlan, SegmentSpec, StoreAccess
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment
from model_accuracy.outcome import Outcome
from model_accuracy.sets import Contest, errors, network


def train_and_test(contest: Contest, store: Path, seconds: float, seed: int) -> Outcome:
    """Train by the package's own segments.

    Parameters
    ----------
    contest
        Network and set.
    store
        Store of the set.
    seconds
        CPU time of the training, of all threads of this process.
    seed
        Seed of the weights and of the order of graphs.
    """
    checked = load_network(network(contest))
    return train_network(checked, contest.set, store, CpuClock(seconds), seed)


def train_network(
    checked: NetworkConfig, name: str, store: Path, clock: CpuClock, seed: int
) -> Outcome:
    """Train a network by the package's own segments until its CPU time has passed.

    Parameters
    ----------
    checked
        The network.
    name
        Name of the set, whose errors are measured.
    store
        Store of the set.
    clock
        Ends the training.
    seed
        Seed of the weights and of the order of graphs.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=folder,
            store=StoreAccess(path=str(store)),
            network=checked,
            epochs=EpochPlan(until_epoch=checked.Training.num_epoch),
            rung=0,
            seed=seed,
        )
        result = run_segment(spec, should_stop=clock)
        used, found = clock.used, None
        if result.best_epoch:
            graphs = GraphStore.open(store)
            weights = load_checkpoint(spec.folder / FILE)["best"]
            model = restore_model(checked, graphs.manifest, weights)
            split = graphs["testset"]
            found = errors(name, split, predict_batches(model, split_batches(split)))
    remark = "" if result.status in ("ok", "interrupted") else f"{result.status}: {result.reason}"
    return Outcome(used, result.to_epoch, result.best_epoch or 0, found, remark)


class CpuClock:
    """Says whether its CPU-seconds have passed since it was first asked, before the first step."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start: float | None = None

    def __call__(self) -> bool:
        if self._start is None:
            self._start = time.process_time()
        return self.used >= self.seconds

    @property
    def used(self) -> float:
        """CPU time since then [s]."""
        return 0.0 if self._start is None else time.process_time() - self._start
