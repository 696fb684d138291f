"""The one training loop, for trials and members, for one GCD and for DDP."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch_geometric.data import Batch

from hydragnn_flow.config import NetworkConfig
from hydragnn_flow.data import GraphSplit, GraphStore
from hydragnn_flow.data.reading.plan import Budget, Step, plan_epoch, plan_in_order
from hydragnn_flow.models import build_model
from hydragnn_flow.training.checkpoint import FILE, load_checkpoint, save_checkpoint
from hydragnn_flow.training.distributed import World
from hydragnn_flow.training.losses import Counts, Loss
from hydragnn_flow.training.segment import SegmentSpec

# Gradients are of a loss in units of the targets' spread, so one bound serves every data set.
MAX_GRADIENT_NORM = 10.0
# Averaging the weights over about the last hundred steps; Polyak & Juditsky, SIAM J. Control
# Optim. 30, 838 (1992). A trial is judged at whatever epoch its rung falls on, in the middle of its
# schedule, and the average is far less noisy there than the last step's weights.
AVERAGE_DECAY = 0.99
# A checkpoint may cost this share of the training time it protects.
CHECKPOINT_SHARE = 0.05


class Diverged(ArithmeticError):
    """The loss became NaN or infinite."""


class Stopped(Exception):
    """Somebody asked the segment to end before its rung."""


@dataclass
class Progress:
    """What a trial or member has been through so far."""

    epoch: int = 0
    best_val_loss: float = float("inf")
    best_epoch: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Validation errors at the best epoch."""
    history: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation loss] of every epoch."""


class Trainer:
    """Trains one network on one store; resumable at every epoch.

    Parameters
    ----------
    spec
        What to train and where its checkpoint lies.
    network
        The checked network of ``spec``.
    store
        The graphs.
    device
        Where to compute.
    world
        This process's place among the ranks.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        network: NetworkConfig,
        store: GraphStore,
        device: torch.device,
        world: World,
    ) -> None:
        self.spec, self.world, self.device = spec, world, device
        self.train, self.val = store["trainset"], store["valset"]
        self.budget = Budget.of(network)
        torch.manual_seed(spec.seed)
        model = build_model(network, store)
        if network.Training.precision == "fp64":
            model = model.double()
        self.model: nn.Module = model.to(device)
        self.loss = Loss(network, store.manifest)
        self.metric_names = self.loss.metric_names(store.manifest)
        self.optimizer = _optimizer(self.model, network)
        self.learning_rate = network.Training.Optimizer.learning_rate
        self.average = AveragedModel(self.model, multi_avg_fn=_average)
        self.best = _copy(self.model.state_dict())
        self.progress = Progress()
        self._restore()
        self.parallel: nn.Module = self.model
        self.stand_in: Batch | None = None
        if world.size > 1:
            self.parallel = DistributedDataParallel(self.model, broadcast_buffers=False)
            # DDP waits for every rank, so one without graphs in a step computes this all the same.
            smallest = int(self.train.n_atoms.argmin())
            self.stand_in = self.train.batch([smallest]).to(device)

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Train up to the segment's last epoch.

        Parameters
        ----------
        should_stop
            Asked before every step; when it says yes the segment ends at its last checkpoint.

        Raises
        ------
        Diverged
            If a loss is NaN or infinite; the checkpoint stays at the last finite epoch.
        Stopped
            If ``should_stop`` said yes.
        """
        saved, cost = time.monotonic(), 0.0
        while self.progress.epoch < self.spec.until_epoch:
            train_loss = self._train_epoch(should_stop)
            val_loss, metrics = self.evaluate(self.val)
            self._finish_epoch(train_loss, val_loss, metrics)
            last = self.progress.epoch == self.spec.until_epoch
            if last or cost <= CHECKPOINT_SHARE * (time.monotonic() - saved):
                start = time.monotonic()
                self.save()
                saved, cost = time.monotonic(), time.monotonic() - start

    def plan(self, epoch: int) -> list[Step]:
        """The steps of an epoch, counted from 0."""
        blocks = self.train.block_bounds if self.train.mode == "stream" else None
        return plan_epoch(
            self.train, self.budget, self.spec.seed, epoch, self.world.size, blocks=blocks
        )

    def batches(self, split: GraphSplit, steps: Sequence[Step]) -> Iterator[Batch | None]:
        """This rank's part of each step, on the device; nothing where the step has none for it."""
        parts = [step.part(self.world.rank) for step in steps]
        read = split.batches(part for part in parts if len(part))
        for part in parts:
            yield next(read).to(self.device) if len(part) else None

    def train_step(self, step: Step, batch: Batch | None) -> Tensor:
        """Take one step; returns this rank's share of the loss.

        The loss stays on the device: reading it would make the host wait for every step.

        Parameters
        ----------
        step
            What all ranks together compute.
        batch
            This rank's part of it, if it has one.
        """
        mine = self.stand_in if batch is None else batch
        loss = self.loss(self.parallel(mine), mine, Counts(step.graphs, step.atoms))
        if batch is None:
            loss = 0.0 * loss
        self.optimizer.zero_grad()
        # DDP averages gradients over ranks; the shares of the loss are meant to add up.
        torch.autograd.backward(loss * self.world.size)
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.average.update_parameters(self.model)
        return loss.detach()

    def evaluate(self, split: GraphSplit) -> tuple[float, dict[str, float]]:
        """Loss and mean absolute errors of the averaged weights on a split."""
        model = self.average.module.eval()
        counts = Counts(len(split), int(split.n_atoms.sum()))
        sums = torch.zeros(1 + len(self.metric_names), dtype=torch.float64, device=self.device)
        for batch in self.batches(split, plan_in_order(split, self.budget, self.world.size)):
            if batch is None:
                continue
            with torch.no_grad():
                outputs = model(batch)
                sums[0] += self.loss(outputs, batch, counts).double()
                sums[1:] += self.loss.absolute_errors(outputs, batch)
        loss, *errors = self.world.sum(sums).tolist()
        elements = {"graph": counts.graphs, "node": counts.atoms}
        metrics = {
            name: error / (elements[level] * dim)
            for (name, level, dim), error in zip(self.metric_names, errors, strict=True)
        }
        return loss, metrics

    def save(self) -> None:
        """Write the checkpoint, from the first rank."""
        if self.world.is_first:
            save_checkpoint(
                self.spec.folder / FILE,
                {
                    "model": self.model.state_dict(),
                    "average": self.average.state_dict(),
                    "best": self.best,
                    "optimizer": self.optimizer.state_dict(),
                    "progress": vars(self.progress),
                },
            )

    def _restore(self) -> None:
        path = self.spec.folder / FILE
        if not path.exists() and self.spec.start_from is not None:
            path = Path(self.spec.start_from)
        if not path.exists():
            return
        state = load_checkpoint(path, self.device)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.best = state["best"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])

    def _train_epoch(self, should_stop: Callable[[], bool]) -> float:
        self.model.train()
        rate = self.learning_rate * decay_factor(self.progress.epoch, self.spec.decay)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total = torch.zeros(1, dtype=torch.float64, device=self.device)
        steps = self.plan(self.progress.epoch)
        for step, batch in zip(steps, self.batches(self.train, steps), strict=True):
            if should_stop():
                raise Stopped
            total += self.train_step(step, batch)
        loss = float(self.world.sum(total)) / len(steps)
        if not np.isfinite(loss):
            raise Diverged(f"training loss is {loss} in epoch {self.progress.epoch + 1}")
        return loss

    def _finish_epoch(self, train_loss: float, val_loss: float, metrics: dict[str, float]) -> None:
        progress = self.progress
        if not np.isfinite(val_loss):
            raise Diverged(f"validation loss is {val_loss} in epoch {progress.epoch + 1}")
        progress.epoch += 1
        progress.history.append([progress.epoch, train_loss, val_loss])
        if val_loss < progress.best_val_loss:
            progress.best_val_loss, progress.best_epoch = val_loss, progress.epoch
            progress.metrics = metrics
            self.best = _copy(self.average.module.state_dict())


def decay_factor(epoch: int, decay: tuple[int, int] | None) -> float:
    """Share of the learning rate used in an epoch, counted from 0.

    A trial keeps its learning rate, so that its checkpoint can be trained on from any rung; a
    member's falls along half a cosine, so that it settles (the stable and decay phases of Hu et
    al., arXiv:2404.06395).
    """
    if decay is None:
        return 1.0
    start, end = decay
    done = min(max((epoch - start) / max(end - start, 1), 0.0), 1.0)
    return 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def _average(averaged: Any, current: Any, n_averaged: Any) -> None:
    # Short at first, or the random initial weights would linger.
    weight = max(1 - AVERAGE_DECAY, 9 / (10 + int(n_averaged)))
    torch._foreach_lerp_(list(averaged), list(current), weight)


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state.items()}


def _optimizer(model: nn.Module, network: NetworkConfig) -> torch.optim.Optimizer:
    settings = network.Training.Optimizer
    kind: Any = getattr(torch.optim, settings.type)
    optimizer: torch.optim.Optimizer
    try:
        optimizer = kind(model.parameters(), lr=settings.learning_rate, fused=True)
    except RuntimeError:  # raised for devices that have no fused kernel
        optimizer = kind(model.parameters(), lr=settings.learning_rate)
    return optimizer
