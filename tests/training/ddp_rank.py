"""Ranks of a job in processes of their own, and what one does that trains some networks."""

from __future__ import annotations

import faulthandler
import multiprocessing
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from driver_cases import PATIENCE
from training_cases import judged as judged_by

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training.checkpoints.checkpoint import FILE, load_checkpoint
from hydragnn_flow.training.distributed import World, join
from hydragnn_flow.training.monitor import Stopped
from hydragnn_flow.training.state import Spent
from hydragnn_flow.training.trainer import Trainer

STEPS = 8
TOLD = "checkpoint-0a.pt", ""
# Of a stream.
EPOCHS = 3

# Ranks are forked from a process that has imported what they need, which takes nine seconds, and
# has computed nothing.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["hydragnn_flow.training.runner"])


def on_ranks(size: int, answer: Callable[..., Any], meeting: Path, *arguments: Any) -> list[Any]:
    """What each rank of a job answers, by a function of a module of its world and the arguments.

    The ranks meet by the file ``meeting``.
    """
    with ProcessPoolExecutor(size, _FORKS) as pool:
        ranks = [
            pool.submit(_rank, answer, rank, size, str(meeting), arguments) for rank in range(size)
        ]
        ended, _ = wait(ranks, return_when=FIRST_EXCEPTION)
        if failed := [rank for rank in ended if rank.exception() is not None]:
            for process in [*pool._processes.values()]:  # the others wait for it
                process.kill()
            failed[0].result()
        return [rank.result() for rank in ranks]


def _rank(
    answer: Callable[..., Any],
    rank: int,
    size: int,
    meeting: str,
    arguments: tuple[Any, ...],
) -> Any:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    torch.set_num_threads(1)
    try:
        world = join(rank, size, dist.FileStore(meeting, size), "cpu")
        # The trainers are gone before the group is: gloo's threads must not outlive it.
        found = answer(world, *arguments)
        world.leave()
        return found
    finally:
        faulthandler.cancel_dump_traceback_later()


def train(values: dict[str, Any], world: World) -> tuple[list[float], float, dict[str, float]]:
    """Losses of the first steps, then loss and errors on the validation split."""
    spec = read_segment(values)
    store = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, store, torch.device("cpu"), world)
    losses, judged = train_on(trainer, world), judged_by(trainer)
    if world.size > 1 and trainer.settings.Optimizer.use_zero_redundancy:
        spent = torch.tensor([1.0, 10.0 * (1 + world.rank)], dtype=torch.float64)
        trainer.spent = lambda: Spent(*world.sum(spent.clone()).tolist())
        trainer.save()
        assert load_checkpoint(spec.folder / FILE)["spent"] == [2.0, 30.0]
        again = Trainer(spec, store, torch.device("cpu"), world)
        np.testing.assert_allclose(train_on(again, world), train_on(trainer, world), rtol=1e-5)
    return losses, *judged


def train_on(trainer: Trainer, world: World) -> list[float]:
    """Losses of the first steps."""
    trainer.model.train()
    losses: list[torch.Tensor] = []
    epoch = 0
    while len(losses) < STEPS:
        steps = trainer.plan(epoch)
        for step, batches in zip(steps, trainer.micro_batches(steps), strict=True):
            losses.append(trainer.train_step(step, batches)[0])
        epoch += 1
    total = world.sum(torch.tensor(losses[:STEPS], dtype=torch.float64))
    return total.tolist()


def stop(values: dict[str, Any], world: World) -> str:
    """What ends a run that the last rank alone is asked to end."""
    spec = read_segment(values)
    store = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, store, torch.device("cpu"), world)
    try:
        trainer.run(lambda: world.rank == world.size - 1)
    except Stopped as stopped:
        return str(stopped)
    return ""


def predict(values: dict[str, Any], world: World) -> dict[str, Any]:
    """What the ranks together have predicted of the validation split after an epoch."""
    folder = Path(values["directory"]) / "predicted"
    folder.mkdir(exist_ok=True)
    spec = read_segment(values | {"directory": str(folder)})
    store = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, store, torch.device("cpu"), world)
    trainer.run()
    return {name: values.tolist() for name, values in trainer.predicted["valset"].items()}


def stream(values: dict[str, Any], world: World) -> dict[str, Any]:
    """What this rank read of a streamed store in each epoch, its losses and its last weights."""
    spec = read_segment(values)
    trainer = Trainer(
        spec, GraphStore.open(spec.store.path, spec.store.mode), torch.device("cpu"), world
    )
    read: list[list[int]] = []
    losses: list[list[float]] = []
    for epoch in range(EPOCHS):
        steps = trainer.plan(epoch)
        read.append([])
        losses.append([])
        for step, batch in zip(steps, trainer.batches(trainer.train, steps), strict=True):
            if batch is not None:
                read[-1] += batch.graph_id.tolist()
            losses[-1].append(float(trainer.train_step(step, batch)[0]))
    weights = [value.tolist() for value in trainer.model.parameters()]
    return {"read": read, "losses": losses, "weights": weights}


def answers(
    world: World, specs: list[dict[str, Any]], stopped: dict[str, Any], streamed: dict[str, Any]
) -> list[Any]:
    """What a rank has to say of all of these."""
    return [
        [train(spec, world) for spec in specs],
        stop(stopped, world),
        [predict(spec, world) for spec in specs[:2]],
        stream(streamed, world),
        [world.told(text if world.rank == 0 else "mine", torch.device("cpu")) for text in TOLD],
    ]
