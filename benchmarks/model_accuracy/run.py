"""One network on one data set: train for so much CPU time, test the best weights."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn_flow import GraphStore
from hydragnn_flow.config import load_network
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data import GraphSplit, prepare_store
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.predict import predict_batches, restore_model, split_batches
from hydragnn_flow.training.runner import run_segment
from hydragnn_flow.training.segment import SegmentSpec
from model_accuracy.sets import CUTOFF, SETS, Measure, Set, network

SEED = 0


@dataclass(frozen=True)
class Outcome:
    """How a training went."""

    seconds: float
    """CPU time from the first step to the end of training [s], validation included."""
    epochs: int
    best_epoch: int
    errors: tuple[float, ...] | None
    """One for each measure of the set; None where training diverged before its first epoch."""
    remark: str = ""


def prepare(name: str, data: Path, path: Path) -> None:
    """Build the store of a set.

    Raises
    ------
    InputError
        Where its files are missing.
    """
    chosen = SETS[name]
    config = DataConfig.model_validate({**chosen.data, "path": data / chosen.folder})
    prepare_store(config, CUTOFF, chosen.neighbours, SEED, path)


def train_and_test(name: str, mpnn_type: str, store: Path, seconds: float) -> Outcome:
    """Train one type on one set.

    Parameters
    ----------
    name
        Of the set.
    mpnn_type
        Message-passing type.
    store
        Of the set.
    seconds
        CPU time of the training, of all threads of this process.

    Raises
    ------
    InputError
        Where this package has no such network.
    """
    chosen = SETS[name]
    section = network(chosen, mpnn_type)
    epochs = load_network(section).Training.num_epoch
    clock = _Clock(seconds)
    with tempfile.TemporaryDirectory() as folder:
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=folder,
            store=str(store),
            network=section,
            until_epoch=epochs,
            rung=0,
            seed=SEED,
        )
        result = run_segment(spec, should_stop=clock)
        used = clock.used
        errors = None
        if result.best_epoch:
            weights = load_checkpoint(spec.folder / FILE, torch.device("cpu"))["best"]
            errors = _test(chosen, section, weights, GraphStore.open(store))
    remark = "" if result.status in ("ok", "interrupted") else f"{result.status}: {result.reason}"
    return Outcome(used, result.to_epoch, result.best_epoch or 0, errors, remark)


class _Clock:
    """Says when so many CPU-seconds have passed since it was first asked, before the first step."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start: float | None = None

    def __call__(self) -> bool:
        if self._start is None:
            self._start = time.process_time()
        return self.used >= self._seconds

    @property
    def used(self) -> float:
        """CPU time since then [s]."""
        return 0.0 if self._start is None else time.process_time() - self._start


def _test(
    chosen: Set, section: dict[str, Any], weights: dict[str, Any], store: GraphStore
) -> tuple[float, ...]:
    """Errors on the test split, one for each measure."""
    split = store["testset"]
    model = restore_model(section, store.manifest, weights)
    predictions = predict_batches(model, split_batches(split))
    return tuple(
        _error(measure, predictions[measure.target] - _labels(split, measure), split.n_atoms)
        for measure in chosen.measures
    )


def _labels(split: GraphSplit, measure: Measure) -> NDArray[np.float64]:
    """What a target is, [n_graphs, d] or [n_atoms, d]."""
    parts = [batch[measure.target].double().numpy() for batch in split_batches(split)]
    values = np.concatenate(parts)
    return values if values.ndim == 2 else values[:, None]


def _error(measure: Measure, residuals: NDArray[np.float64], atoms: NDArray[np.int64]) -> float:
    if measure.per_atom:
        residuals = residuals / atoms[:, None]
    if measure.how == "rmse":
        return measure.factor * float(np.sqrt(np.mean(residuals**2)))
    return measure.factor * float(np.mean(np.abs(residuals)))
