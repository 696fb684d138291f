"""Ranks of a job that trains some networks in parts, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ddp_rank
import numpy as np
import pytest
import torch
from training_cases import judged

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.trainer import Trainer


def on_ranks(
    size: int, specs: dict[str, dict[str, Any]], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Answers of all ranks of a job, which meets in a folder and trains one after the other."""
    meeting = folder / f"ranks-{size}"
    answers = ddp_rank.on_ranks(size, _train_all, meeting, specs)
    return {name: [answer[name] for answer in answers] for name in specs}


def _train_all(world: World, specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: train(spec, world) for name, spec in specs.items()}


def train(values: dict[str, Any], world: World) -> dict[str, Any]:
    """Train from where the folder's checkpoint is, and save; a member predicts as well.

    Returns
    -------
    dict
        Losses of the steps, loss and errors on the validation split, predictions of it, and the
        numbers that this rank holds of parameters, gradients and the optimiser's state.
    """
    spec = read_segment(values)
    trainer = Trainer(spec, GraphStore.open(spec.store.path), torch.device("cpu"), world)
    losses = ddp_rank.train_on(trainer, world)
    val_loss, metrics = judged(trainer)
    trainer.save()
    predicted = {}
    if spec.kind == "member":
        trainer.predict(trainer.val)
        predicted = {k: v.tolist() for k, v in trainer.predicted[trainer.val.name].items()}
    weights = trainer.parallel.weights
    state = [
        value
        for values in trainer.optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    held = {
        "parameters": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimiser": state,
    }
    return {
        "losses": losses,
        "val_loss": val_loss,
        "metrics": metrics,
        "predicted": predicted,
        "held": {name: sum(map(_here, tensors)) for name, tensors in held.items()},
    }


def check_equal(
    name: str, ranks: list[dict[str, Any]], alone: dict[str, Any], within: float
) -> None:
    """Each rank has learnt and predicted what one process has that has the whole network."""
    for rank in ranks:
        np.testing.assert_allclose(rank["losses"], alone["losses"], rtol=within, err_msg=name)
        assert rank["val_loss"] == pytest.approx(alone["val_loss"], rel=within), name
        assert rank["metrics"] == pytest.approx(alone["metrics"], rel=within), name
        assert rank["predicted"].keys() == alone["predicted"].keys()
        for target, values in alone["predicted"].items():
            np.testing.assert_allclose(rank["predicted"][target], values, rtol=within, atol=1e-6)


def _here(tensor: torch.Tensor) -> int:
    local = getattr(tensor, "to_local", lambda: tensor)()
    return int(local.numel())
