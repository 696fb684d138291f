"""One rank of a job that trains some networks in parts, one after the other; a script."""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_rank import train_on

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World, joined
from hydragnn_flow.training.trainer import Trainer


def train(values: dict[str, Any], world: World) -> dict[str, Any]:
    """Train from where the folder's checkpoint is, and save.

    Returns
    -------
    dict
        Losses of the steps, loss and errors on the validation split, and the numbers that this rank
        holds of parameters, gradients and the optimiser's state.
    """
    spec = SegmentSpec.from_dict(values)
    trainer = Trainer(spec, GraphStore.open(spec.store), torch.device("cpu"), world)
    losses = train_on(trainer, world)
    val_loss, metrics = trainer.evaluate(trainer.val)
    trainer.save()
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
        "held": {name: sum(map(_here, tensors)) for name, tensors in held.items()},
    }


def _here(tensor: torch.Tensor) -> int:
    local = getattr(tensor, "to_local", lambda: tensor)()
    return int(local.numel())


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[4]), exit=True)
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    specs = json.loads((folder / "specs.json").read_text())
    with joined(rank, size, dist.FileStore(str(folder / "store"), size), "cpu") as world:
        answers = {name: train(spec, world) for name, spec in specs.items()}
    print(json.dumps(answers))
