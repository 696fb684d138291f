"""Fused members on a device: a step of all of them at once, beside one after the other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from turns import Turns, take_turns

from hydragnn_flow.config import DataConfig, load_network
from hydragnn_flow.data import GraphStore, prepare_store
from hydragnn_flow.segment import SegmentSpec
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.fused import FusedTrainer
from hydragnn_flow.training.trainer import Trainer

FUSED, SEPARATE = "fused", "separately"
MEMBERS, WIDTH, BATCH, _CUTOFF = 8, 16, 16, 4.0
_SHAPES = [(name, kind) for name in ("EGNN", "SchNet", "PAINN") for kind in (False, True)]
_SHAPES += [("GIN", False)]


@dataclass(frozen=True)
class Together:
    """Members of one shape, both ways."""

    mpnn_type: str
    is_potential: bool
    loss: float
    """Largest difference of a loss of an epoch, relative to it."""
    weight: float
    """Largest difference of a weight."""
    turns: Turns
    """Seconds of a step of all members."""


def measure(
    device: torch.device, folder: Path, rounds: int, quick: bool, say: Callable[[str], None]
) -> Iterator[Together]:
    """Train the members of each shape for some steps to compare them, and then time others."""
    source = {"format": "emt_alloys", "structures": 40 if quick else 240, "atoms": [8, 32]}
    data = DataConfig.model_validate({"source": source, "split": {"val": 0.1, "test": 0.1}})
    with closing(prepare_store(data, _CUTOFF, None, 0, folder / "fused.gs")) as store:
        for shape in _SHAPES[-1:] if quick else _SHAPES:
            network = _network(*shape)
            loss, weight = _differences(network, store, folder, 2 if quick else 8, device)
            trainer = FusedTrainer(_specs(network, store, folder, 10**6), store, device)
            trainer.begin()
            ways = {SEPARATE: trainer.take_apart, FUSED: trainer.take}
            contenders = {name: _turn(trainer, take) for name, take in ways.items()}
            yield Together(*shape, loss, weight, take_turns(contenders, rounds, say))


def _turn(trainer: FusedTrainer, take: Callable[[], None]) -> Callable[[], float]:
    """A turn of steps; seconds of the quickest, of those after the weights have moved."""

    def turn() -> float:
        trainer.round(take)
        return min(trainer.timed_round(take) for _ in range(3))

    return turn


def _differences(
    network: dict[str, Any], store: GraphStore, folder: Path, steps: int, device: torch.device
) -> tuple[float, float]:
    """Train the members both ways; largest differences of a loss, relative to it, and a weight."""
    specs = _specs(network, store, folder, steps)
    together = FusedTrainer(specs, store, device)
    together.run(probe=False)
    loss = weight = 0.0
    for spec, member in zip(specs, together.members, strict=True):
        alone = Trainer(spec, store, device, World())
        alone.run()
        for mine, other in zip(member.progress.history, alone.progress.history, strict=True):
            pairs = zip(mine[1:], other[1:], strict=True)
            loss = max(loss, *(abs(one - two) / abs(two) for one, two in pairs))
        state = member.model.state_dict()
        for name, tensor in alone.model.state_dict().items():
            weight = max(weight, float((state[name].double() - tensor.double()).abs().max()))
    return loss, weight


def _specs(
    network: dict[str, Any], store: GraphStore, folder: Path, steps: int
) -> list[SegmentSpec]:
    """Members with learning rates of their own, for a number of steps."""
    found = []
    for number in range(MEMBERS):
        mine = copy.deepcopy(network)
        mine["Training"]["Optimizer"]["learning_rate"] = 5e-4 * (1 + number / MEMBERS)
        spec = SegmentSpec(
            kind="trial",
            number=number,
            rung=0,
            directory=str(folder / "fused" / str(number)),
            store=str(store.path),
            network=load_network(mine),
            until_epoch=1,
            seed=number,
            may_have_begun=False,
            budget=("steps", steps),
            trivial_errors={"energy": 1.0, "forces": 1.0},
        )
        found.append(spec)
    return found


def _network(mpnn_type: str, is_potential: bool) -> dict[str, Any]:
    head = {"num_headlayers": 1, "dim_headlayers": [WIDTH]}
    shared = {"num_sharedlayers": 1, "dim_sharedlayers": WIDTH}
    architecture: dict[str, Any] = {
        "mpnn_type": mpnn_type,
        "hidden_dim": WIDTH,
        "num_conv_layers": 3,
        "radius": _CUTOFF,
        "activation_function": "silu",
        "enable_interatomic_potential": is_potential,
        "output_heads": {"node": head} if is_potential else {"graph": shared | head},
    }
    if is_potential:
        architecture |= {"energy_peratom_weight": 1.0, "force_weight": 1.0}
    level = "node" if is_potential else "graph"
    return {
        "Architecture": architecture,
        "Variables_of_interest": {"output_names": ["energy"], "type": [level]},
        "Training": {"num_epoch": 1, "batch_size": BATCH, "Optimizer": {"learning_rate": 1e-3}},
    }
