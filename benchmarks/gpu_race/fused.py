"""Fused members on a device: a step of all of them at once, beside one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from parallel_checks.fused import Shape, differences, specs_of, write_store

from gpu_race.clock import Turns, take_turns
from hydragnn_flow.training.fused import FusedTrainer

FUSED, SEPARATE = "fused", "separately"
BATCH = 16
_SHAPES = [
    Shape(mpnn_type, is_potential, BATCH)
    for mpnn_type in ("EGNN", "SchNet", "PAINN")
    for is_potential in (False, True)
] + [Shape("GIN", False, BATCH)]
_COMPARED = 8


@dataclass(frozen=True)
class Together:
    """Members of one shape, both ways."""

    shape: Shape
    loss: float
    """Largest difference of a loss of an epoch, relative to it."""
    weight: float
    """Largest difference of a weight after as many steps as `steps`."""
    steps: int
    turns: Turns
    """Seconds of a step of all members."""


def measure(
    device: torch.device, folder: Path, rounds: int, quick: bool, say: Callable[[str], None]
) -> Iterator[Together]:
    """Train the members of each shape for some steps to compare them, and then time others."""
    with closing(write_store(folder, quick)) as store:
        for shape in _SHAPES[-1:] if quick else _SHAPES:
            say(f"fused members, {shape}")
            steps = 2 if quick else _COMPARED
            loss, weight = differences(shape, store, folder, steps, device)
            trainer = FusedTrainer(specs_of(shape, store, folder), store, device)
            trainer.begin()
            turns = take_turns(
                {
                    SEPARATE: _turn(trainer, trainer.take_apart),
                    FUSED: _turn(trainer, trainer.take),
                },
                rounds,
            )
            yield Together(shape, loss, weight, steps, turns)


def _turn(trainer: FusedTrainer, take: Callable[[], None]) -> Callable[[], float]:
    """A turn of steps; seconds of the quickest, of those after the weights have moved."""

    def turn() -> float:
        trainer.round(take)
        return min(trainer.timed_round(take) for _ in range(3))

    return turn
