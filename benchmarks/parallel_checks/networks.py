"""Networks that are trained by several ranks, and the alloys that they learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.config.network import MPNN_TYPES
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.trainer import Trainer

Kind = Literal["property", "potential"]
STRATEGIES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD")
GROUP = 2
"""GCDs that hold the network together with HYBRID_SHARD."""
_CUTOFF = 4.0


def cases() -> list[tuple[str, Kind]]:
    """Every type as a property's network, and as a potential if it has forces."""
    return [
        (mpnn_type, kind)
        for mpnn_type, of in MPNN_TYPES.items()
        for kind in ("property", "potential")
        if kind == "property" or of.properties.lengths != "never"
    ]


def network(
    mpnn_type: str,
    kind: Kind,
    *,
    width: int = 16,
    layers: int = 2,
    batch_size: int = 6,
    **keys: Any,
) -> dict[str, Any]:
    """A `NeuralNetwork` section.

    Parameters
    ----------
    mpnn_type, kind, width, layers, batch_size
        What is trained, by steps of how many graphs.
    keys
        Of `Training`.
    """
    head = {"num_headlayers": 1, "dim_headlayers": [width]}
    shared = {"num_sharedlayers": 1, "dim_sharedlayers": width}
    architecture: dict[str, Any] = {
        "mpnn_type": mpnn_type,
        "hidden_dim": width,
        "num_conv_layers": layers,
        "radius": _CUTOFF,
        "num_gaussians": 8,
        "activation_function": "silu",
        "output_heads": {"graph": shared | head},
    }
    if kind == "potential":
        architecture |= {
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": head},
        }
    level = "node" if kind == "potential" else "graph"
    training = {"num_epoch": 1, "batch_size": batch_size, "Optimizer": {"learning_rate": 1e-3}}
    return {
        "Architecture": architecture,
        "Variables_of_interest": {"output_names": ["energy"], "type": [level]},
        "Training": training | keys,
    }


def sharding(strategy: str) -> dict[str, Any]:
    """`Training.sharding`."""
    return {"strategy": strategy} | ({"group": GROUP} if strategy == "HYBRID_SHARD" else {})


def alloys(folder: Path, structures: int = 40) -> GraphStore:
    """The store of the ranks, made where it is not there yet."""
    path = folder / "alloys.gs"
    if path.exists():
        return GraphStore.open(path)
    values = {
        "source": {"format": "emt_alloys", "structures": structures, "atoms": [8, 16]},
        "split": {"val": 0.1, "test": 0.1},
    }
    return prepare_store(DataConfig.model_validate(values), _CUTOFF, None, 0, path)


def trainer(section: dict[str, Any], folder: str, store: GraphStore, world: World) -> Trainer:
    """A trainer, which goes on from a checkpoint of its folder if there is one."""
    spec = SegmentSpec(
        kind="trial",
        number=0,
        rung=0,
        directory=folder,
        store=str(store.path),
        network=load_network(section),
        until_epoch=1,
        seed=0,
        trivial_errors={"energy": 1.0, "forces": 1.0},
    )
    return Trainer(spec, store, torch.device("cpu"), world)


def losses(trainer: Trainer, steps: int) -> Iterator[float]:
    """Train some steps, through as many epochs as they take; loss of each, of all ranks."""
    trainer.model.train()
    taken = 0
    for epoch in count():
        planned = trainer.plan(epoch)[: steps - taken]
        with closing(trainer.micro_batches(planned)) as batches:
            for step, pieces in zip(planned, batches, strict=True):
                loss = trainer.train_step(step, pieces).double()
                yield float(trainer.world.sum(loss.clone()))
        taken += len(planned)
        if taken == steps:
            return
