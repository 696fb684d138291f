"""A rank that meets others, trains with them and tells what it saw; a script."""

from __future__ import annotations

import json
import sys

import psutil
import torch

from hydragnn_flow.data import GraphStore
from hydragnn_flow.execution.workers.rendezvous import rendezvous
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.distributed import join
from hydragnn_flow.training.trainer import Trainer


def listening() -> list[str]:
    """Addresses on which this process listens."""
    connections = psutil.Process().net_connections(kind="tcp")
    return sorted({c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN})


values, where, rank, size = json.loads(sys.argv[1])
torch.set_num_threads(1)
spec = read_segment(values)
with rendezvous(**where, rank=rank, size=size, should_stop=lambda: False) as store:
    world = join(rank, size, store, "cpu")
    total = float(world.sum(torch.tensor([float(rank + 1)])))
    graphs = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, graphs, torch.device("cpu"), world)
    trainer.run()
    weights = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
    answer = {
        "total": total,
        "weights": weights.tolist(),
        "history": trainer.progress.history,
        "listening": listening(),
    }
    del trainer
    world.leave()
del store, world
print(json.dumps(answer | {"listening_after": listening()}))
