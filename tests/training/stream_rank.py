"""One rank of a job that trains from a streamed store; a script."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World, joined
from hydragnn_flow.training.trainer import Trainer

EPOCHS = 3


def train(values: dict[str, Any], world: World) -> dict[str, Any]:
    """What this rank read in each epoch, its losses, and the weights it ends with."""
    spec = SegmentSpec.from_dict(values)
    store = GraphStore.open(spec.store, spec.mode)
    trainer = Trainer(spec, store, torch.device("cpu"), world)
    read: list[list[int]] = []
    losses: list[list[float]] = []
    for epoch in range(EPOCHS):
        steps = trainer.plan(epoch)
        read.append([])
        losses.append([])
        for step, batch in zip(steps, trainer.batches(trainer.train, steps), strict=True):
            if batch is not None:
                read[-1] += batch.graph_id.tolist()
            losses[-1].append(float(trainer.train_step(step, batch)))
    weights = [value.tolist() for value in trainer.model.parameters()]
    return {"read": read, "losses": losses, "weights": weights}


if __name__ == "__main__":
    values, rank, size, rendezvous = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    with joined(rank, size, dist.FileStore(rendezvous, size), "cpu") as world:
        answer = train(values, world)
    print(json.dumps(answer))
