"""Segments and trainers on the small store, and when they are asked to stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from segment_cases import make_spec, network_with

from hydragnn_flow.data import GraphStore, write_store
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.plan.batching import Budget, Step
from hydragnn_flow.training.plan.epochs import Epoch
from hydragnn_flow.training.plan.sampling import InBlocks, Shuffled
from hydragnn_flow.training.predict import Predicted, predictions_in
from hydragnn_flow.training.trainer import Trainer

CPU = torch.device("cpu")
# Changes of a network that has the energy for a property, and no forces.
PROPERTY: dict[str, Any] = {
    "Architecture__enable_interatomic_potential": False,
    "Architecture__output_heads": {"graph": {"dim_headlayers": [8, 8], "dim_sharedlayers": 8}},
    "Variables_of_interest__type": ["graph"],
}
Kind = TypeVar("Kind", bound=Trainer)


def segment(folder: Path, store: GraphStore, until: int, **changes: Any) -> SegmentSpec:
    """A segment up to an epoch; changes with ``__`` for dots are of its network."""
    of_network = {key: changes.pop(key) for key in [*changes] if "__" in key}
    if of_network:
        changes["network"] = network_with(**of_network)
    return make_spec(folder, store, until, **changes)


def trainer_of(
    folder: Path, store: GraphStore, until: int, kind: type[Kind] = Trainer, **changes: Any
) -> Kind:
    """The trainer of such a segment."""
    return kind(segment(folder, store, until, **changes), store, CPU, World())


def masked_store(path: Path, store: GraphStore) -> GraphStore:
    """A copy of a store with weights, and without every third energy, and the forces after it."""
    splits = {name: list(store[name]) for name in store.splits}
    for graphs in splits.values():
        for number, graph in enumerate(graphs):
            graph.loss_weight = torch.tensor([[1.0 + number % 2]])
            if number % 3 < 2:
                graph["forces" if number % 3 else "energy"].fill_(torch.nan)
    return write_store(path, splits, targets=store.manifest.targets, cutoff=4.0)


def kept_in(folder: Path, split: str = "valset") -> Predicted:
    """Predictions of a split in the checkpoint of a folder."""
    found = predictions_in(load_checkpoint(folder / FILE), split)
    assert found is not None, "it has none"
    return found


def member_of(trial: SegmentSpec) -> dict[str, str]:
    """What the segment of a member says that begins with a trial's checkpoint."""
    return {"kind": "member", "trial_checkpoint": str(trial.folder / FILE)}


def judged(trainer: Trainer) -> tuple[float, dict[str, float]]:
    """Loss and errors of the averaged weights on the validation split."""
    with trainer.averaged() as model:
        return trainer.evaluate(model, trainer.val)


def plan_epoch(
    index: Any,
    budget: Budget,
    seed: int,
    epoch: int,
    world: int,
    blocks: Any = None,
    **dealing: Any,
) -> list[Step]:
    """All steps of a pass, in the order of a seed."""
    size = len(index)
    order = Shuffled(size, seed) if blocks is None else InBlocks(blocks, seed)
    given = {"n_graphs": size, "blocks": blocks, "seed": seed} | dealing
    windows = Epoch(index, order, budget, epoch * size, world, **given).windows()
    return [step for window in windows for step in window]


def by_rank(step: Step) -> list[Any]:
    """Graphs of each rank in a step."""
    return [step.of_rank(rank) for rank in range(len(step.bounds) - 1)]


def stops_at(*times: int) -> Callable[[], bool]:
    """Whether to stop: yes, where it is asked for the first time, or the second, and so on."""
    asked = itertools.count(1)
    return lambda: next(asked) in times


def same(one: Any, two: Any) -> bool:
    """Whether checkpoints, or parts of them, are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(same(one[key], two[key]) for key in one)
        )
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)
