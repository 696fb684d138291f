"""One network on one data set: train for so much CPU time, test the best weights."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hydragnn_flow import GraphStore, InputError
from hydragnn_flow.config import load_network
from hydragnn_flow.config.data import DataConfig
from hydragnn_flow.data import GraphSplit, prepare_store
from hydragnn_flow.models.mpnn import MPNN_TYPES
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.predict import predict_batches, split_batches
from hydragnn_flow.training.segment import SegmentSpec
from hydragnn_flow.training.trainer import Trainer
from hydragnn_flow.training.watch import Diverged, Stopped
from model_accuracy.sets import CUTOFF, SETS, Measure, network

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
    config = load_network(section)
    if mpnn_type not in MPNN_TYPES:
        raise InputError(f"there is no {mpnn_type} here yet")
    graphs = GraphStore.open(store, without=("y", "y_loc"))
    with tempfile.TemporaryDirectory() as folder:
        spec = SegmentSpec(
            kind="trial",
            number=0,
            directory=folder,
            store=str(store),
            network=section,
            until_epoch=config.Training.num_epoch,
            rung=0,
            seed=SEED,
        )
        trainer = Trainer(spec, config, graphs, torch.device("cpu"), World())
        start, remark = time.process_time(), ""
        try:
            trainer.run(lambda: time.process_time() - start >= seconds)
        except Stopped:
            pass
        except Diverged as error:
            remark = str(error)
        used = time.process_time() - start
    progress = trainer.progress
    errors = None
    if progress.best_epoch:
        trainer.model.load_state_dict(trainer.best)
        predictions = predict_batches(trainer.model, split_batches(graphs["testset"]))
        labels = _labels(graphs["testset"], predictions)
        atoms = graphs["testset"].n_atoms
        errors = tuple(
            _error(measure, predictions[measure.target] - labels[measure.target], atoms)
            for measure in chosen.measures
        )
    return Outcome(used, progress.epoch, progress.best_epoch, errors, remark)


def _labels(
    split: GraphSplit, predictions: Mapping[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """The targets of a split, in the shape of their predictions."""
    batches = list(split_batches(split))
    return {
        name: np.concatenate(
            [batch[name].double().numpy().reshape(-1) for batch in batches]
        ).reshape(values.shape)
        for name, values in predictions.items()
    }


def _error(measure: Measure, residuals: NDArray[np.float64], atoms: NDArray[np.int64]) -> float:
    if measure.per_atom:
        residuals = residuals / atoms[:, None]
    if measure.how == "rmse":
        return measure.factor * float(np.sqrt(np.mean(residuals**2)))
    return measure.factor * float(np.mean(np.abs(residuals)))
