"""Ranks of a job in processes of their own, each of which trains some networks."""

from __future__ import annotations

import faulthandler
import multiprocessing
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from driver_cases import PATIENCE
from training_cases import CPU, judged

from hydragnn_flow.data import GraphStore
from hydragnn_flow.segment import read_segment
from hydragnn_flow.training import filled, recorded
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
    answer: Callable[..., Any], rank: int, size: int, meeting: str, arguments: tuple[Any, ...]
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


def on_ranks_by_name(
    size: int, specs: dict[str, dict[str, Any]], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Answers of all ranks of a job, which meets in a folder and trains one after the other."""
    answers = on_ranks(size, train_all, folder / f"ranks-{size}", specs)
    return {name: [answer[name] for answer in answers] for name in specs}


def train_all(world: World, specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: train(spec, world) for name, spec in specs.items()}


def train(values: dict[str, Any], world: World) -> dict[str, Any]:
    """Train from where the folder's checkpoint is, and save; a member predicts as well.

    Returns
    -------
    dict
        Losses of the steps, loss and errors on the validation split, predictions of it, and the
        numbers that this rank holds of parameters, gradients and the optimiser's state.
    """
    spec = read_segment(values)
    store = GraphStore.open(spec.store.path)
    trainer = Trainer(spec, store, CPU, world)
    losses = train_on(trainer, world)
    val_loss, metrics = judged(trainer)
    trainer.save()
    predicted = {}
    if spec.kind == "member":
        trainer.predict(trainer.val)
        predicted = {k: v.tolist() for k, v in trainer.predicted[trainer.val.name].items()}
    weights, of_optimiser = trainer.parallel.weights, trainer.optimizer.state.values()
    state = [value for values in of_optimiser for value in values.values()]
    held = {
        "parameters": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimiser": [value for value in state if isinstance(value, torch.Tensor) and value.ndim],
    }
    found = {
        "losses": losses,
        "val_loss": val_loss,
        "metrics": metrics,
        "predicted": predicted,
        "replayed": trainer.recorded.replayed if trainer.recorded else None,
        "held": {name: sum(map(_here, tensors)) for name, tensors in held.items()},
    }
    if world.size == 2 and trainer.settings.accumulation_steps > 1:
        spent = torch.tensor([1.0, 10.0 * (1 + world.rank)], dtype=torch.float64)
        trainer.spent = lambda: Spent(*world.sum(spent.clone()).tolist())
        trainer.save()
        assert load_checkpoint(spec.folder / FILE)["spent"] == [2.0, 30.0]
        again = Trainer(spec, store, CPU, world)
        np.testing.assert_allclose(train_on(again, world), train_on(trainer, world), rtol=1e-5)
    return found


class Repeating:
    """A recorder that computes what it would replay."""

    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        return function


def train_replayed(world: World, specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Like :func:`train_all`, by steps that a device would replay."""
    recorded.RECORDERS["cpu"] = Repeating  # type: ignore[assignment]
    filled._WORTH_IT = 1
    return train_all(world, specs)


def check_equal(
    ranks: list[dict[str, Any]], alone: dict[str, Any], within: float = 1e-5, name: str = ""
) -> None:
    """Each rank has learnt and predicted what one process has that has the whole network."""
    for rank in ranks:
        np.testing.assert_allclose(rank["losses"], alone["losses"], rtol=within, err_msg=name)
        assert rank["val_loss"] == pytest.approx(alone["val_loss"], rel=within, abs=within), name
        assert rank["metrics"] == pytest.approx(alone["metrics"], rel=within), name
        assert rank["predicted"].keys() == alone["predicted"].keys()
        for target, values in alone["predicted"].items():
            np.testing.assert_allclose(rank["predicted"][target], values, rtol=within, atol=1e-6)


def _here(tensor: torch.Tensor) -> int:
    local = getattr(tensor, "to_local", lambda: tensor)()
    return int(local.numel())


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
    trainer = Trainer(spec, GraphStore.open(spec.store.path), CPU, world)
    with pytest.raises(Stopped) as stopped:
        trainer.run(lambda: world.rank == world.size - 1)
    return str(stopped.value)


def predict(values: dict[str, Any], world: World) -> dict[str, Any]:
    """What the ranks together have predicted of the validation split after an epoch."""
    folder = Path(values["directory"]) / "predicted"
    folder.mkdir(exist_ok=True)
    spec = read_segment(values | {"directory": str(folder)})
    trainer = Trainer(spec, GraphStore.open(spec.store.path), CPU, world)
    trainer.run()
    return {name: values.tolist() for name, values in trainer.predicted["valset"].items()}


def stream(values: dict[str, Any], world: World) -> dict[str, Any]:
    """What this rank read of a streamed store in each epoch, its losses and its last weights."""
    spec = read_segment(values)
    trainer = Trainer(spec, GraphStore.open(spec.store.path, spec.store.mode), CPU, world)
    read: list[list[int]] = [[] for _ in range(EPOCHS)]
    losses: list[list[float]] = [[] for _ in range(EPOCHS)]
    for epoch in range(EPOCHS):
        steps = trainer.plan(epoch)
        for step, batch in zip(steps, trainer.batches(trainer.train, steps), strict=True):
            if batch is not None:
                read[epoch] += batch.graph_id.tolist()
            losses[epoch].append(float(trainer.train_step(step, batch)[0]))
    weights = [value.tolist() for value in trainer.model.parameters()]
    return {"read": read, "losses": losses, "weights": weights}


def answers(world: World, specs: dict[str, Any], stopped: Any, streamed: Any) -> list[Any]:
    """What a rank has to say of all of these segments."""
    return [
        train_all(world, specs),
        stop(stopped, world),
        [predict(spec, world) for spec in [*specs.values()][:2]],
        stream(streamed, world),
        [world.told(text if world.rank == 0 else "mine", CPU) for text in TOLD],
    ]
