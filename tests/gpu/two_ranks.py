"""Two ranks of one job on one device, which NCCL refuses and gloo does not; a script."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.trainer import Trainer


def train(values: dict[str, Any], device: torch.device, world: World) -> list[list[float]]:
    """Epochs with their losses, as the trainer keeps them."""
    spec = read_segment(values)
    store = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, store, device, world)
    trainer.run()
    return trainer.progress.history


if __name__ == "__main__":
    values, device, rank, size, rendezvous = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    store = dist.FileStore(rendezvous, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    print(json.dumps(train(values, torch.device(device), World(rank, size))))
    dist.destroy_process_group()
