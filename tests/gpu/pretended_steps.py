"""Trains on the pretended device, which belongs to a whole process; a script.

Prints what went wrong, or nothing, for each thing that was tried.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ddp_rank import Repeating
from device_cases import NETWORKS, OPTIMISERS, make_trainer
from pretended import DEVICE, register, strictly
from segment_cases import make_spec, network_with

from hydragnn_flow.data import GraphStore
from hydragnn_flow.training.recorded import RECORDERS
from hydragnn_flow.training.runner import run_segment


def compare_a_step(folder: Path, store: GraphStore, name: str) -> None:
    """The device's way through the code, without a wait, comes to the CPU's loss."""
    spec = make_spec(folder, store, 1, network=network_with(**NETWORKS[name]))
    losses = []
    for device in ("cpu", DEVICE):
        trainer = make_trainer(spec, store, device)
        steps = trainer.plan(0)
        with strictly(), closing(trainer.micro_batches(steps)) as batches:
            shares = [trainer.train_step(steps[0], next(batches))[0]]
        losses.append([float(share) for share in shares])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def restore(folder: Path, store: GraphStore, optimiser: str) -> None:
    """A step after a checkpoint waits for nothing either."""
    network = network_with(Training__Optimizer__type=optimiser)
    spec = make_spec(folder, store, 1, network=network)
    for _ in range(2):
        trainer = make_trainer(spec, store, DEVICE)
        steps = trainer.plan(0)[:2]
        with strictly(), closing(trainer.micro_batches(steps)) as batches:
            for step, pieces in zip(steps, batches, strict=True):
                trainer.train_step(step, pieces)
        trainer.save()


def change_device(folder: Path, store: GraphStore, first: str, second: str) -> None:
    """What one device has begun another goes on with."""
    whole = run_segment(make_spec(folder / "whole", store, 4))
    begun = run_segment(make_spec(folder / "changing", store, 2), device=first)
    ended = run_segment(make_spec(folder / "changing", store, 4), device=second)
    assert (begun.status, ended.status, ended.from_epoch) == ("ok", "ok", 2)
    np.testing.assert_allclose(ended.history, whole.history, rtol=1e-4)
    assert begun.peak_memory_gib >= 0


def replay(folder: Path, store: GraphStore, optimiser: str) -> None:
    """Steps and evaluations that are replayed wait for nothing, and learn what others do."""
    network = network_with(Training__Optimizer__type=optimiser)
    spec = make_spec(folder, store, 20, network=network)
    losses = []
    for device in ("cpu", DEVICE):
        trainer = make_trainer(spec, store, device)
        steps = 4 * trainer.plan(0)
        with closing(trainer.micro_batches(steps)) as batches:
            taken = [trainer.train_step(step, next(batches))[0] for step in steps[:-4]]
            trainer.evaluate(trainer.model.eval(), trainer.val)
            trainer.model.train()
            with strictly():
                taken += [trainer.train_step(step, next(batches))[0] for step in steps[-4:]]
                for _ in trainer._in_order(trainer.model, trainer.val, lambda: None):
                    pass
        losses.append([float(loss) for loss in taken])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert trainer.recorded is not None and trainer.recorded.reason == ""
    assert trainer.recorded.replayed > len(steps)


def what_goes_wrong(trial: Callable[[], None]) -> str:
    try:
        trial()
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    place, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    register()
    RECORDERS[torch.device(DEVICE).type] = Repeating  # type: ignore[assignment]
    store = GraphStore.open(place)
    trials: dict[str, Callable[[], None]] = {}
    for name in NETWORKS:
        trials[name] = partial(compare_a_step, folder / name, store, name)
    for kind in OPTIMISERS:
        trials[f"{kind} restored"] = partial(restore, folder / kind, store, kind)
    for kind in ("AdamW", "Muon", "SGD"):
        trials[f"{kind} replayed"] = partial(replay, folder / f"{kind} replayed", store, kind)
    for first, second in (("cpu", DEVICE), (DEVICE, "cpu")):
        there = folder / f"from {first}"
        there.mkdir()
        trials[f"{first} to {second}"] = partial(change_device, there, store, first, second)
    print(json.dumps({name: what_goes_wrong(trial) for name, trial in trials.items()}))
