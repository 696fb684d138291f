"""Training steps of random networks of all types: what was counted, and what was measured."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Batch

from hydragnn_flow import GraphStore
from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.config.network import MPNN_TYPES, NetworkConfig
from hydragnn_flow.data import prepare_store
from hydragnn_flow.models import build_model, network_cost
from hydragnn_flow.models.cost import NetworkCost
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.batching import Step
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.memory import give_back_memory, keep_freed_memory
from hydragnn_flow.training.trainer import Trainer

Work = list[tuple[Step, list[Batch]]]

BATCH = 16
"""Graphs of a step."""
_STRUCTURES = 120
_HEAD = {"num_headlayers": 2, "dim_headlayers": [64, 64]}


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    each: int = 8
    """Networks of each message-passing type."""
    seconds: float = 0.25
    """CPU time of a round [s], of two different batches at least."""
    rounds: int = 3
    """Rounds of each of two measurements, of which the least counts."""
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """One network."""

    kind: str
    """Message-passing type."""
    hidden: int
    layers: int
    cost: NetworkCost
    """Counted for a batch of mean size."""
    larger: float
    """Atoms of the batch whose memory was measured, over those of the mean one."""
    seconds: float
    """CPU time of a training step [s]."""
    again: float
    """The same, measured a second time after all others [s]."""
    peak_bytes: int
    """Most that torch had allocated at a time, beyond what was there before the step."""


def network(kind: str, hidden: int, layers: int) -> NetworkConfig:
    """A potential if the type can be one, or else a network with a graph head."""
    architecture: dict[str, Any] = {
        "mpnn_type": kind,
        "hidden_dim": hidden,
        "num_conv_layers": layers,
        "radius": 4.0,
        "num_gaussians": 32,
        "activation_function": "silu",
    }
    if MPNN_TYPES[kind].properties.lengths == "never":
        architecture["output_heads"] = {
            "graph": {"num_sharedlayers": 2, "dim_sharedlayers": 64, **_HEAD}
        }
    else:
        architecture |= {
            "enable_interatomic_potential": True,
            "energy_peratom_weight": 1.0,
            "force_weight": 1.0,
            "output_heads": {"node": _HEAD},
        }
    level = next(iter(architecture["output_heads"]))
    values = {
        "Architecture": architecture,
        "Variables_of_interest": {"output_names": ["energy"], "type": [level]},
        "Training": {
            "num_epoch": 6,
            "batch_size": BATCH,
            "Optimizer": {"type": "AdamW", "learning_rate": 1e-3},
        },
    }
    return load_network(values, "benchmark")


def measured(folder: Path, settings: Settings, say: Callable[[str], None]) -> list[Measured]:
    """Measure networks of every type in turn, each with sizes drawn at random.

    All are measured once, and then all a second time, as the machine changes in between.

    Parameters
    ----------
    folder
        For the graphs.
    settings
        How much to measure.
    say
        Told which network is next.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    data = DataConfig.model_validate(
        {
            "source": {"format": "emt_alloys", "structures": _STRUCTURES, "atoms": [8, 16]},
            "split": {"val": 0.2, "test": 0.2},
        }
    )
    path = folder / "alloys.gs"
    prepare_store(data, 4.0, None, settings.seed, path)
    chance = random.Random(settings.seed)
    found = []
    with GraphStore.open(path, "random") as store:
        for kind in list(MPNN_TYPES) * settings.each:
            hidden = round(16 * 8 ** chance.random() / 4) * 4
            layers = chance.randint(1, 4)
            say(f"{kind}, {hidden} features, {layers} layers")
            found.append(_measure(store, kind, hidden, layers, settings))
        for number, one in enumerate(found):
            say(f"{one.kind}, {one.hidden} features, {one.layers} layers, again")
            trainer, work = _begin(store, network(one.kind, one.hidden, one.layers))
            found[number] = replace(one, again=_seconds(trainer, work, settings))
    return found


def _measure(
    store: GraphStore, kind: str, hidden: int, layers: int, settings: Settings
) -> Measured:
    config = network(kind, hidden, layers)
    trainer, work = _begin(store, config)
    largest = max(work, key=lambda one: one[0].atoms)
    peak = _peak(trainer, *largest)
    seconds = _seconds(trainer, work, settings)
    mean = sum(step.atoms for step, _ in work) / len(work)
    return Measured(
        kind,
        hidden,
        layers,
        counted(store, config, work),
        larger=largest[0].atoms / mean,
        seconds=seconds,
        again=seconds,
        peak_bytes=peak,
    )


def _begin(store: GraphStore, config: NetworkConfig) -> tuple[Trainer, Work]:
    """A trainer, and the steps of an epoch with their batches."""
    give_back_memory()
    spec = SegmentSpec(
        kind="trial",
        number=0,
        rung=0,
        directory="",
        store=str(store.path),
        network=config,
        until_epoch=1,
        seed=0,
    )
    trainer = Trainer(spec, store, torch.device("cpu"), World())
    trainer.model.train()
    steps = trainer.plan(0)
    return trainer, list(zip(steps, trainer.micro_batches(steps), strict=True))


def counted(store: GraphStore, config: NetworkConfig, work: Work) -> NetworkCost:
    """What placement counts of a step of mean size."""
    with torch.device("meta"):
        model = build_model(config, store)
    n = len(work)
    graphs, atoms = (sum(getattr(step, name) for step, _ in work) for name in ("graphs", "atoms"))
    edges = sum(batch.edge_index.shape[1] for _, batches in work for batch in batches)
    largest = int(store["trainset"].n_atoms.max())
    return network_cost(model, -(-atoms // n), -(-edges // n), -(-graphs // n), largest)


def _seconds(trainer: Trainer, work: Work, settings: Settings) -> float:
    """CPU time of a step: the mean over batches, of the best of some rounds."""
    found = []
    for _ in range(settings.rounds):
        gc.collect()
        start, turns = time.process_time(), 0
        while time.process_time() - start < settings.seconds or not turns:
            for step, batches in work:
                trainer.train_step(step, batches)
            turns += 1
        found.append((time.process_time() - start) / (turns * len(work)))
    return min(found)


def _peak(trainer: Trainer, step: Step, batches: list[Batch]) -> int:
    """Most that torch had allocated at a time during a step, as its own profiler saw it."""
    trainer.train_step(step, batches)  # moments and gradients are there from now on
    trainer.optimizer.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        trainer.train_step(step, batches)
    events = seen.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    total = peak = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        total += change
        peak = max(peak, total)
    return peak
